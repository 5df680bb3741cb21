"""Bits a weight, as a file has them: codes, scales, zeros and column orders all counted.

Answers "how many bits has a 4-bit model?": 4, and 16 more for every group's scale, and some for its
zero. Only the linear layers of the decoder count; embeddings and head stay as they are.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from infra_lab.models.config import ModelConfig
from infra_lab.models.safetensors_file import tensor_entries
from infra_lab.quantization.modules import linear_modules, num_linear_weights


def stored_bits_per_weight(path: Path, config: ModelConfig) -> float:
    """Of the model at `path`, a Hugging Face folder or a GGUF file."""
    sizes = _folder_sizes(path) if path.is_dir() else _gguf_sizes(path)
    modules = set(linear_modules(config))
    stored = sum(size for name, size in sizes.items() if _module_of(name) in modules)
    return 8 * stored / num_linear_weights(config)


def stored_bytes(path: Path) -> int:
    """All of a model's files of weights."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def safetensors_sizes(file: Path) -> dict[str, int]:
    """Bytes of each tensor, from the file's header. Raises ModelLoadError if it is damaged."""
    return {
        name: math.prod(entry.shape) * _num_bytes(entry.dtype)
        for name, entry in tensor_entries(file).items()
    }


def _num_bytes(dtype: str) -> int:
    """Types of safetensors have their bits in their names: BF16, I32, F8_E4M3."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else int(bits[0]) // 8  # BOOL has none


def _folder_sizes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        sizes |= safetensors_sizes(file)
    return sizes


def _gguf_sizes(path: Path) -> dict[str, int]:
    from gguf.constants import GGML_QUANT_SIZES

    from infra_lab.models.gguf_checkpoint import hugging_face_name
    from infra_lab.models.gguf_header import read_header

    sizes = {}
    for name, info in read_header(path).tensors.items():
        block_size, block_bytes = GGML_QUANT_SIZES[info.quantization]
        sizes[hugging_face_name(name)] = math.prod(info.shape) // block_size * block_bytes
    return sizes


def _module_of(name: str) -> str | None:
    """`...q_proj.weight.absmax` and `...q_proj.qweight` both belong to `...q_proj`; biases, which
    nobody quantizes, to none."""
    if name.endswith(".bias"):
        return None
    stem, separator, _ = name.partition("_proj.")
    return f"{stem}_proj" if separator else None
