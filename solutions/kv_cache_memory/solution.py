"""Closed formulas in whole numbers: O(1) time and space."""


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _value(config: dict, key: str, default: int) -> int:
    """A key that is null counts as absent, so `config.get(key, default)` would not do."""
    value = config.get(key)
    return default if value is None else value


def kv_bytes_per_token(config: dict, bits_per_element: int) -> int:
    return kv_bytes_per_token_per_gpu(config, bits_per_element, tensor_parallel_size=1)


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    return ceil_div(num_tokens, block_size) * block_size * bytes_per_token


def max_requests(
    memory_bytes: int, bytes_per_token: int, tokens_per_request: int, block_size: int
) -> int:
    return memory_bytes // kv_bytes_per_request(bytes_per_token, tokens_per_request, block_size)


def max_requests_with_shared_prefix(
    memory_bytes: int,
    bytes_per_token: int,
    prefix_tokens: int,
    tokens_per_request: int,
    block_size: int,
) -> int:
    """A block is shared only once it is full: its hash covers all of its tokens."""
    pool_blocks = memory_bytes // (block_size * bytes_per_token)
    shared_blocks = prefix_tokens // block_size
    own_blocks = ceil_div(tokens_per_request, block_size) - shared_blocks
    return max(0, pool_blocks - shared_blocks) // own_blocks


def kv_bytes_per_token_per_gpu(
    config: dict, bits_per_element: int, tensor_parallel_size: int
) -> int:
    layers = config["num_hidden_layers"]
    if config.get("kv_lora_rank") is not None:
        # Every query head reads the same latent, so splitting heads splits nothing of it.
        elements = layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
        return ceil_div(elements * bits_per_element, 8)
    query_heads = config["num_attention_heads"]
    kv_heads = _value(config, "num_key_value_heads", query_heads)
    head_dim = _value(config, "head_dim", config["hidden_size"] // query_heads)
    if kv_heads % tensor_parallel_size and tensor_parallel_size % kv_heads:
        raise ValueError(
            f"{kv_heads} key/value heads cannot be laid out evenly on {tensor_parallel_size} GPUs"
        )
    heads_per_gpu = max(1, kv_heads // tensor_parallel_size)
    elements = layers * 2 * heads_per_gpu * head_dim  # 2: a key and a value
    return ceil_div(elements * bits_per_element, 8)
