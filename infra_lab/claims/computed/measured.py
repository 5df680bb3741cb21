"""Measurements that others published and several claims are held against, each with its source."""

from __future__ import annotations

from infra_lab.claims.claim import Numbers

# vLLM paper (arXiv 2309.06180), section 1: share of the KV memory that held tokens, before vLLM.
LEAST_USED, MOST_USED = 0.204, 0.382

# The same, figure 13a: requests batched at once, OPT-13B on an A100 of 40 GB, ShareGPT.
BATCHED_VLLM = 30.42
BATCHED_ORCA_MAX, BATCHED_ORCA_POW2, BATCHED_ORCA_ORACLE = 7.00, 9.81, 13.62

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
