"""Rotations that spread outliers over all channels: random Hadamard, or any random orthogonal.

Answers "how can a rotation help, when the model must stay the same?" (QuIP, QuaRot, SpinQuant). A
large number in one channel of a token of norm r is r / sqrt(n) in every channel of the rotated
one, and weights likewise: mu, the largest times sqrt(n) over the norm, falls from up to sqrt(n)
to about sqrt(2 log n) (incoherence). RMSNorm without a weight commutes with it, so the rotation of
the residual stream disappears into the matrices on both of its sides (rotated_checkpoint.py).

Hadamard's matrices (of +-1, H H^T = n I) need n log n additions. They exist for 1, 2 and, as far
as anybody knows, all multiples of 4; here for n = K 2^m with a K of Paley's two constructions: q+1
for a prime q = 3 mod 4, and 2 (q+1) for a prime q = 1 mod 4. For other n: a random orthogonal one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from infra_lab.errors import UsageError

LARGEST_PALEY = 512  # beyond, the product with K's dense matrix is no longer the smaller part


class Rotation(Protocol):
    """An orthogonal matrix Q [n, n]."""

    @property
    def n(self) -> int: ...

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x Q, of the last dimension, in the type of x (fp32 or fp64)."""
        ...


@dataclass(frozen=True)
class RandomHadamard:
    """Q = diag(signs) H / sqrt(n), with random signs.

    Attributes:
        signs: fp64 [n] of +-1.
        paley: fp64 [K, K], Hadamard's matrix of the part of n that is no power of two.
    """

    signs: torch.Tensor
    paley: torch.Tensor

    @property
    def n(self) -> int:
        return self.signs.numel()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        k = self.paley.shape[0]
        x = (x * self.signs.to(x)).view(*x.shape[:-1], k, self.n // k)
        x = _walsh_hadamard(x)
        if k > 1:
            x = torch.einsum("...km,kl->...lm", x, self.paley.to(x))
        return x.flatten(-2) / math.sqrt(self.n)


@dataclass(frozen=True)
class RandomOrthogonal:
    """Any Q, dense: the fallback where no Hadamard matrix is known here."""

    matrix: torch.Tensor

    @property
    def n(self) -> int:
        return self.matrix.shape[0]

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix.to(x)


def random_rotation(n: int, generator: torch.Generator) -> Rotation:
    """A random Hadamard rotation of n channels if there is one, else a random orthogonal one
    (uniform: the QR decomposition of a normal matrix, with the signs of R's diagonal)."""
    if n < 1:
        raise UsageError(f"a rotation has at least 1 channel, not {n}")
    paley = hadamard_part(n)
    if paley is not None:
        signs = torch.randint(2, (n,), generator=generator) * 2 - 1
        return RandomHadamard(signs.double(), paley)
    q, r = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    return RandomOrthogonal(q * r.diagonal().sign())


def hadamard_matrix(n: int) -> torch.Tensor:
    """fp64 [n, n] of +-1 with H H^T = n I. Raises UsageError where none is known here."""
    paley = hadamard_part(n)
    if paley is None:
        raise UsageError(
            f"no Hadamard matrix of {n} is known here: n must be K * 2^m, K = 1 or of Paley's "
            "constructions"
        )
    return torch.kron(paley, _walsh_hadamard(torch.eye(n // len(paley), dtype=torch.float64)))


def hadamard_part(n: int) -> torch.Tensor | None:
    """Hadamard's matrix, fp64 [K, K], of the smallest K with n = K 2^m, or None."""
    power = n & -n
    if power == n:
        return torch.ones(1, 1, dtype=torch.float64)
    odd = n // power
    for k in (odd * 2**m for m in range(2, power.bit_length())):
        if k > LARGEST_PALEY:
            break
        if (k - 1) % 4 == 3 and _is_prime(k - 1):
            return _paley_one(k - 1)
        if (k // 2 - 1) % 4 == 1 and _is_prime(k // 2 - 1):
            return _paley_two(k // 2 - 1)
    return None


def incoherence(matrix: torch.Tensor) -> float:
    """mu: the largest magnitude times sqrt(number of elements) over the norm; 1 if all are equal,
    sqrt(number) if all but one are zero (QuIP, definition 1)."""
    norm = float(matrix.double().norm())
    if norm == 0:
        return 1.0
    return float(matrix.double().abs().max()) * math.sqrt(matrix.numel()) / norm


def _walsh_hadamard(x: torch.Tensor) -> torch.Tensor:
    """x times Sylvester's matrix of the last dimension, a power of two."""
    n, width = x.shape[-1], 1
    while width < n:
        pairs = x.reshape(*x.shape[:-1], n // (2 * width), 2, width)
        first, second = pairs.unbind(-2)
        x = torch.stack((first + second, first - second), -2).flatten(-3)
        width *= 2
    return x


def _is_prime(q: int) -> bool:
    return q > 1 and all(q % divisor for divisor in range(2, math.isqrt(q) + 1))


def _jacobsthal(q: int) -> torch.Tensor:
    """[q, q]: of i - j, 1 for a square modulo the prime q, -1 for none, 0 for 0."""
    character = torch.full((q,), -1.0, dtype=torch.float64)
    numbers = torch.arange(q)
    character[numbers * numbers % q] = 1.0
    character[0] = 0.0
    return character[(numbers[:, None] - numbers) % q]


def _paley_one(q: int) -> torch.Tensor:
    """Of q + 1, q = 3 mod 4: I + the skew matrix [[0, 1], [-1, Jacobsthal]]."""
    matrix = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    matrix[0, 1:] = 1
    matrix[1:, 0] = -1
    matrix[1:, 1:] = _jacobsthal(q)
    return matrix + torch.eye(q + 1, dtype=torch.float64)


def _paley_two(q: int) -> torch.Tensor:
    """Of 2 (q + 1), q = 1 mod 4: C x [[1, 1], [1, -1]] + I x [[1, -1], [-1, -1]], with the
    symmetric matrix C = [[0, 1], [1, Jacobsthal]]."""
    conference = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    conference[0, 1:] = conference[1:, 0] = 1
    conference[1:, 1:] = _jacobsthal(q)
    off = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    on = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(conference, off) + torch.kron(torch.eye(q + 1, dtype=torch.float64), on)
