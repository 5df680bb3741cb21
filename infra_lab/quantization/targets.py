"""Which checkpoint format a run's weights go into, and what a layer does to its inputs."""

from __future__ import annotations

from pathlib import Path

import torch

from infra_lab.formats.gguf_blocks import GGUFFormat
from infra_lab.formats.layouts import Numbers, weight_format
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.quantization.gguf_writer import write_gguf
from infra_lab.quantization.overlay import OverlayCheckpoint
from infra_lab.quantization.rotated_checkpoint import HEAD, RotatedCheckpoint
from infra_lab.quantization.settings import QuantizationSettings, require_format
from infra_lab.quantization.writer import write_folder

Target = WeightFormat | GGUFFormat

_NUMBERS: dict[str, Numbers] = {"nf4": "nf4", "mxfp4": "mxfp4", "fp8": "fp8"}


def target_format(settings: QuantizationSettings) -> Target:
    """Raises UsageError where no format can hold what the settings make."""
    require_format(settings)
    assert settings.format is not None
    if settings.format == "gguf":
        if settings.bits == 8:
            return GGUFFormat("Q8_0")
        return GGUFFormat("Q4_0" if settings.symmetric else "Q4_1")
    # Zero points in gptq's first version are 1 less than they are, and of 0 its readers differ.
    asymmetric_gptq = settings.format == "gptq" and not settings.symmetric
    return weight_format(
        "gptq_v2" if asymmetric_gptq else settings.format,
        _NUMBERS.get(settings.method, "int"),
        bits=settings.bits,
        group_size=settings.group_size,
        symmetric=settings.symmetric,
        act_order=settings.has_g_idx,
        double_quantization=settings.method == "nf4",
        activation=activation_format(settings),
    )


def activation_format(settings: QuantizationSettings) -> ActivationFormat | None:
    """What the quantized layers do to their inputs, when they come."""
    bits = settings.activation_bits
    if bits is None:
        return None
    if settings.method == "fp8":
        return ActivationFormat(bits, kind="fp8")
    if settings.method == "llm_int8":
        return ActivationFormat(bits, outlier_threshold=settings.outlier_threshold)
    return ActivationFormat(bits)


def write_model(
    quantized: OverlayCheckpoint, out: Path, target: Target, dtype: torch.dtype
) -> None:
    """Into a folder, or a file where the target is GGUF; whole or not at all.

    dtype: of what is not quantized. Raises UsageError for what the target cannot hold.
    """
    if isinstance(target, GGUFFormat):
        write_gguf(
            quantized.base, out, quantized.weights, target, dense=quantized.dense, dtype=dtype
        )
        return
    dense = dict(quantized.dense)
    if isinstance(quantized.base, RotatedCheckpoint):
        dense[HEAD] = quantized.base.tensor(HEAD, torch.float32)  # no longer the embedding
    write_folder(
        quantized.base,
        out,
        quantized.weights,
        target,
        activation=quantized.activation,
        dense=dense,
        dtype=dtype,
    )
