"""One run of `infra-lab quantize`: checks, calibration text, layers, folder; resumed where it was
left, and nothing half-written whatever ends it."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from infra_lab.errors import InfraLabError, UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.parameters import num_parameters
from infra_lab.models.tokenizer import load_tokenizer
from infra_lab.quantization.calibration import calibration_sequences
from infra_lab.quantization.gguf_metadata import folder_metadata
from infra_lab.quantization.modules import num_linear_weights
from infra_lab.quantization.partial_folder import PartialFolder, content_hash
from infra_lab.quantization.quantize import Progress, quantize_model
from infra_lab.quantization.settings import QuantizationSettings
from infra_lab.quantization.targets import target_format, write_model

_FULL = (errno.ENOSPC, errno.EDQUOT)


class StoppedError(InfraLabError):
    """Ctrl-C, with a line that says how to go on."""

    exit_status = 130  # 128 + SIGINT, what a shell reports for it
    label = "interrupted: "


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """resumed_layers: those that an earlier run had finished."""

    out: Path
    resumed_layers: int


def quantize_to_folder(
    path: Path,
    out: Path,
    settings: QuantizationSettings,
    text: str,
    progress: Progress | None = None,
) -> FinishedRun:
    """Quantizes the model at `path` and writes it to `out`, which must not be there yet.

    text: to calibrate on. Finished layers lie in `OUT.partial` until all are written.

    Raises UsageError for settings that do not fit the model or the text, an `out` that exists, or
    an unfinished run with other settings; ModelLoadError for a damaged model; InfraLabError where
    there is no space; StoppedError on Ctrl-C.
    """
    weight_format = target_format(settings)
    require_new(out)
    checkpoint = open_checkpoint(path)
    if settings.format == "gguf" and path.is_dir():
        folder_metadata(checkpoint)  # refuses a tokenizer that no GGUF file has
    sequences = None
    if settings.is_calibrated:
        token_ids = load_tokenizer(checkpoint).encode(text)
        sequences = calibration_sequences(token_ids, settings, checkpoint.config)
    manifest = {
        "settings": settings.described(),
        "model": content_hash(path),
        "calibration text": None if sequences is None else _text_hash(sequences),
    }
    _require_space(out.parent, checkpoint.config)
    with _full_disk_explained(out.parent):
        partial = PartialFolder.open(out.with_name(f"{out.name}.partial"), manifest)
        resumed = partial.num_layers
        try:
            quantized = quantize_model(
                checkpoint, settings, sequences, weight_format, partial, progress
            )
            write_model(quantized, out, weight_format, torch.float16)
        except KeyboardInterrupt:
            num_layers = checkpoint.config.num_hidden_layers
            raise StoppedError(_how_to_go_on(partial, num_layers)) from None
        finally:
            if partial.num_layers == 0:  # nothing to go on with
                partial.remove()
        partial.remove()
    return FinishedRun(out, resumed)


@contextmanager
def _full_disk_explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not _is_full(error):
            raise
        raise InfraLabError(
            f"no space is left on the disk of {folder.absolute()}: make some and give the same "
            "command again; it goes on after the last finished layer"
        ) from None


def require_new(out: Path) -> None:
    """Raises UsageError unless a model can be written to `out` without touching what is there."""
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} is there already: give another --out, or delete it")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder: make it, or give another --out")


def _require_space(folder: Path, config: ModelConfig) -> None:
    """Finished layers take a byte a weight and some; the model at most two bytes a parameter."""
    needed = 1.25 * num_linear_weights(config) + 2 * num_parameters(config)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InfraLabError(
            f"{folder.absolute()} has {free / 1e6:,.0f} MB free, and a run may take up to "
            f"{needed / 1e6:,.0f} MB: make space, or give another --out"
        )


def _how_to_go_on(partial: PartialFolder, num_layers: int) -> str:
    kept = partial.num_layers
    if kept == 0:
        return "no layer was finished and nothing is kept"
    return f"{kept} of {num_layers} layers are kept in {partial.path}: the same command goes on"


def _text_hash(sequences: torch.Tensor) -> str:
    return hashlib.sha256(sequences.numpy().tobytes()).hexdigest()


def _is_full(error: Exception) -> bool:
    """safetensors says so in words only."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"os error {number}" in str(error) for number in _FULL)
