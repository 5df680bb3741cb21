"""Exact fractions of a byte, rounded at the end."""

import math
from fractions import Fraction


def kv_bytes_per_token(config, bits_per_element):
    config = {key: value for key, value in config.items() if value is not None}
    byte_per_element = Fraction(bits_per_element, 8)
    if "kv_lora_rank" in config:
        per_layer = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        width = Fraction(config["hidden_size"], config["num_attention_heads"])
        width = config.get("head_dim", width)
        per_layer = 2 * width * config.get("num_key_value_heads", config["num_attention_heads"])
    return math.ceil(config["num_hidden_layers"] * per_layer * byte_per_element)


def kv_bytes_per_request(bytes_per_token, num_tokens, block_size):
    return math.ceil(Fraction(num_tokens, block_size)) * block_size * bytes_per_token


def max_requests(memory_bytes, bytes_per_token, tokens_per_request, block_size):
    each = kv_bytes_per_request(bytes_per_token, tokens_per_request, block_size)
    return math.floor(Fraction(memory_bytes, each))


def max_requests_with_shared_prefix(
    memory_bytes, bytes_per_token, prefix_tokens, tokens_per_request, block_size
):
    block_bytes = block_size * bytes_per_token
    shared_bytes = math.floor(Fraction(prefix_tokens, block_size)) * block_bytes
    request_bytes = math.ceil(Fraction(tokens_per_request, block_size)) * block_bytes
    left = max(0, memory_bytes - shared_bytes)
    return math.floor(Fraction(left, request_bytes - shared_bytes))
