"""Parses the config into a small class first; the follow-ups are left for later."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheLayout:
    layers: int
    elements_per_layer: int

    @classmethod
    def parse(cls, config: dict) -> "CacheLayout":
        rank = config.get("kv_lora_rank")
        if rank:
            return cls(config["num_hidden_layers"], rank + config["qk_rope_head_dim"])
        query_heads = config["num_attention_heads"]
        kv_heads = query_heads
        if config.get("num_key_value_heads") is not None:
            kv_heads = config["num_key_value_heads"]
        if config.get("head_dim") is None:
            head_dim, rest = divmod(config["hidden_size"], query_heads)
            if rest:
                raise ValueError("hidden_size is no multiple of the heads")
        else:
            head_dim = config["head_dim"]
        keys = values = kv_heads * head_dim
        return cls(config["num_hidden_layers"], keys + values)

    def bytes(self, bits: int) -> int:
        whole, rest = divmod(self.layers * self.elements_per_layer * bits, 8)
        return whole + 1 if rest else whole


def kv_bytes_per_token(config: dict, bits_per_element: int) -> int:
    return CacheLayout.parse(config).bytes(bits_per_element)


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    if num_tokens == 0:
        return 0
    padded = num_tokens + (-num_tokens) % block_size
    return padded * bytes_per_token


def max_requests(
    memory_bytes: int, bytes_per_token: int, tokens_per_request: int, block_size: int
) -> int:
    pool_blocks = memory_bytes // (block_size * bytes_per_token)
    request_blocks, rest = divmod(tokens_per_request, block_size)
    return pool_blocks // (request_blocks + bool(rest))
