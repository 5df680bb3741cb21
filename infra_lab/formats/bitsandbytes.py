"""bitsandbytes checkpoints: NF4 and FP4 in blocks along the flattened matrix, and int8 rows.

Answers "what does QLoRA's double quantization quantize twice?": the largest magnitude of each
block of 64 weights is itself kept in 8 bits, less the mean of all of them, in blocks of 256.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.nested_scales import recovered
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import dynamic_table, nf4_table
from infra_lab.formats.weight_format import (
    StoredTensor,
    integer_weight,
    integer_zeros,
    require_groups,
    require_table,
    rounded,
)

NESTED_BLOCK = 256
_KINDS = ("nf4", "fp4")


@dataclass(frozen=True, slots=True)
class FourBitFormat:
    """A byte for two weights, the first in the high nibble; the settings of a layer lie beside it
    as JSON in a tensor of bytes.

    Attributes:
        kind: "nf4", or "fp4", which is read only.
        double_quantization: the blocks' magnitudes are quantized too.
        block_size: weights with one magnitude, along the flattened matrix.
        dtype: what bitsandbytes dequantizes to, and computes in.
    """

    kind: str = "nf4"
    double_quantization: bool = False
    block_size: int = 64
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UsageError(f"bitsandbytes has the 4-bit types nf4 and fp4, not {self.kind!r}")

    @property
    def bits(self) -> int:
        return 4

    @property
    def label(self) -> str:
        nested = ", double quantization" if self.double_quantization else ""
        return f"bitsandbytes {self.kind.upper()}, blocks of {self.block_size}{nested}"

    @property
    def _state_name(self) -> str:
        return f"weight.quant_state.bitsandbytes__{self.kind}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        # The number of blocks follows from the settings that lie beside them: see `read`.
        found = {
            self._state_name: StoredTensor(((None,),), ("U8",)),
            "weight": StoredTensor(((-(-out_features * in_features // 2), 1),), ("U8",)),
            "weight.quant_map": StoredTensor(((16,),), ("F32",)),
        }
        if self.double_quantization:
            found["weight.absmax"] = StoredTensor(((None,),), ("U8",))
            found["weight.nested_absmax"] = StoredTensor(((None,),), ("F32",))
            found["weight.nested_quant_map"] = StoredTensor(((256,),), ("F32",))
        else:
            found["weight.absmax"] = StoredTensor(((None,),), ("F32",))
        return found

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        """Where blocks run across rows, each comes back as several groups of one scale."""
        state = _Settings(tensors[self._state_name])
        shape = state.values.get("shape")
        if shape != [out_features, in_features]:
            raise ModelLoadError(
                f"quant_state says shape {shape}, but the config asks for "
                f"{[out_features, in_features]}"
            )
        count, block_size = out_features * in_features, state.integer("blocksize")
        magnitudes = self._magnitudes(tensors, state)
        if len(magnitudes) != -(-count // block_size):
            raise ModelLoadError(
                f"absmax has {len(magnitudes)} blocks; {-(-count // block_size)} of {block_size} "
                f"weights were expected"
            )
        packed = tensors["weight"].flatten()
        codes = torch.stack([packed >> 4, packed & 15], dim=-1).flatten()[:count]
        group_size = math.gcd(block_size, in_features)
        scales = magnitudes.repeat_interleave(block_size // group_size)[: count // group_size]
        return QuantizedWeight(
            codes.view(out_features, in_features),
            tensors["weight.quant_map"].clone(),
            scales.view(out_features, -1).contiguous(),
            4,
            group_size,
        )

    def _magnitudes(self, tensors: Mapping[str, torch.Tensor], state: _Settings) -> torch.Tensor:
        absmax = tensors["weight.absmax"]
        if not self.double_quantization:
            return absmax
        nested = tensors["weight.nested_absmax"]
        block = state.integer("nested_blocksize")
        if len(nested) != -(-len(absmax) // block):
            raise ModelLoadError(
                f"nested_absmax has {len(nested)} blocks for {len(absmax)} numbers in blocks of "
                f"{block}"
            )
        table = tensors["weight.nested_quant_map"]
        offset = state.number("nested_offset")
        return undo_double_quantization(absmax, nested, table, offset, block)

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """As it is, or with its magnitudes quantized, if they are not already."""
        magnitudes = self._blocks_of(weight)
        if self.double_quantization:
            magnitudes = undo_double_quantization(*self._nested(magnitudes))
        group_size = math.gcd(self.block_size, weight.in_features)
        count = weight.codes.numel()
        scales = magnitudes.repeat_interleave(self.block_size // group_size)[: count // group_size]
        return replace(
            weight,
            values=nf4_table(),
            scales=scales.view(weight.out_features, -1).contiguous(),
            group_size=group_size,
        )

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        magnitudes = self._blocks_of(weight)
        codes = torch.nn.functional.pad(weight.codes.flatten(), (0, weight.codes.numel() % 2))
        state: dict[str, Any] = {
            "quant_type": self.kind,
            "blocksize": self.block_size,
            "dtype": self.dtype,
            "shape": list(weight.codes.shape),
        }
        tensors = {
            "weight": (codes[::2] << 4 | codes[1::2]).view(-1, 1),
            "weight.quant_map": nf4_table(),
        }
        if self.double_quantization:
            absmax, nested, table, offset, block = self._nested(magnitudes)
            state |= {
                "nested_blocksize": block,
                "nested_dtype": "float32",
                "nested_offset": offset,
            }
            tensors |= {
                "weight.absmax": absmax,
                "weight.nested_absmax": nested,
                "weight.nested_quant_map": table,
            }
        else:
            tensors["weight.absmax"] = magnitudes
        text = json.dumps(state).encode()
        tensors[self._state_name] = torch.tensor(list(text), dtype=torch.uint8)
        return tensors

    def _nested(
        self, magnitudes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, int]:
        """What `double_quantization` gives, or gave when these magnitudes were made."""
        table = dynamic_table()
        found = recovered(magnitudes, table, NESTED_BLOCK)
        if found is None:
            return double_quantization(magnitudes)
        codes, nested, offset = found
        return codes, nested, table, offset, NESTED_BLOCK

    def _blocks_of(self, weight: QuantizedWeight) -> torch.Tensor:
        """fp32 [blocks], the weight's scales block by block along the flattened matrix."""
        if self.kind != "nf4":
            raise UsageError("of bitsandbytes' 4-bit types nf4 is written, fp4 is only read")
        require_table(weight, nf4_table(), "NF4's numbers", self.label)
        require_groups(weight, 4, weight.group_size, False, self.label)
        if weight.in_features % weight.group_size or self.block_size % weight.group_size:
            raise UsageError(
                f"{self.label} is not what this weight has: groups of {weight.group_size} in rows "
                f"of {weight.in_features}"
            )
        rounded(weight.scales, torch.float32, self.label)
        per_block = self.block_size // weight.group_size
        scales = weight.scales.flatten()
        missing = -len(scales) % per_block
        blocks = torch.cat([scales, scales[-1:].expand(missing)]).view(-1, per_block)
        if torch.any(blocks != blocks[:, :1]):
            raise UsageError(
                f"{self.label} run through the flattened matrix, and in this weight some groups of "
                "one block have different scales"
            )
        return blocks[:, 0].clone()


