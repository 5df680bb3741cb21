"""Numbers that could be computed are found in prose, and what the question gives is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.hooks.lint import lint, typed_numbers
from tests.docs.page_helpers import page


@pytest.mark.parametrize(
    "text",
    [
        "It takes 1.34 GB.",
        "It is 37 % faster, or 4.2x.",
        "KV Cache 占 320 KiB。",
        "that is 2,700 tokens",
        "吞吐提升 24 倍",
        "a batch of 153 requests",
        "in 30 ms",
        "0.5 of it",
        "about 175 requests fit",
        "1,342,177,280 bytes",
        "a 900 ms step",
        "a 153 GB pool",
        "A 24 倍",
        "the kernel 3.5 ms",
        "Python 12.5 ms",
        "deadlines 300 ms",
        "it isn't 3.5 ms",
        "in 2000 ms",
        "a page 24 % full",
        "批次 3.5 毫秒",
        "80 GB/s",
        "uses 4096 bytes/s",
        "2048 字节/秒",
        "500K tokens/s",
        "900K req/s",
        "OPT 30 % faster",
    ],
)
def test_a_computed_number_is_found(text: str) -> None:
    assert typed_numbers(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "Llama-3-70B in FP16 on an H100 with 80 GB, a context of 4K, batch 32, block size 16",
        "vLLM 0.11.0 (2025), arXiv 2309.06180, section 4.3, figure 12, algorithm 1",
        "Qwen2.5-7B, DeepSeek-V3, SmolLM2-135M, GPT-4, A100, L40S, sm_90, gfx942, RTX 4090",
        "INT4, W8A8, E4M3, NVFP4, 4-bit and 8 bits, two of them, 16 layers",
        "`13.4 GB` and [a link](https://x.y/1234.5/678) and <https://a.b/9.9>",
        "{{ K4.kv_gb:.2f }} GB of {{ calc: 3.5 * 1000 :.1f }}",
        "a prompt of 4096 tokens, then 1,024 more; head_dim 128",
        "块大小为 16，128K 上下文，7B 模型，第 3.2 节，2 倍",
        "HTTP 429, a 128 GiB host, PCIe 5.0, CUDA 12.8, Python 3.11",
        "12. a numbered line",
        "on 2026-11-30",
    ],
)
def test_what_a_question_gives_is_left(text: str) -> None:
    assert typed_numbers(text) == []


# Before a number these are an article, a name or a place; none makes a quantity of it a name.
BEFORE = (
    "", "a ", "A ", "b ", "the kernel ", "Python ", "vLLM ", "v ", "Llama ", "isn't ", "deadlines ",
    "line ", "in figure ", "page ", "a batch of ", "status ", "批次 ", "表 ", "RTX ", "GB ",
)  # fmt: skip


@given(
    st.sampled_from(BEFORE),
    st.decimals(min_value=0, max_value=10**6, places=2),
    st.sampled_from(["GB", "%", "ms", "倍"]),
)
def test_no_decimal_with_a_unit_slips_through(before: str, number: object, unit: str) -> None:
    assert typed_numbers(f"takes {before}{number} {unit} of it") != []


@given(
    st.sampled_from(BEFORE), st.integers(100, 10**6), st.sampled_from(["GB/s", "%", "ms", "毫秒"])
)
def test_no_large_number_with_a_unit_slips_through(before: str, number: int, unit: str) -> None:
    assert typed_numbers(f"takes {before}{number} {unit} of it") != []


@given(st.integers(0, 16))
def test_small_counts_are_words_like_others(count: int) -> None:
    assert typed_numbers(f"{count} of them") == []


def test_a_formula_may_hold_what_is_given_and_not_what_comes_out() -> None:
    assert typed_numbers(r"2 \cdot 80 \cdot 8 \cdot 4096 \cdot 200", is_math=True) == []
    assert typed_numbers("= 1.25", is_math=True) != []


def test_code_sources_and_markers_are_not_read() -> None:
    body = (
        "```python\nx = 1.5\n```\n<!-- run paged-memory -->\n"
        "## Sources\n- figure of 1.5 GB\n## Next\n1.5 GB\n$$\n2.5\n$$\n```mermaid\nA[3.5 GB]\n```"
    )
    assert [fault.line for fault in lint(page(body))] == [8, 10, 13]
