"""The one interface behind which GGUF files and Hugging Face folders look alike."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.models.config import ModelConfig


class Checkpoint(Protocol):
    """Weights under Hugging Face's parameter names, read one tensor at a time.

    Tensors come dequantized, shaped [out_features, in_features] as Hugging Face stores
    them, and laid out for rotate-half RoPE (a GGUF file's permuted q and k are put back).
    """

    path: Path
    config: ModelConfig

    def names(self) -> list[str]: ...

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Reads, dequantizes and casts one tensor: into `out`, contiguous, of that dtype and
        the tensor's shape, if given; else into a new one.

        Raises ModelLoadError naming the tensor when it is missing, of the wrong shape,
        truncated or of an unsupported quantization type.
        """
        ...

    def quantized(self, name: str) -> QuantizedWeight | None:
        """A matrix in the codes that the checkpoint keeps it in, rows in the order of `tensor`;
        None for one that is stored as it is, or in a layout that only `tensor` reads.

        Raises ModelLoadError like `tensor`, whose fp32 numbers it dequantizes to.
        """
        ...

    def activation_format(self, name: str) -> ActivationFormat | None:
        """What the layer of this matrix does to its input first; None for nothing."""
        ...
