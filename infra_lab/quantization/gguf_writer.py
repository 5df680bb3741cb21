"""Quantized weights as a GGUF file that llama.cpp and infra-lab read.

Metadata and tokenizer come from the GGUF file that was quantized, key by key with their types, or
are made from a folder's. Tensors are announced first and written one by one, so that no more than
one is in memory. Answers "in which order does a GGUF file lie?".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_VERSION

from infra_lab.errors import UsageError
from infra_lab.formats.gguf_blocks import GGUFFormat
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.gguf_checkpoint import (
    gguf_name,
    half_rotation_order,
    interleaved_heads,
)
from infra_lab.models.gguf_config import ROPE_FACTORS, llama3_factors
from infra_lab.models.gguf_header import read_header
from infra_lab.models.shapes import Shape, optional_shapes, parameter_shapes
from infra_lab.quantization.gguf_metadata import (
    Entry,
    folder_metadata,
    gguf_architecture,
)
from infra_lab.quantization.whole_or_not import new_file
from infra_lab.quantization.writer import dense_tensor, parameter_names

_FILE_TYPES = {
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": LlamaFileType.MOSTLY_Q4_1,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}
_DENSE_TYPES = {
    torch.float32: GGMLQuantizationType.F32,
    torch.float16: GGMLQuantizationType.F16,
}
# Written anew, or by the writer itself.
_NOT_COPIED = ("general.file_type", "general.quantization_version", "general.architecture")


def write_gguf(
    source: Checkpoint,
    out: Path,
    weights: Mapping[str, QuantizedWeight],
    weight_format: GGUFFormat,
    *,
    dense: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Writes one file; arguments as those of `writer.write_folder`.

    `weights` may have the embedding too. `dtype`, float16 or float32, is that of matrices that
    are not quantized; vectors are float32, as llama.cpp wants them.

    Raises UsageError when a folder's tokenizer is of a kind that is not written, and like
    `write_folder`.
    """
    dense = dense or {}
    if dtype not in _DENSE_TYPES:
        raise UsageError(
            f"a GGUF file here keeps other matrices in float16 or float32, not {dtype}"
        )
    names = parameter_names(source, weights, dense)
    architecture = gguf_architecture(source.config)
    config = replace(source.config, architecture=architecture)
    factors = _rope_factors(source)
    with new_file(out) as work:
        writer = GGUFWriter(work, architecture)
        for key, entry in _metadata(source).items():
            writer.add_key_value(key, entry.value, entry.kind, entry.items)
        writer.add_file_type(_FILE_TYPES[weight_format.kind])
        writer.add_quantization_version(GGML_QUANT_VERSION)
        shapes = _shapes(source)
        for name in names:
            kind = GGMLQuantizationType[weight_format.kind]
            if name not in weights:
                kind = _DENSE_TYPES[_dense_dtype(shapes[name], dtype)]
            _announce(writer, gguf_name(name), shapes[name], kind)
        if factors is not None:
            _announce(writer, ROPE_FACTORS, factors.shape, GGMLQuantizationType.F32)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name in names:
                if name in weights:
                    rows = _quantized(name, weights[name], weight_format)
                else:
                    rows = dense_tensor(source, name, dense, _dense_dtype(shapes[name], dtype))
                writer.write_tensor_data(_in_stored_order(config, name, rows))
            if factors is not None:
                writer.write_tensor_data(factors)
        finally:
            writer.close()


def _metadata(source: Checkpoint) -> dict[str, Entry]:
    """All that is not written anew: copied from a GGUF file, or made from a folder."""
    if source.path.is_dir():
        return folder_metadata(source)
    header = read_header(source.path)
    return {
        key: Entry(value, *header.value_types[key])
        for key, value in header.metadata.items()
        if key not in _NOT_COPIED and value != []  # the package writes no empty list
    }


def _rope_factors(source: Checkpoint) -> npt.NDArray[np.float32] | None:
    """Llama 3's scaling of rotary frequencies, which a GGUF file has as a tensor."""
    config = source.config
    if source.path.is_file():
        info = read_header(source.path).tensors.get(ROPE_FACTORS)
        if info is None:
            return None
        return np.fromfile(source.path, np.float32, info.shape[0], offset=info.offset_bytes)
    if config.rope_scaling.kind != "llama3":
        return None
    found = llama3_factors(config.rope_scaling, config.head_dim, config.rope_theta)
    return np.array(found, np.float32)


def _announce(
    writer: GGUFWriter, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> None:
    """Enters a tensor in the table that comes before all tensors: its shape in bytes."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_size:
        raise UsageError(
            f"{name!r} has rows of {shape[-1]}, which {kind.name} cannot hold: its blocks have "
            f"{block_size}"
        )
    in_bytes = (*shape[:-1], shape[-1] // block_size * block_bytes)
    writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), math.prod(in_bytes), kind)


def _shapes(source: Checkpoint) -> dict[str, Shape]:
    """Of all parameters that the model may have; a tied head may get its own."""
    untied = replace(source.config, tie_word_embeddings=False)
    return parameter_shapes(untied) | optional_shapes(untied)


def _dense_dtype(shape: Shape, of_matrices: torch.dtype) -> torch.dtype:
    return of_matrices if len(shape) > 1 else torch.float32


def _quantized(name: str, weight: QuantizedWeight, weight_format: GGUFFormat) -> torch.Tensor:
    try:
        return weight_format.write(weight)
    except UsageError as error:
        raise UsageError(f"{name!r} cannot be written: {error}") from error


def _in_stored_order(config: ModelConfig, name: str, rows: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Bytes, the rows of q and k as llama.cpp wants them."""
    num_heads = interleaved_heads(config, name)
    if num_heads is not None:
        rows = rows[torch.from_numpy(half_rotation_order(len(rows), num_heads)).argsort()]
    stored: npt.NDArray[np.uint8] = rows.contiguous().view(torch.uint8).numpy()
    return stored
