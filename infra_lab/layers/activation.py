"""SwiGLU's elementwise half: silu(gate) * up (Shazeer 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from infra_lab.kernels_guard import kernels_serve
from infra_lab.layers import triton_ops
from infra_lab.native import library, ops


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [num_tokens, 2 * size], gate first, each row contiguous -> [num_tokens, size].

    `gate_up` may be overwritten: one buffer less in a step's working set.
    """
    if library.serves(gate_up):
        return ops.silu_and_mul(gate_up)
    if kernels_serve(gate_up):
        return triton_ops.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True) * up