@dataclass(frozen=True, slots=True)
class RowInt8Format:
    """LLM.int8(): int8 rows and, as SCB, the largest magnitude of each, which code 127 is."""

    @property
    def bits(self) -> int:
        return 8

    @property
    def label(self) -> str:
        return "bitsandbytes int8, one scale a row"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        return {
            "SCB": StoredTensor(((out_features,),), ("F32",)),
            "weight": StoredTensor(((out_features, in_features),), ("I8",)),
            "weight_format": StoredTensor(((),), ("U8",), required=False),
        }

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        layout = tensors.get("weight_format")
        if layout is not None and layout.item() != 0:
            raise ModelLoadError(
                f"weight_format is {layout.item()}: weights in the tiles of some GPU, where only "
                "rows (0) are supported"
            )
        codes = tensors["weight"].view(torch.uint8) ^ 128
        scales = (tensors["SCB"] / 127).view(-1, 1)
        zeros = torch.full_like(scales, 128)
        return integer_weight(codes, zeros, scales, 8, in_features, symmetric=True)

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Scales as a 127th of an fp32 number, the nearest."""
        require_groups(weight, 8, None, False, self.label)
        zeros = integer_zeros(weight, self.label)
        if not torch.all(zeros == 128):
            raise UsageError(f"{self.label} is symmetric, and this weight has zero points")
        scales = self._largest(weight.scales) / 127
        return integer_weight(weight.codes, zeros, scales, 8, weight.in_features, symmetric=True)

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        return {
            "SCB": self._largest(weight.scales).flatten(),
            "weight": (stored.codes ^ 128).view(torch.int8),
            "weight_format": torch.tensor(0, dtype=torch.uint8),
        }

    def _largest(self, scales: torch.Tensor) -> torch.Tensor:
        """127 times the scales, or the neighbour of it whose 127th is the scale itself."""
        largest = scales * 127
        rounded(largest, torch.float32, self.label)
        for direction in (-torch.inf, torch.inf):
            other = torch.nextafter(largest, torch.full_like(largest, direction))
            exact = (other / 127 == scales) & (largest / 127 != scales)
            largest = torch.where(exact, other, largest)
        return largest


def double_quantization(
    magnitudes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, int]:
    """QLoRA's second quantization, as bitsandbytes does it: of the magnitudes, fp32 [n], less
    their mean, in blocks of 256.

    Returns the codes (uint8 [n]), the blocks' own magnitudes (fp32), the table, the mean and the
    block size: what `undo_double_quantization` takes.
    """
    table = dynamic_table()
    offset = magnitudes.mean()
    centred = magnitudes - offset
    blocks = torch.nn.functional.pad(centred, (0, -len(centred) % NESTED_BLOCK))
    blocks = blocks.view(-1, NESTED_BLOCK)
    nested = blocks.abs().amax(dim=1)
    # A block of equal magnitudes has nothing left: its codes are that of zero.
    fractions = blocks / torch.where(nested == 0, 1.0, nested)[:, None]
    below = (torch.searchsorted(table, fractions, right=True) - 1).clamp(0, len(table) - 2)
    closer_above = (table[below + 1] - fractions).abs() < (fractions - table[below]).abs()
    codes = (below + closer_above).to(torch.uint8).flatten()[: len(magnitudes)]
    return codes, nested, table, offset.item(), NESTED_BLOCK


def undo_double_quantization(
    codes: torch.Tensor, nested: torch.Tensor, table: torch.Tensor, offset: float, block_size: int
) -> torch.Tensor:
    """fp32 [n]: table[code] times its block's magnitude, plus the mean."""
    scales = nested.repeat_interleave(block_size)[: len(codes)]
    return table[codes.int()] * scales + torch.tensor(offset)


class _Settings:
    """What a quant_state tensor says: JSON as bytes."""

    def __init__(self, data: torch.Tensor) -> None:
        try:
            values = json.loads(bytes(data.tolist()))
        except ValueError as error:
            raise ModelLoadError(f"quant_state is damaged ({error})") from error
        if not isinstance(values, dict):
            raise ModelLoadError("quant_state is damaged (no JSON object)")
        self.values: dict[str, Any] = values

    def integer(self, key: str) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(
                f"quant_state says {key} {value!r}; a positive integer was expected"
            )
        return value

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelLoadError(f"quant_state says {key} {value!r}; a number was expected")
        return float(value)
