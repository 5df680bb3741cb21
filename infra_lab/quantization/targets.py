"""Which checkpoint format a run's weights go into, and the writing of it."""

from __future__ import annotations

from pathlib import Path

from infra_lab.errors import UsageError
from infra_lab.formats.awq import AWQFormat
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.quantization.overlay import OverlayCheckpoint
from infra_lab.quantization.settings import QuantizationSettings, require_format
from infra_lab.quantization.writer import write_folder


def target_format(settings: QuantizationSettings) -> WeightFormat:
    """Raises UsageError where no format can hold what the settings make."""
    require_format(settings)
    if settings.format == "awq":
        return AWQFormat(settings.group_size, settings.symmetric)
    if settings.format == "gptq":
        return GPTQFormat(
            settings.bits, settings.group_size, settings.symmetric, settings.act_order
        )
    raise UsageError(f"no format {settings.format!r}")


def write_model(quantized: OverlayCheckpoint, out: Path, weight_format: WeightFormat) -> None:
    write_folder(
        quantized.base,
        out,
        quantized.weights,
        weight_format,
        activation=quantized.activation,
        dense=quantized.dense,
    )
