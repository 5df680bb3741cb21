"""A GGUF file as a checkpoint: Hugging Face names, dequantized, rows in Hugging Face's order.

Opening reads only the header. A tensor is read and dequantized a few rows at a time straight
into its final place, so that loading needs hardly more memory than the weights themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES

from infra_lab.errors import ModelLoadError
from infra_lab.formats.gguf_blocks import READABLE, read_blocks
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.models.config import ModelConfig
from infra_lab.models.gguf_config import ROPE_FACTORS, gguf_config
from infra_lab.models.gguf_dequant import SUPPORTED_QUANTIZATIONS, dequantize_rows
from infra_lab.models.gguf_header import GGUFHeader, GGUFTensorInfo, read_header
from infra_lab.models.shapes import check_shapes

_CHUNK_ELEMENTS = 1 << 17  # a chunk and its temporaries stay within a core's cache

_OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INSIDE_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE_NAMES = {module: stem for stem, module in _OUTSIDE_LAYERS.items()}
_INSIDE_NAMES = {module: stem for stem, module in _INSIDE_LAYERS.items()}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r"\.self_attn\.([qk])_proj\.")


class GGUFCheckpoint:
    """Implements `Checkpoint` over one GGUF file.

    Raises ModelLoadError on construction when the file is damaged, its architecture or one of
    its quantization types unsupported, or a tensor missing or of the wrong shape.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: GGUFHeader = read_header(path)
        self.config: ModelConfig = gguf_config(self.header)
        self._infos = {hugging_face_name(name): info for name, info in self.header.tensors.items()}
        shapes = {name: info.shape for name, info in self._infos.items()}
        self._names = check_shapes(self.config, shapes, (ROPE_FACTORS,), path)
        for name in self._names:
            _require_supported(self._infos[name], path)

    def names(self) -> list[str]:
        return list(self._names)

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        info = self._infos.get(name)
        if info is None:
            raise ModelLoadError(f"{self.path}: tensor {name!r} is missing")
        result = torch.empty(info.shape, dtype=dtype) if out is None else out
        num_heads = interleaved_heads(self.config, name)
        if num_heads is None:
            self._read_in_order(info, result)
        else:
            self._read_permuted(info, result, num_heads)
        return result

    def quantized(self, name: str) -> QuantizedWeight | None:
        info = self._infos.get(name)
        if info is None or len(info.shape) != 2 or info.quantization.name not in READABLE:
            return None
        packed = np.concatenate(list(self._packed_chunks(info, *info.shape)))
        num_heads = interleaved_heads(self.config, name)
        if num_heads is not None:
            packed = packed[half_rotation_order(len(packed), num_heads)]
        return read_blocks(torch.from_numpy(packed), info.quantization.name)

    def activation_format(self, name: str) -> ActivationFormat | None:
        return None

    def _read_in_order(self, info: GGUFTensorInfo, result: torch.Tensor) -> None:
        num_rows, num_columns = _rows_and_columns(info)
        done = 0
        for packed in self._packed_chunks(info, num_rows, num_columns):
            _dequantize_into(packed, info, result.view(num_rows, num_columns)[done:][: len(packed)])
            done += len(packed)

    def _read_permuted(self, info: GGUFTensorInfo, result: torch.Tensor, num_heads: int) -> None:
        """Rows are put in order while still packed, when moving them is cheapest."""
        num_rows = info.shape[0]
        num_columns = math.prod(info.shape[1:])
        packed = np.concatenate(list(self._packed_chunks(info, num_rows, num_columns)))
        order = half_rotation_order(num_rows, num_heads)
        rows_per_chunk = max(1, _CHUNK_ELEMENTS // num_columns)
        for start in range(0, num_rows, rows_per_chunk):
            rows = packed[order[start : start + rows_per_chunk]]
            _dequantize_into(rows, info, result.view(num_rows, -1)[start:][: len(rows)])

    def _packed_chunks(
        self, info: GGUFTensorInfo, num_rows: int, num_columns: int
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """The tensor's bytes, a whole number of rows [n, row_bytes] at a time."""
        block_size, block_bytes = GGML_QUANT_SIZES[info.quantization]
        row_bytes = num_columns // block_size * block_bytes
        rows_per_chunk = max(1, _CHUNK_ELEMENTS // num_columns)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(info.offset_bytes)
                for start in range(0, num_rows, rows_per_chunk):
                    count = min(rows_per_chunk, num_rows - start)
                    chunk = np.fromfile(file, np.uint8, count * row_bytes)
                    yield chunk.reshape(count, row_bytes)
        except (OSError, ValueError) as error:
            raise ModelLoadError(
                f"{self.path}: tensor {info.name!r} cannot be read ({error}): the file has changed "
                "or is truncated"
            ) from error


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name without a
    counterpart comes back as it is."""
    match = _LAYER_NAME.fullmatch(name)
    if match is not None and match[2] in _INSIDE_LAYERS:
        return f"model.layers.{match[1]}.{_INSIDE_LAYERS[match[2]]}.{match[3]}"
    stem, _, suffix = name.rpartition(".")
    return f"{_OUTSIDE_LAYERS[stem]}.{suffix}" if stem in _OUTSIDE_LAYERS else name


def gguf_name(name: str) -> str:
    """The reverse of `hugging_face_name`, of a parameter's name."""
    module, _, suffix = name.rpartition(".")
    if module in _OUTSIDE_NAMES:
        return f"{_OUTSIDE_NAMES[module]}.{suffix}"
    _, _, layer, inside = module.split(".", 3)
    return f"blk.{layer}.{_INSIDE_NAMES[inside]}.{suffix}"


def interleaved_heads(config: ModelConfig, name: str) -> int | None:
    """Of a tensor whose rows llama.cpp reorders for interleaved rotation (q and k in Llama files
    only), how many heads it has; None for all others."""
    match = _PERMUTED.search(name)
    if match is None or config.architecture != "llama":
        return None
    return config.num_attention_heads if match[1] == "q" else config.num_key_value_heads


def half_rotation_order(num_rows: int, num_heads: int) -> npt.NDArray[np.intp]:
    """Which stored row each row of a q or k projection comes from.

    Stored heads interleave the two halves that rotate together, (0, D/2, 1, D/2 + 1, ...);
    Hugging Face keeps the halves apart.
    """
    stored = np.arange(num_rows).reshape(num_heads, -1, 2)
    return stored.transpose(0, 2, 1).reshape(-1)


def _rows_and_columns(info: GGUFTensorInfo) -> tuple[int, int]:
    """A vector is one row, so that a chunk is never a single number."""
    if len(info.shape) == 1:
        return 1, info.shape[0]
    return info.shape[0], math.prod(info.shape[1:])


def _dequantize_into(
    packed: npt.NDArray[np.uint8], info: GGUFTensorInfo, out: torch.Tensor
) -> None:
    if out.dtype == torch.float32:
        dequantize_rows(packed, info.quantization, out.numpy())
        return
    chunk = np.empty(tuple(out.shape), np.float32)
    dequantize_rows(packed, info.quantization, chunk)
    out.copy_(torch.from_numpy(chunk))


def _require_supported(info: GGUFTensorInfo, path: Path) -> None:
    if info.quantization not in SUPPORTED_QUANTIZATIONS:
        supported = ", ".join(sorted(kind.name for kind in SUPPORTED_QUANTIZATIONS))
        raise ModelLoadError(
            f"{path}: tensor {info.name!r} is of quantization type {info.quantization.name}, which "
            f"is not supported; supported are {supported}"
        )
