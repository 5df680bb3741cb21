"""What calibration knows of a linear layer's input: H = 2/n X^T X, and what it says of an error.

Answers "what does GPTQ minimise?". Rounding W to Q changes the outputs of n inputs X by
|X (W - Q)^T|^2 = n/2 tr((W - Q) H (W - Q)^T): the proxy loss (QuIP, equation 1). So H, in_features
squared whatever n is, stands for all of the calibration text; GPTQ, LDLQ and AWQ need no more.
"""

from __future__ import annotations

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight

DAMPING_GROWTH = 2.0
SMALLEST_DAMPING = 1e-4


class InputStatistics:
    """Of all inputs that were added: H, and of each column the largest and the mean magnitude.

    Products are made in the type of the inputs (fp32 or fp64) and summed in fp64: so the order of
    batches matters to the last bits of fp32 only.
    """

    def __init__(self, in_features: int, device: torch.device | None = None) -> None:
        self.count = 0
        self._products = torch.zeros(in_features, in_features, dtype=torch.float64, device=device)
        self._magnitudes = torch.zeros(in_features, dtype=torch.float64, device=device)
        self.max_magnitude = torch.zeros(in_features, device=device)

    def add(self, inputs: torch.Tensor) -> None:
        """inputs: [..., in_features]. Raises UsageError for numbers that are not finite."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        rows = rows if rows.dtype == torch.float64 else rows.float()
        if not rows.isfinite().all():
            raise UsageError(
                "the inputs of a layer are not finite during calibration: the model is damaged, or "
                "its type is too small (try --dtype float32)"
            )
        self.count += rows.shape[0]
        self._products += rows.T @ rows
        magnitudes = rows.abs()
        self._magnitudes += magnitudes.sum(0, dtype=torch.float64)
        if rows.shape[0]:
            self.max_magnitude = torch.maximum(self.max_magnitude, magnitudes.amax(0).float())

    @property
    def hessian(self) -> torch.Tensor:
        """2/n X^T X, fp64 [in_features, in_features]."""
        return self._products * (2 / self._counted())

    @property
    def mean_magnitude(self) -> torch.Tensor:
        """Mean |x| of each column, fp32."""
        return (self._magnitudes / self._counted()).float()

    def _counted(self) -> int:
        if self.count == 0:
            raise UsageError("no input was seen during calibration: give a longer text")
        return self.count


def proxy_loss(
    weight: torch.Tensor, quantized: QuantizedWeight | torch.Tensor, hessian: torch.Tensor
) -> float:
    """tr((W - Q) H (W - Q)^T) in fp64: twice the mean squared error of an output, summed over
    the outputs."""
    if isinstance(quantized, QuantizedWeight):
        quantized = quantized.dequantize()
    error = weight.double() - quantized.double()
    return float(((error @ hessian.double()) * error).sum())


def require_hessian(hessian: torch.Tensor, in_features: int) -> torch.Tensor:
    """H in fp64, exactly symmetric. Raises UsageError for what cannot be one."""
    if hessian.shape != (in_features, in_features):
        raise UsageError(
            f"the Hessian of {in_features} inputs is {in_features} x {in_features}, not "
            f"{list(hessian.shape)}"
        )
    hessian = hessian.double()
    if not hessian.isfinite().all():
        raise UsageError("the Hessian is not finite: the calibration inputs overflowed")
    if (hessian.diagonal() < 0).any():
        raise UsageError("the Hessian has negative numbers on its diagonal: it is no X^T X")
    return (hessian + hessian.T) / 2


def damped(hessian: torch.Tensor, damping: float) -> tuple[torch.Tensor, torch.Tensor]:
    """H with `damping` times the mean of its diagonal added to that, and the inverse of it.

    An input that was always zero says nothing: alone on its diagonal its column is rounded to
    nearest. (The GPTQ authors' code sets such weights to zero, which any text that does reach the
    input would notice.) Fewer samples than inputs leave H without an inverse; damping gives it
    one. Where it does not suffice it is doubled, and where the whole mean does not, the diagonal
    is raised by what the smallest eigenvalue lacks.
    Raises UsageError for a damping outside 0 to 1.
    """
    if not 0 <= damping < 1:
        raise UsageError(
            f"damping is a part of H's mean diagonal: from 0 to below 1, not {damping}"
        )
    hessian = hessian.clone()
    diagonal = hessian.diagonal()  # a view
    alive = diagonal > 0
    mean = float(diagonal[alive].mean()) if alive.any() else 1.0
    hessian[~alive] = 0
    hessian[:, ~alive] = 0
    diagonal[~alive] = mean
    added = 0.0
    while damping < 1:
        diagonal += damping * mean - added
        added = damping * mean
        inverse = _inverse(hessian)
        if inverse is not None:
            return hessian, inverse
        damping = DAMPING_GROWTH * damping if damping else SMALLEST_DAMPING
    lowest = float(torch.linalg.eigvalsh(hessian)[0])
    diagonal += 0.01 * mean - min(lowest, 0.0)
    return hessian, torch.cholesky_inverse(torch.linalg.cholesky(hessian))


def _inverse(hessian: torch.Tensor) -> torch.Tensor | None:
    """Its inverse, if rounding leaves both positive definite."""
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if failed:
        return None
    inverse = torch.cholesky_inverse(factor)
    return None if torch.linalg.cholesky_ex(inverse).info else inverse


def inverse_factor(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """The upper triangular U with U^T U = H^-1 of the damped H: what GPTQ compensates by."""
    factor: torch.Tensor = torch.linalg.cholesky(damped(hessian, damping)[1], upper=True)
    return factor
