"""When is a kernel's result good enough? When it is as near the truth as plain torch.

The rule of the FlashAttention tests: the largest error against a float64 reference may be twice
that of plain torch in the kernel's own dtype, plus a little for results that torch happens to
get exactly.
"""

from __future__ import annotations

import torch


def assert_as_accurate_as_torch(
    out: torch.Tensor,
    truth: torch.Tensor,
    same_dtype: torch.Tensor,
    *,
    factor: float = 2.0,
    tiny: float | None = None,
) -> None:
    """|out - truth| <= factor * max |same_dtype - truth| + tiny; NaN and infinities in place.

    truth: float64. same_dtype: the reference in the dtype of `out`. tiny, unless given: half a
    unit in the last place of the largest finite truth, for a result that is computed in fp32
    and rounded once; four units in fp32, where every operation rounds, and where torch may by
    chance have been luckier with few elements.
    """
    assert truth.dtype == torch.float64, f"the truth is {truth.dtype}, wanted float64"
    assert out.dtype == same_dtype.dtype, f"{out.dtype} beside {same_dtype.dtype}"
    assert out.shape == truth.shape == same_dtype.shape, (
        f"shapes: out {tuple(out.shape)}, truth {tuple(truth.shape)}, "
        f"torch {tuple(same_dtype.shape)}"
    )
    result, wanted = out.detach().double().cpu(), truth.detach().cpu()
    rounded = wanted.to(out.dtype).double()  # beyond the dtype's range infinity is right
    for kind, name in ((torch.isnan, "NaN"), (torch.isposinf, "+inf"), (torch.isneginf, "-inf")):
        _assert_same_places(kind(result), kind(rounded), name)
    finite = rounded.isfinite()
    if not finite.any():
        return
    peer = same_dtype.detach().double().cpu()
    torch_error = (
        (peer - wanted)[finite & peer.isfinite()].abs().max().item()
        if (finite & peer.isfinite()).any()
        else 0.0
    )
    if tiny is None:
        units = 4 if out.dtype == torch.float32 else 0.5
        tiny = units * wanted[finite].abs().max().item() * torch.finfo(out.dtype).eps
        tiny = max(tiny, torch.finfo(out.dtype).smallest_normal)
    error = torch.where(finite, (result - wanted).abs(), 0.0)
    worst = int(error.argmax())
    limit = factor * torch_error + tiny
    assert error.reshape(-1)[worst] <= limit, (
        f"error {error.reshape(-1)[worst]:.3g} at {_place(worst, error.shape)} "
        f"({result.reshape(-1)[worst]:.9g} for {wanted.reshape(-1)[worst]:.9g}); torch in "
        f"{out.dtype} errs by {torch_error:.3g}, so at most {limit:.3g} is allowed"
    )


def _assert_same_places(got: torch.Tensor, wanted: torch.Tensor, name: str) -> None:
    wrong = got != wanted
    if wrong.any():
        first = int(wrong.reshape(-1).int().argmax())
        raise AssertionError(
            f"{name} in the wrong places: {int(wrong.sum())} of {wrong.numel()}, the first at "
            f"{_place(first, wrong.shape)} ({'too much' if got.reshape(-1)[first] else 'missing'})"
        )


def _place(index: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(axis) for axis in torch.unravel_index(torch.tensor(index), shape))
