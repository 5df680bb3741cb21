"""Measurements that others published and several claims are held against, each with its source."""

from __future__ import annotations

from infra_lab.claims.claim import Numbers

# vLLM paper (arXiv 2309.06180), section 1: share of the KV memory that held tokens, before vLLM.
LEAST_USED, MOST_USED = 0.204, 0.382

# The same, figure 13a: requests batched at once, OPT-13B on an A100 of 40 GB, ShareGPT.
BATCHED_VLLM = 30.42
BATCHED_ORCA_MAX, BATCHED_ORCA_POW2, BATCHED_ORCA_ORACLE = 7.00, 9.81, 13.62

# The same, section 6.3 and figure 15: share of the KV memory that sharing saved, OPT-13B, by the
# samples or the beam's width.
SAMPLE_SAVING_ALPACA = {2: 0.0609, 4: 0.0853, 6: 0.0979}
SAMPLE_SAVING_SHAREGPT = (0.162, 0.305)  # of 2 and of 6 samples
BEAM_SAVING_ALPACA = {2: 0.3756, 4: 0.5313, 6: 0.5516}

# FlashAttention (arXiv 2205.14135), figure 2: GFLOPs of standard attention, and of its own with
# what it computes again.
ATTENTION_GFLOP, FLASH_ATTENTION_GFLOP = 66.6, 75.2

# gpt-fast README @32971d3, A100 of 80 GB, batch 1, tokens a second.
LLAMA_7B_BF16, LLAMA_7B_INT8, LLAMA_7B_INT4 = 104.9, 155.6, 196.8
LLAMA_70B_INT4, LLAMA_70B_INT4_SPECULATIVE = 25.25, 48.4

# The same: Llama-2-70B in bf16, milliseconds a token by the number of A100.
LLAMA_70B_MS = {2: 46.9, 4: 26.3, 8: 16.0}


def wasted() -> Numbers:
    """Shares of the KV memory that reservations wasted, at least and at most."""
    return {"least": 1 - MOST_USED, "most": 1 - LEAST_USED}


def concurrency() -> Numbers:
    """Requests at once over Orca's: against its best variant, and against its worst."""
    return {
        "least": BATCHED_VLLM / BATCHED_ORCA_ORACLE,
        "most": BATCHED_VLLM / BATCHED_ORCA_MAX,
    }
