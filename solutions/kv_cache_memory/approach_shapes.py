"""Lists the tensors that an engine would allocate, and adds up their sizes.

O(layers) time for the bytes and O(log memory) for the number of requests: the number that fits
is found by bisection on "do n requests fit?", which also works where no formula exists.
"""

import math
from collections.abc import Callable


def cache_shapes(config: dict, tensor_parallel_size: int) -> list[tuple[int, ...]]:
    """Shapes of all cached tensors of one token on one GPU."""
    present = {key: value for key, value in config.items() if value is not None}
    if "kv_lora_rank" in present:
        one_layer = [(present["kv_lora_rank"],), (present["qk_rope_head_dim"],)]
    else:
        query_heads = present["num_attention_heads"]
        kv_heads = present.get("num_key_value_heads", query_heads)
        head_dim = present.get("head_dim", present["hidden_size"] // query_heads)
        larger, smaller = max(kv_heads, tensor_parallel_size), min(kv_heads, tensor_parallel_size)
        if larger % smaller != 0:
            raise ValueError("one of key/value heads and GPUs must divide the other")
        heads = larger // tensor_parallel_size
        one_layer = [(heads, head_dim)] * 2
    return one_layer * present["num_hidden_layers"]


def largest(fits: Callable[[int], bool]) -> int:
    """The largest n >= 0 with fits(n); what fits n also fits fewer, and 0 always fits."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def kv_bytes_per_token_per_gpu(
    config: dict, bits_per_element: int, tensor_parallel_size: int
) -> int:
    elements = sum(math.prod(shape) for shape in cache_shapes(config, tensor_parallel_size))
    return (elements * bits_per_element + 7) // 8


def kv_bytes_per_token(config: dict, bits_per_element: int) -> int:
    return kv_bytes_per_token_per_gpu(config, bits_per_element, 1)


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    blocks = (num_tokens + block_size - 1) // block_size
    return blocks * block_size * bytes_per_token


def max_requests(
    memory_bytes: int, bytes_per_token: int, tokens_per_request: int, block_size: int
) -> int:
    each = kv_bytes_per_request(bytes_per_token, tokens_per_request, block_size)
    return largest(lambda n: n * each <= memory_bytes)


def max_requests_with_shared_prefix(
    memory_bytes: int,
    bytes_per_token: int,
    prefix_tokens: int,
    tokens_per_request: int,
    block_size: int,
) -> int:
    shared_tokens = prefix_tokens - prefix_tokens % block_size
    shared = kv_bytes_per_request(bytes_per_token, shared_tokens, block_size)
    own = kv_bytes_per_request(bytes_per_token, tokens_per_request - shared_tokens, block_size)
    return largest(lambda n: shared + n * own <= memory_bytes)
