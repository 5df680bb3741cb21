"""Moving a scale of inputs into whatever makes them, so that it costs nothing at run time.

Answers "where does the division of SmoothQuant and AWQ go?". Behind an RMSNorm into its weight;
behind another linear layer, when nothing but products lies between, into its rows: values to the
output projection (attention mixes tokens, never channels), and up to down (SwiGLU multiplies by
gate, channel by channel).
"""

from __future__ import annotations

import torch

from infra_lab.errors import UsageError


def fold_into_norm(norm: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight (or the bias) of a norm whose output must be divided by `scales`, [features]."""
    _require_as_many(norm.shape[0], scales)
    return norm / scales


def fold_into_rows(
    weight: torch.Tensor, bias: torch.Tensor | None, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight [out, in] and bias [out] of a layer whose output must be divided by `scales`."""
    _require_as_many(weight.shape[0], scales)
    return weight / scales[:, None], None if bias is None else bias / scales


def shared_by_query_heads(
    scales: torch.Tensor, num_kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of the output projection's inputs, [query heads * head_dim], that a value head can
    take over: heads that read one value head get the geometric mean of theirs.

    Returns them, and what the rows of the value projection are divided by [kv heads * head_dim].
    Raises UsageError unless query heads are a multiple of the KV heads.
    """
    if scales.numel() % (num_kv_heads * head_dim):
        raise UsageError(
            f"{scales.numel()} inputs are no multiple of {num_kv_heads} KV heads of {head_dim}"
        )
    by_head = scales.view(num_kv_heads, -1, head_dim)
    shared = by_head.log().mean(1, keepdim=True).exp()
    return shared.expand_as(by_head).flatten(), shared.flatten()


def _require_as_many(features: int, scales: torch.Tensor) -> None:
    if scales.shape != (features,):
        raise UsageError(f"{features} features cannot be divided by {list(scales.shape)} scales")
