"""Decoder layers split over ranks as Megatron-LM splits them, all ranks in one process.

Column-split projections, row-split ones behind them, and between both nothing to send: each half
of a layer begins with the operator f (forward nothing, backward an all-reduce) and ends with g
(forward an all-reduce, backward nothing). Every product is really computed in shards, and every
all-reduce goes round a ring, whose hops are counted. Source: arXiv 1909.08053, section 3, and
2104.04473, section 2.3. torch is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Of a Llama-like decoder: grouped queries and a gated MLP."""

    num_layers: int = 3
    hidden_size: int = 96
    intermediate_size: int = 192
    num_query_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 12


@dataclass(slots=True)
class Ring:
    """All-reduces among ranks, counted; `sent` numbers went out of each rank so far.

    skipped: how many of the next forward ones are left out, to see what they are for.
    """

    num_ranks: int
    forward: int = 0
    backward: int = 0
    sent: int = 0
    skipped: set[int] = field(default_factory=set)

    def all_reduce(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The sum, in every rank: reduce-scatter, then all-gather, a chunk a hop."""
        import torch

        ranks = self.num_ranks
        chunks = [list(torch.tensor_split(part.reshape(-1), ranks)) for part in parts]
        for hop in range(ranks - 1):  # chunk r - hop of rank r goes to the next, which adds it
            moving = [chunks[rank][(rank - hop) % ranks] for rank in range(ranks)]
            for rank, chunk in enumerate(moving):
                at = (rank - hop) % ranks
                chunks[(rank + 1) % ranks][at] = chunks[(rank + 1) % ranks][at] + chunk
            self.sent += moving[0].numel()
        for hop in range(ranks - 1):  # rank r has all of chunk r + 1 now and passes it on
            moving = [chunks[rank][(rank + 1 - hop) % ranks] for rank in range(ranks)]
            for rank, chunk in enumerate(moving):
                chunks[(rank + 1) % ranks][(rank + 1 - hop) % ranks] = chunk
            self.sent += moving[0].numel()
        return [torch.cat(one).reshape(parts[0].shape) for one in chunks]


def copy_to_ranks(ring: Ring, value: Tensor) -> Sequence[Tensor]:
    """Megatron's f: each rank reads the same value; their gradients are summed."""
    import torch

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, shared: Tensor) -> Any:
            return tuple(shared.clone() for _ in range(ring.num_ranks))

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            ring.backward += 1
            return ring.all_reduce(gradients)[0]

    copies: Sequence[Tensor] = Copy.apply(value)  # type: ignore[no-untyped-call]
    return copies


def reduce_from_ranks(ring: Ring, parts: Sequence[Tensor]) -> Tensor:
    """Megatron's g: the sum of the ranks' parts; each gets its gradient as it is."""
    import torch

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *shares: Tensor) -> Any:
            ring.forward += 1
            if ring.forward in ring.skipped:
                return shares[0] * ring.num_ranks  # a rank that hears nothing of the others
            return ring.all_reduce(shares)[0]

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return tuple(gradient for _ in range(ring.num_ranks))

    total: Tensor = Reduce.apply(*parts)  # type: ignore[no-untyped-call]
    return total


def random_layers(shape: LayerShape, seed: int) -> list[dict[str, Tensor]]:
    """Weights in float64, [out, in], scaled so that activations keep their size."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    queries = shape.num_query_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    sizes = {
        "q": (queries, shape.hidden_size),
        "k": (keys, shape.hidden_size),
        "v": (keys, shape.hidden_size),
        "o": (shape.hidden_size, queries),
        "gate": (shape.intermediate_size, shape.hidden_size),
        "up": (shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
    }
    return [
        {
            name: (
                torch.randn(size, generator=generator, dtype=torch.float64) / size[1] ** 0.5
            ).requires_grad_()
            for name, size in sizes.items()
        }
        for _ in range(shape.num_layers)
    ]


def forward(
    layers: Sequence[dict[str, Tensor]], shape: LayerShape, hidden: Tensor, ring: Ring
) -> Tensor:
    """hidden: [tokens, hidden_size]. One rank is the model unsplit, and its ring counts nothing
    that is sent. Ranks must divide the heads."""
    for weights in layers:
        hidden = hidden + _half(weights, hidden, ring, "qkv", "o", lambda one: _attend(one, shape))
        hidden = hidden + _half(weights, hidden, ring, "gate up", "down", _gated)
    return hidden


def _half(
    weights: dict[str, Tensor], hidden: Tensor, ring: Ring, before: str, after: str, middle: Any
) -> Tensor:
    """Norm, column-split products, what lies between, a row-split product, the sum."""
    names = before.split() if " " in before else list(before)
    ranks = ring.num_ranks
    normed = hidden / hidden.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    parts = []
    for rank, own in enumerate(copy_to_ranks(ring, normed)):
        products = [own @ weights[name].chunk(ranks, 0)[rank].T for name in names]
        parts.append(middle(products) @ weights[after].chunk(ranks, 1)[rank].T)
    return reduce_from_ranks(ring, parts)


def _attend(products: Sequence[Tensor], shape: LayerShape) -> Tensor:
    """Causal attention of a rank's own heads, which need nothing of the other ranks."""
    import torch

    queries, keys, values = (one.view(len(one), -1, shape.head_dim) for one in products)
    group = shape.num_query_heads // shape.num_kv_heads
    keys, values = (one.repeat_interleave(group, 1) for one in (keys, values))
    scores = torch.einsum("ihd,jhd->hij", queries, keys) / shape.head_dim**0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    shares = scores.masked_fill(mask, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", shares, values).flatten(1)


def _gated(products: Sequence[Tensor]) -> Tensor:
    import torch

    gate, up = products
    return torch.nn.functional.silu(gate) * up
