"""What the tests of flash attention share: inputs that break it, and truths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from kernels.flash_attention import flash_attention_reference

# Around tiles of 32, 64 and 128; one token; more queries than keys and the other way round.
LENGTHS = [(1, 1), (5, 2), (1, 147), (33, 64), (64, 33), (113, 203), (128, 217), (130, 65)]
WIDE_LENGTHS = [*LENGTHS, (113, 211), (108, 256), (256, 512), (512, 256), (1, 239), (3, 799),
                (127, 513), (300, 301)]  # fmt: skip
HEAD_DIMS = [16, 40, 59, 64, 80, 96, 111, 128]
WIDE_HEAD_DIMS = [1, 7, *HEAD_DIMS, 160, 192, 256]
HEADS = [(1, 1), (2, 2), (3, 1)]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDE_HEADS = [*HEADS, (4, 2), (5, 1)]


def tensor_of(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    device: str = "cpu",
    *,
    padding: int = 0,
) -> torch.Tensor:
    """Normal values; with `padding`, a buffer that is NaN behind all dimensions but the first."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    sizes = [shape[0], *(size + padding for size in shape[1:])]
    buffer = torch.full(sizes, float("nan"), dtype=dtype, device=device)
    view = buffer[tuple(slice(0, size) for size in shape)]
    view.copy_(values)
    return view


@dataclass(frozen=True)
class AttentionInputs:
    """A call: shapes, options, and the seed of the numbers."""

    batch: int
    lengths: tuple[int, int]
    heads: tuple[int, int]
    head_dim: int
    dtype: torch.dtype
    seed: int
    padding: int
    options: dict[str, Any] = field(default_factory=dict)

    def tiny_of(self, truth: torch.Tensor, least: float = 0.0) -> float | None:
        """What is allowed beside torch's error, at least `least`; None for the usual."""
        largest = truth.abs().max().item() if truth.numel() else 0.0
        exact = self.dtype == torch.float32
        usual = (4.0 if exact else 0.5) * largest * torch.finfo(self.dtype).eps
        return least if least > usual else None

    def tensors(self, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v, and a gradient for the result."""
        (query_len, key_len), (heads, kv_heads) = self.lengths, self.heads
        query = (self.batch, query_len, heads, self.head_dim)
        key = (self.batch, key_len, kv_heads, self.head_dim)
        shapes = (query, key, key, query)
        q, k, v, d_out = (
            tensor_of(shape, self.dtype, self.seed + place, device, padding=self.padding)
            for place, shape in enumerate(shapes)
        )
        return q, k, v, d_out


def inputs(
    lengths: list[tuple[int, int]] = LENGTHS,
    head_dims: list[int] = HEAD_DIMS,
    heads: list[tuple[int, int]] = HEADS,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> st.SearchStrategy[AttentionInputs]:
    options = st.fixed_dictionaries(
        {},
        optional={
            "scale": st.sampled_from([-0.2, 0.0, 0.5]),
            "softcap": st.sampled_from([1.0, 30.0]),
        },
    )
    masks = st.one_of(
        st.just({}),
        st.just({"causal": True}),
        st.sampled_from([1, 7, 64, 150]).map(lambda window: {"causal": True, "window": window}),
    )
    return st.builds(
        AttentionInputs,
        batch=st.sampled_from([1, 2]),
        lengths=st.sampled_from(lengths),
        heads=st.sampled_from(heads),
        head_dim=st.sampled_from(head_dims),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**31),
        padding=st.sampled_from([0, 8, 3]),
        options=st.builds(lambda a, b: {**a, **b}, options, masks),
    )


def references(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Result, LSE, dq, dk and dv by plain torch: in float64, and in the dtype of the inputs."""
    found = []
    for dtype in (torch.float64, q.dtype):
        # On the CPU, whose float32 is whole.
        leaves = [tensor.detach().cpu().to(dtype).requires_grad_() for tensor in (q, k, v)]
        out, lse = flash_attention_reference(*leaves, **options)
        gradients = torch.autograd.grad(out, leaves, d_out.cpu().to(dtype))
        found.append([out.detach(), lse, *gradients])
    return found[0], found[1]


def starts_of(lengths: list[int], first: int = 0, device: str = "cpu") -> torch.Tensor:
    """int32 start offsets of sequences that follow each other from token `first`."""
    return torch.tensor([first, *lengths]).cumsum(0).int().to(device)
