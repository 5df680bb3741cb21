"""SwiGLU's elementwise half: silu(gate) * up (Shazeer 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [num_tokens, 2 * size], gate first -> [num_tokens, size].

    The gate half of `gate_up` is overwritten: one buffer less in a step's working set.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True) * up
