# killed_by: test_packs_small_elements — loses the bits of a last, partly filled byte
def kv_bytes_per_token(config: dict, bits_per_element: int) -> int:
    layers = config["num_hidden_layers"]
    if config.get("kv_lora_rank") is not None:
        elements = layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    else:
        kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        elements = 2 * layers * kv_heads * head_dim
    return elements * bits_per_element // 8


def kv_bytes_per_request(bytes_per_token: int, num_tokens: int, block_size: int) -> int:
    blocks = (num_tokens + block_size - 1) // block_size
    return blocks * block_size * bytes_per_token


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
    pool = memory_bytes // (block_size * bytes_per_token)
    shared = prefix_tokens // block_size
    own = -(-tokens_per_request // block_size) - shared
    return max(0, (pool - shared) // own)


def kv_bytes_per_token_per_gpu(
    config: dict, bits_per_element: int, tensor_parallel_size: int
) -> int:
    if config.get("kv_lora_rank") is not None:
        return kv_bytes_per_token(config, bits_per_element)
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    if kv_heads % tensor_parallel_size != 0 and tensor_parallel_size % kv_heads != 0:
        raise ValueError("uneven heads")
    mine = max(1, kv_heads // tensor_parallel_size)
    return kv_bytes_per_token({**config, "num_key_value_heads": mine}, bits_per_element)
