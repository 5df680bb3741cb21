"""How a model's weights are stored, in a few words: by type in a GGUF file, by format in a folder.

Answers "is this file quantized, and to how many bits really?": scales and what was left in full
precision count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from infra_lab.models.config import ModelConfig
from infra_lab.models.gguf_header import read_header
from infra_lab.models.hf_config import Settings
from infra_lab.models.parameters import num_parameters


@dataclass(frozen=True, slots=True)
class Storage:
    """`stored_as`: "GPTQ int4, groups of 128", "Q4_1, F32" (most bytes first) or "bfloat16";
    `bits_per_parameter`: of all that the files hold, over all parameters."""

    stored_as: str
    bits_per_parameter: float


def storage(path: Path, config: ModelConfig) -> Storage:
    """Of the model at `path`; raises ModelLoadError like the checkpoint's own reader."""
    if path.is_file():
        sizes: Counter[str] = Counter()
        for info in read_header(path).tensors.values():
            sizes[info.quantization.name] += info.num_bytes
        stored_as = ", ".join(kind for kind, _ in sizes.most_common())
        num_bytes = sizes.total()
    else:
        stored_as = _folder_format(path) or config.dtype
        num_bytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return Storage(stored_as, 8 * num_bytes / num_parameters(config))


def _folder_format(path: Path) -> str | None:
    if "quantization_config" not in Settings.read(path / "config.json").values:
        return None
    from infra_lab.models.hf_quantized import folder_format  # needs torch

    found = folder_format(path)
    return None if found is None else found.label
