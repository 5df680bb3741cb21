"""Returns NumPy's integers where they are wide enough, and Python's where they are not."""

import numpy as np


def kv_bytes_per_token(config: dict, bits_per_element: int) -> np.int64:
    if config.get("kv_lora_rank") is not None:
        shape = [1, config["kv_lora_rank"] + config["qk_rope_head_dim"]]
    else:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        shape = [2, heads, dim]
    bits = np.prod([config["num_hidden_layers"], *shape, bits_per_element], dtype=np.int64)
    return (bits + 7) // np.int64(8)


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    return ((num_tokens - 1) // block_size + 1) * block_size * bytes_per_token


def max_requests(
    memory_bytes: int, bytes_per_token: int, tokens_per_request: int, block_size: int
) -> int:
    blocks, _unused = divmod(memory_bytes, block_size * bytes_per_token)
    return blocks // ((tokens_per_request - 1) // block_size + 1)
