"""Grades kv_cache_memory against figures of published models, worked by hand, and against
counting: elements one by one, blocks taken from a pool one by one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra_lab.practice.kit import Solution, follow_up, states

LLAMA_2_7B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
LLAMA_3_70B = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
QWEN_1_5_72B = LLAMA_3_70B | {"num_key_value_heads": 64}  # its README: no GQA yet
QWEN_2_72B = LLAMA_3_70B | {"model_type": "qwen2"}
QWEN_3_0_6B = {
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
GEMMA_2B = {
    "num_hidden_layers": 18,
    "hidden_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
}
DEEPSEEK_V2 = {
    "num_hidden_layers": 60,
    "hidden_size": 5120,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DEEPSEEK_V3 = DEEPSEEK_V2 | {"num_hidden_layers": 61, "hidden_size": 7168}

# Bytes per token, each worked by hand from the model's config.json.
PUBLISHED = [
    pytest.param(LLAMA_2_7B, 16, 524_288, id="Llama-2-7B, MHA, fp16"),
    pytest.param(LLAMA_3_70B, 16, 327_680, id="Llama-3-70B, GQA, bf16"),
    pytest.param(LLAMA_3_70B, 8, 163_840, id="Llama-3-70B, GQA, fp8"),
    pytest.param(LLAMA_3_70B, 4, 81_920, id="Llama-3-70B, GQA, int4"),
    pytest.param(QWEN_1_5_72B, 16, 2_621_440, id="Qwen1.5-72B, MHA, bf16"),
    pytest.param(QWEN_2_72B, 16, 327_680, id="Qwen2-72B, GQA, bf16"),
    pytest.param(QWEN_3_0_6B, 16, 114_688, id="Qwen3-0.6B, GQA with its own head_dim, bf16"),
    pytest.param(GEMMA_2B, 16, 18_432, id="Gemma-2B, MQA, bf16"),
    pytest.param(DEEPSEEK_V2, 16, 69_120, id="DeepSeek-V2, MLA, bf16"),
    pytest.param(DEEPSEEK_V3, 16, 70_272, id="DeepSeek-V3, MLA, bf16"),
]


def count_elements(config: dict[str, Any]) -> int:
    """Elements that one token caches, counted one by one."""
    layers = range(config["num_hidden_layers"])
    if config.get("kv_lora_rank") is not None:
        vectors = [range(config["kv_lora_rank"]), range(config["qk_rope_head_dim"])]
        return sum(1 for _ in layers for vector in vectors for _ in vector)
    query_heads = config["num_attention_heads"]
    heads = config.get("num_key_value_heads") or query_heads
    width = config.get("head_dim") or len(range(0, config["hidden_size"], query_heads))
    return sum(1 for _ in product(layers, range(heads), ("key", "value"), range(width)))


def bytes_of(elements: int, bits: int) -> int:
    """Fills bytes bit by bit."""
    whole, rest = divmod(elements * bits, 8)
    return whole + (rest > 0)


def blocks_of(num_tokens: int, block_size: int) -> int:
    """Appends token after token; a token that finds no free slot takes a new block."""
    blocks = slots = 0
    for _ in range(num_tokens):
        if slots == 0:
            blocks, slots = blocks + 1, block_size
        slots -= 1
    return blocks


def admit_one_by_one(pool_blocks: int, shared_blocks: int, own_blocks: int) -> int:
    free = pool_blocks - shared_blocks
    admitted = 0
    while free >= own_blocks:
        free -= own_blocks
        admitted += 1
    return admitted


def optional(strategy: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.one_of(strategy, st.none())


@st.composite
def head_configs(draw: st.DrawFn) -> dict[str, Any]:
    """MHA, GQA and MQA, with the optional keys there, null or missing."""
    group = draw(st.integers(1, 3))
    kv_heads = draw(st.integers(1, 3))
    is_mha = group == 1 and draw(st.booleans())
    query_heads = kv_heads * group
    config: dict[str, Any] = {
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": query_heads,
        "num_key_value_heads": None if is_mha else kv_heads,
        "hidden_size": query_heads * draw(st.integers(1, 5)),
        "head_dim": draw(optional(st.integers(1, 7))),
        "kv_lora_rank": None,
        "vocab_size": 151_936,
        "torch_dtype": "bfloat16",
    }
    dropped = draw(st.sets(st.sampled_from(["num_key_value_heads", "head_dim", "kv_lora_rank"])))
    return {key: v for key, v in config.items() if v is not None or key not in dropped}


@st.composite
def latent_configs(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    return {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "hidden_size": heads * draw(st.integers(1, 8)),
        "kv_lora_rank": draw(st.integers(1, 9)),
        "qk_rope_head_dim": draw(st.integers(1, 5)),
        "v_head_dim": draw(st.integers(1, 5)),
    }


BITS = st.sampled_from([16, 8, 4, 32, 6, 3, 1])
SMALL = {
    "bytes_per_token": st.integers(1, 5),
    "block_size": st.integers(1, 5),
    "memory_bytes": st.integers(0, 400),
}
HUGE = st.integers(0, 10**30)


@states("bytes per token of published models", "已发布模型的每 token 字节数")
@pytest.mark.parametrize(("config", "bits", "expected"), PUBLISHED)
def test_published_models(
    solution: Solution, config: dict[str, Any], bits: int, expected: int
) -> None:
    call = solution.call("kv_bytes_per_token", dict(config), bits)
    call.equals(expected).leaves_arguments_alone()


@states(
    "without num_key_value_heads, every query head has its own keys and values",
    "没有 num_key_value_heads 时，每个 query 头都有自己的 K 和 V",
)
def test_key_value_heads_are_optional(solution: Solution) -> None:
    bare = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 4}
    solution.call("kv_bytes_per_token", bare, 8).equals(16)
    solution.call("kv_bytes_per_token", bare | {"num_key_value_heads": None}, 8).equals(16)
    solution.call("kv_bytes_per_token", bare | {"num_key_value_heads": 1}, 8).equals(4)


@states(
    "head_dim is used where it is given, and a null one is not",
    "给出 head_dim 时以它为准，为 null 时忽略",
)
def test_head_dim_is_optional(solution: Solution) -> None:
    bare = {
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    solution.call("kv_bytes_per_token", bare, 8).equals(8)
    solution.call("kv_bytes_per_token", bare | {"head_dim": None}, 8).equals(8)
    solution.call("kv_bytes_per_token", bare | {"head_dim": 5}, 8).equals(20)


@states(
    "MLA caches one latent and one rotary key a layer, whatever the heads",
    "MLA 每层只缓存一个 latent 和一个旋转 key，与头数无关",
)
@given(config=latent_configs(), bits=BITS)
def test_latent_attention(solution: Solution, config: dict[str, Any], bits: int) -> None:
    expected = bytes_of(count_elements(config), bits)
    call = solution.call("kv_bytes_per_token", config, bits)
    call.equals(expected).leaves_arguments_alone()


@states("bytes per token agree with counting every element", "每 token 字节数与逐个元素计数一致")
@given(config=head_configs(), bits=BITS)
def test_counts_every_element(solution: Solution, config: dict[str, Any], bits: int) -> None:
    expected = bytes_of(count_elements(config), bits)
    call = solution.call("kv_bytes_per_token", config, bits)
    call.equals(expected).leaves_arguments_alone()


@states(
    "elements of less than a byte are packed, and only the total is rounded up",
    "不足一字节的元素紧密排列，只对总数向上取整一次",
)
@pytest.mark.parametrize(
    ("layers", "bits", "expected"), [(1, 4, 1), (3, 4, 3), (1, 3, 1), (4, 3, 3), (5, 1, 2)]
)
def test_packs_small_elements(solution: Solution, layers: int, bits: int, expected: int) -> None:
    config = {"num_hidden_layers": layers, "hidden_size": 1, "num_attention_heads": 1}
    solution.call("kv_bytes_per_token", config, bits).equals(expected)


@states("MLA elements of less than a byte are packed too", "MLA 中不足一字节的元素同样紧密排列")
@pytest.mark.parametrize(("rank", "bits", "expected"), [(8, 1, 2), (7, 1, 1), (2, 3, 2), (4, 4, 3)])
def test_packs_small_latents(solution: Solution, rank: int, bits: int, expected: int) -> None:
    config = LLAMA_2_7B | {"num_hidden_layers": 1, "kv_lora_rank": rank, "qk_rope_head_dim": 1}
    solution.call("kv_bytes_per_token", config, bits).equals(expected)


@states("a request of no tokens holds no block", "0 个 token 的请求不占 block")
def test_no_tokens(solution: Solution) -> None:
    solution.call("kv_bytes_per_request", 100, 0, 16).equals(0)


@states(
    "a request holds one more block from the first token past a full one",
    "写满一个 block 之后的第一个 token 才占用新 block",
)
@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, 1600), (15, 1600), (16, 1600), (17, 3200), (32, 3200), (33, 4800)]
)
def test_block_boundaries(solution: Solution, tokens: int, expected: int) -> None:
    solution.call("kv_bytes_per_request", 100, tokens, 16).equals(expected)


@states(
    "4096 tokens of Llama-3-70B in bf16 take 1.25 GiB", "Llama-3-70B bf16 4096 token 占 1.25 GiB"
)
def test_a_request_of_llama_3_70b(solution: Solution) -> None:
    solution.call("kv_bytes_per_request", 327_680, 4096, 16).equals(1_342_177_280)
    solution.call("kv_bytes_per_request", 327_680, 4095, 16).equals(1_342_177_280)
    solution.call("kv_bytes_per_request", 327_680, 4097, 16).equals(1_347_420_160)


@states(
    "bytes per request agree with appending token after token",
    "每请求字节数与逐 token 追加的结果一致",
)
@given(
    bytes_per_token=st.integers(1, 9), num_tokens=st.integers(0, 40), block_size=st.integers(1, 9)
)
def test_appends_token_after_token(
    solution: Solution, bytes_per_token: int, num_tokens: int, block_size: int
) -> None:
    expected = blocks_of(num_tokens, block_size) * block_size * bytes_per_token
    solution.call("kv_bytes_per_request", bytes_per_token, num_tokens, block_size).equals(expected)


@states("bytes per request are exact beyond 2**53", "超过 2**53 的请求字节数仍然精确")
@given(bytes_per_token=st.integers(1, 10**18), blocks=st.integers(1, 10**18))
def test_exact_request_bytes(solution: Solution, bytes_per_token: int, blocks: int) -> None:
    tokens = 16 * blocks - 3
    expected = 16 * blocks * bytes_per_token
    solution.call("kv_bytes_per_request", bytes_per_token, tokens, 16).equals(expected)


@states(
    "45 GB hold 33 requests of 4096 tokens of Llama-3-70B; 45 GiB hold 36",
    "45 GB 能放 33 个 Llama-3-70B 的 4096 token 请求，45 GiB 能放 36 个",
)
def test_fits_of_llama_3_70b(solution: Solution) -> None:
    solution.call("max_requests", 45 * 10**9, 327_680, 4096, 16).equals(33)
    solution.call("max_requests", 45 * 2**30, 327_680, 4096, 16).equals(36)
    solution.call("max_requests", 1_342_177_280, 327_680, 4096, 16).equals(1)
    solution.call("max_requests", 1_342_177_279, 327_680, 4096, 16).equals(0)


@states(
    "the number that fits agrees with taking blocks from a pool",
    "能放下的请求数与逐个从 block 池分配的结果一致",
)
@given(tokens_per_request=st.integers(1, 12), **SMALL)
def test_takes_blocks_from_a_pool(
    solution: Solution,
    memory_bytes: int,
    bytes_per_token: int,
    tokens_per_request: int,
    block_size: int,
) -> None:
    pool = memory_bytes // (bytes_per_token * block_size)
    expected = admit_one_by_one(pool, 0, blocks_of(tokens_per_request, block_size))
    solution.call(
        "max_requests", memory_bytes, bytes_per_token, tokens_per_request, block_size
    ).equals(expected)


@states(
    "with any memory, the answer fits and one more does not, after few lines",
    "显存再大，答案恰好放得下、多一个就放不下，且只执行很少的行",
)
@given(memory_bytes=HUGE, extra=st.integers(0, 1))
@example(memory_bytes=10**30, extra=1)
def test_huge_memory(solution: Solution, memory_bytes: int, extra: int) -> None:
    # A whole number of requests, and one byte less than that: floats cannot tell them apart.
    request_bytes = 327_680 * 4096
    memory = memory_bytes // request_bytes * request_bytes + request_bytes - extra
    with solution.counting_lines() as lines:
        call = solution.call("max_requests", memory, 327_680, 4090, 16)
    call.equals(memory // request_bytes)
    solution.within("executed lines", lines.count, 1000, call)


@follow_up("max_requests_with_shared_prefix")
@states(
    "follow-up: only the prefix's full blocks are shared", "进阶：前缀里只有写满的 block 能共享"
)
@pytest.mark.parametrize(
    ("memory", "prefix", "tokens", "expected"),
    [
        (8 * 16, 0, 32, 4),  # nothing in common
        (8 * 16, 16, 32, 7),  # one shared block, one of its own for each
        (8 * 16, 15, 32, 4),  # the prefix fills no block
        (8 * 16, 15, 17, 4),  # each holds its own copy of the block that is not full
        (8 * 16, 31, 32, 7),
        (8 * 16, 32, 33, 6),
        (1 * 16, 16, 17, 0),  # the shared block fits, no request does
        (0, 160, 161, 0),  # not even the shared blocks fit
        (3 * 16, 160, 161, 0),
    ],
)
def test_shares_full_blocks(
    solution: Solution, memory: int, prefix: int, tokens: int, expected: int
) -> None:
    solution.call("max_requests_with_shared_prefix", memory, 1, prefix, tokens, 16).equals(expected)


@follow_up("max_requests_with_shared_prefix")
@states(
    "follow-up: sharing agrees with taking blocks from a pool",
    "进阶：共享前缀的结果与逐个分配 block 一致",
)
@given(prefix_tokens=st.integers(0, 12), own_tokens=st.integers(1, 6), **SMALL)
def test_shared_prefix_from_a_pool(
    solution: Solution,
    memory_bytes: int,
    bytes_per_token: int,
    prefix_tokens: int,
    own_tokens: int,
    block_size: int,
) -> None:
    pool = memory_bytes // (bytes_per_token * block_size)
    shared = prefix_tokens // block_size
    tokens = prefix_tokens + own_tokens
    expected = admit_one_by_one(pool, shared, blocks_of(tokens, block_size) - shared)
    solution.call(
        "max_requests_with_shared_prefix",
        memory_bytes,
        bytes_per_token,
        prefix_tokens,
        tokens,
        block_size,
    ).equals(expected)


@follow_up("max_requests_with_shared_prefix")
@states("follow-up: sharing is exact with any memory", "进阶：显存再大，共享前缀的结果仍然精确")
@given(requests=st.integers(1, 10**20), short=st.integers(0, 1))
def test_shared_prefix_in_huge_memory(solution: Solution, requests: int, short: int) -> None:
    # 1500 tokens of 2000 in common: 93 of 125 blocks are shared.
    block_bytes = 16 * 327_680
    memory = (93 + 32 * requests) * block_bytes - short
    with solution.counting_lines() as lines:
        call = solution.call("max_requests_with_shared_prefix", memory, 327_680, 1500, 2000, 16)
    call.equals(requests - short)
    solution.within("executed lines", lines.count, 1000, call)


@follow_up("kv_bytes_per_token_per_gpu")
@states(
    "follow-up: bytes per GPU of published models", "进阶：已发布模型在单张 GPU 上的每 token 字节数"
)
@pytest.mark.parametrize(
    ("config", "gpus", "expected"),
    [
        pytest.param(LLAMA_3_70B, 1, 327_680, id="Llama-3-70B on 1"),
        pytest.param(LLAMA_3_70B, 4, 81_920, id="Llama-3-70B on 4"),
        pytest.param(LLAMA_3_70B, 8, 40_960, id="Llama-3-70B on 8"),
        pytest.param(LLAMA_3_70B, 16, 40_960, id="Llama-3-70B on 16: heads are replicated"),
        pytest.param(GEMMA_2B, 8, 18_432, id="Gemma-2B on 8: MQA is replicated"),
        pytest.param(DEEPSEEK_V2, 1, 69_120, id="DeepSeek-V2 on 1"),
        pytest.param(DEEPSEEK_V2, 8, 69_120, id="DeepSeek-V2 on 8: the latent is replicated"),
        pytest.param(DEEPSEEK_V2, 3, 69_120, id="DeepSeek-V2 on 3"),
    ],
)
def test_bytes_per_gpu(
    solution: Solution, config: dict[str, Any], gpus: int, expected: int
) -> None:
    call = solution.call("kv_bytes_per_token_per_gpu", dict(config), 16, gpus)
    call.equals(expected).leaves_arguments_alone()


@follow_up("kv_bytes_per_token_per_gpu")
@states(
    "follow-up: each GPU's heads are counted, and an uneven layout is refused",
    "进阶：逐张 GPU 数头；无法均匀切分时报错",
)
@given(config=head_configs(), bits=BITS, gpus=st.integers(1, 7))
def test_heads_on_each_gpu(
    solution: Solution, config: dict[str, Any], bits: int, gpus: int
) -> None:
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    call = solution.call("kv_bytes_per_token_per_gpu", config, bits, gpus)
    if heads % gpus and gpus % heads:
        call.raises(ValueError)
        return
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    # Slot s of the cluster holds head s * heads // slots, as ranks are laid out in practice.
    slots = max(heads, gpus)
    on_first_gpu = {slot * heads // slots for slot in range(slots // gpus)}
    one = config | {"num_key_value_heads": len(on_first_gpu), "head_dim": head_dim}
    call.equals(bytes_of(count_elements(one), bits)).leaves_arguments_alone()
