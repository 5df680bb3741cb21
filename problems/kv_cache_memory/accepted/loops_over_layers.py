"""Adds up layer after layer, as a model with unlike layers would need, and bisects."""

from collections.abc import Iterator


def layer_bits(config: dict, bits: int, gpus: int) -> Iterator[int]:
    for _layer in range(config["num_hidden_layers"]):
        if config.get("kv_lora_rank") is None:
            heads = config.get("num_key_value_heads")
            if heads is None:
                heads = config["num_attention_heads"]
            dim = config.get("head_dim")
            if dim is None:
                dim = config["hidden_size"] // config["num_attention_heads"]
            if heads >= gpus:
                if heads % gpus:
                    raise ValueError("heads % gpus != 0")
                heads //= gpus
            else:
                if gpus % heads:
                    raise ValueError("gpus % heads != 0")
                heads = 1
            for _vector in ("key", "value"):
                yield heads * dim * bits
        else:
            yield config["kv_lora_rank"] * bits
            yield config["qk_rope_head_dim"] * bits


def kv_bytes_per_token_per_gpu(
    config: dict, bits_per_element: int, tensor_parallel_size: int
) -> int:
    total = 0
    for bits in layer_bits(config, bits_per_element, tensor_parallel_size):
        total += bits
    return -(-total // 8)


def kv_bytes_per_token(config: dict, bits_per_element: int) -> int:
    return kv_bytes_per_token_per_gpu(
        config=config, bits_per_element=bits_per_element, tensor_parallel_size=1
    )


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    full_blocks = num_tokens // block_size
    if num_tokens % block_size:
        full_blocks += 1
    return full_blocks * (block_size * bytes_per_token)


def max_requests(
    memory_bytes: int, bytes_per_token: int, tokens_per_request: int, block_size: int
) -> int:
    return max_requests_with_shared_prefix(
        memory_bytes, bytes_per_token, 0, tokens_per_request, block_size
    )


def max_requests_with_shared_prefix(
    memory_bytes: int,
    bytes_per_token: int,
    prefix_tokens: int,
    tokens_per_request: int,
    block_size: int,
) -> int:
    shared = prefix_tokens // block_size * block_size
    own = kv_bytes_per_request(bytes_per_token, tokens_per_request - shared, block_size)
    left = memory_bytes - shared * bytes_per_token
    low, high = 0, 10**31
    while low < high:
        middle = (low + high + 1) // 2
        if middle * own <= left:
            low = middle
        else:
            high = middle - 1
    return low
