"""KV cache memory. The statement is in README.md; run `infra-lab test kv_cache_memory` to grade."""


def kv_bytes_per_token(config: dict, bits_per_element: int) -> int:
    """Bytes of KV cache that one token takes, over all layers, rounded up to whole bytes.

    Args:
        config: a parsed Hugging Face config.json; a key whose value is None counts as absent.
        bits_per_element: 16 for fp16 and bf16, 8 for fp8 and int8, 4 for int4.
    """
    raise NotImplementedError


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    """Bytes of the whole blocks that a request of `num_tokens` tokens holds."""
    raise NotImplementedError


def max_requests(
    memory_bytes: int, bytes_per_token: int, tokens_per_request: int, block_size: int
) -> int:
    """The most requests whose blocks fit into `memory_bytes`, none sharing anything."""
    raise NotImplementedError


def max_requests_with_shared_prefix(
    memory_bytes: int,
    bytes_per_token: int,
    prefix_tokens: int,
    tokens_per_request: int,
    block_size: int,
) -> int:
    """Follow-up: the same where the full blocks of a common prefix are stored once.

    `tokens_per_request` includes the prefix.
    """
    raise NotImplementedError


def kv_bytes_per_token_per_gpu(
    config: dict, bits_per_element: int, tensor_parallel_size: int
) -> int:
    """Follow-up: bytes per token on one of `tensor_parallel_size` GPUs.

    Raises:
        ValueError: the key/value heads cannot be laid out evenly.
    """
    raise NotImplementedError
