"""Attention's FLOPs and its traffic with HBM: standard against tiled, counted element by element.

Answers "why is FlashAttention faster with the same FLOPs?" and corrects the usual slip: the traffic
is Theta(N^2 d^2 / M), not O(N^2 / M), so that it stays quadratic in N, and pays only while
M > d^2. Dao et al. 2022, arXiv 2205.14135, theorem 2; M counts elements. One head, one sequence.
"""

from __future__ import annotations

from math import ceil

from infra_lab.calculators.checks import require_count


def attention_head_flops(num_tokens: int, head_dim: int, causal: bool = False) -> int:
    """Scores and weighted values, 2 N^2 d each; causal keeps N (N + 1) / 2 of the N^2 pairs."""
    require_count("num_tokens", num_tokens)
    require_count("head_dim", head_dim)
    pairs = num_tokens * (num_tokens + 1) // 2 if causal else num_tokens**2
    return 4 * pairs * head_dim


def standard_io_elements(num_tokens: int, head_dim: int) -> int:
    """Elements that standard attention moves: read Q, K; write S; read S; write P; read P, V;
    write O. 4 N d + 4 N^2."""
    require_count("num_tokens", num_tokens)
    require_count("head_dim", head_dim)
    return 4 * num_tokens * head_dim + 4 * num_tokens**2


def tiled_io_elements(num_tokens: int, head_dim: int, query_rows: int) -> int:
    """Elements that FlashAttention-2's order moves: each block of `query_rows` queries is read once
    and its output written once, and reads all keys and values. 2 N d + ceil(N / Br) 2 N d.

    The row's logarithm of the sum, which only a backward pass reads, is N more and left out.
    """
    require_count("query_rows", query_rows)
    require_count("num_tokens", num_tokens)
    require_count("head_dim", head_dim)
    blocks = ceil(num_tokens / query_rows)
    return 2 * num_tokens * head_dim + blocks * 2 * num_tokens * head_dim


def first_version_io_elements(num_tokens: int, head_dim: int, key_rows: int) -> int:
    """FlashAttention-1's order, keys and values outside: they are read once, and for every block
    of them Q is read, O read and written, and so are the two statistics of a row.

    2 N d + ceil(N / Bc) (3 N d + 4 N), algorithm 1 of the paper.
    """
    require_count("key_rows", key_rows)
    require_count("num_tokens", num_tokens)
    require_count("head_dim", head_dim)
    blocks = ceil(num_tokens / key_rows)
    return 2 * num_tokens * head_dim + blocks * (3 * num_tokens * head_dim + 4 * num_tokens)


def block_rows(sram_elements: int, head_dim: int) -> tuple[int, int]:
    """(Br, Bc) of algorithm 1: Bc = ceil(M / 4d), Br = min(Bc, d)."""
    require_count("sram_elements", sram_elements)
    require_count("head_dim", head_dim)
    key_rows = ceil(sram_elements / (4 * head_dim))
    return min(key_rows, head_dim), key_rows


def theorem_2_elements(num_tokens: int, head_dim: int, sram_elements: int) -> float:
    """N^2 d^2 / M, without the constant that Theta hides; for d <= M <= N d."""
    require_count("num_tokens", num_tokens)
    require_count("head_dim", head_dim)
    require_count("sram_elements", sram_elements)
    return num_tokens**2 * head_dim**2 / sram_elements


def theorem_2_gain(head_dim: int, sram_elements: int) -> float:
    """N^2 over that: M / d^2. Below 1, tiling moves more than the standard way."""
    require_count("head_dim", head_dim)
    require_count("sram_elements", sram_elements)
    return sram_elements / head_dim**2


def score_matrices_bytes(
    num_tokens: int, num_heads: int = 1, num_matrices: int = 2, bytes_per_element: float = 2
) -> float:
    """S and P of one layer as standard attention stores them: heads x 2 x N^2 elements."""
    require_count("num_tokens", num_tokens)
    require_count("num_heads", num_heads)
    require_count("num_matrices", num_matrices)
    return num_heads * num_matrices * num_tokens**2 * bytes_per_element
