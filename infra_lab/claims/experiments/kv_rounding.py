"""Ways to keep keys and values in fewer bits, as functions from numbers to what comes back.

The measuring half of the experiment `kv-quantization`: the engine's own codes where it has them
(attention/kv_quantization.py), integers of other widths and granularities from
quantization/integer.py, and a real model that reads a text through each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from infra_lab.claims.experiments.attention_probes import Counted, Rounded, as_backend, read_whole
from infra_lab.quantization.distance import relative_error
from infra_lab.texts import Text, text

if TYPE_CHECKING:
    import torch

    from infra_lab.models.decoder import DecoderForCausalLM
    from infra_lab.quantization.evaluate import ReferenceText, TextQuality

Round = Callable[["torch.Tensor"], "torch.Tensor"]
KEY_GROUP = 32  # tokens with one scale a channel; the last, unfinished group stays as it is


@dataclass(frozen=True, slots=True)
class KVFormat:
    """`bits`: of an element, scales of fp32 included, heads of `head_dim` 64. `keys`, `values`:
    [tokens, heads, head_dim] -> the numbers that come back."""

    name: Text
    bits: float
    keys: Round
    values: Round

    def both(self, key_value: torch.Tensor) -> torch.Tensor:
        """[tokens, 2, heads, head_dim] -> the same, as the cache would give it back."""
        import torch

        keys, values = key_value.unbind(1)
        return torch.stack((self.keys(keys), self.values(values)), 1).to(key_value.dtype)


def by_rows(numbers: torch.Tensor, dtype_name: Literal["int8", "float8_e4m3fn"]) -> torch.Tensor:
    """A scale for each token and head: the engine's codes of one byte."""
    import torch

    from infra_lab.attention.kv_quantization import dequantize_rows, quantize_rows

    return dequantize_rows(*quantize_rows(numbers, getattr(torch, dtype_name)))


def integers(
    numbers: torch.Tensor,
    bits: int,
    granularity: Literal["tensor", "token", "head"],
    symmetric: bool = True,
) -> torch.Tensor:
    """Rounded to integers that share a scale as told."""
    from infra_lab.quantization.integer import quantize_numbers

    return quantize_numbers(numbers, bits, symmetric, granularity).dequantize()


def float8_tensor(numbers: torch.Tensor) -> torch.Tensor:
    """e4m3 with one scale for all, by the largest of them."""
    import torch

    from infra_lab.attention.kv_quantization import LARGEST_CODE

    scale = numbers.abs().amax() / LARGEST_CODE[torch.float8_e4m3fn]
    return (numbers / scale).to(torch.float8_e4m3fn).to(numbers.dtype) * scale


def by_channels(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """A scale for each channel of KEY_GROUP consecutive tokens, asymmetric (KIVI's keys)."""
    import torch

    from infra_lab.quantization.integer import quantize_numbers

    whole = numbers.shape[0] // KEY_GROUP * KEY_GROUP
    groups = numbers[:whole].view(-1, KEY_GROUP, *numbers.shape[1:])
    rounded = [
        quantize_numbers(group.flatten(1), bits, False, "channel").dequantize().view_as(group)
        for group in groups
    ]
    return torch.cat([*rounded, numbers[whole:]])


def formats() -> dict[str, KVFormat]:
    """Every format that is compared, by a name for its numbers."""

    def same(name: Text, bits: float, rounded: Round) -> KVFormat:
        return KVFormat(name, bits, rounded, rounded)

    row_bits, group_bits = 32 / 64, 32 / KEY_GROUP
    return {
        "int8_tensor": same(
            text("int8, one scale", "int8，单一 scale"),
            8,
            partial(integers, bits=8, granularity="tensor"),
        ),
        "int8_row": same(
            text("int8, token and head", "int8，逐 token 逐 head"),
            8 + row_bits,
            partial(by_rows, dtype_name="int8"),
        ),
        "fp8_tensor": same(text("fp8 e4m3, one scale", "fp8 e4m3，单一 scale"), 8, float8_tensor),
        "fp8_row": same(
            text("fp8 e4m3, token and head", "fp8 e4m3，逐 token 逐 head"),
            8 + row_bits,
            partial(by_rows, dtype_name="float8_e4m3fn"),
        ),
        "int8_channel": KVFormat(
            text("int8, keys by channel", "int8，key 逐通道"),
            8 + (row_bits + 2 * group_bits) / 2,
            partial(by_channels, bits=8),
            partial(by_rows, dtype_name="int8"),
        ),
        "int4_tensor": same(
            text("int4, one scale", "int4，单一 scale"),
            4,
            partial(integers, bits=4, granularity="tensor"),
        ),
        "int4_row": same(
            text("int4, token and head", "int4，逐 token 逐 head"),
            4 + 2 * row_bits,
            partial(integers, bits=4, granularity="token", symmetric=False),
        ),
        "int4_channel": KVFormat(
            text("int4, keys by channel", "int4，key 逐通道"),
            4 + group_bits + row_bits,
            partial(by_channels, bits=4),
            partial(integers, bits=4, granularity="token", symmetric=False),
        ),
        "int2_row": same(
            text("int2, token and head", "int2，逐 token 逐 head"),
            2 + 2 * row_bits,
            partial(integers, bits=2, granularity="token", symmetric=False),
        ),
        "int2_channel": KVFormat(
            text("int2, keys by channel", "int2，key 逐通道"),
            2 + group_bits + row_bits,
            partial(by_channels, bits=2),
            partial(integers, bits=2, granularity="token", symmetric=False),
        ),
    }


def attention_error(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kept: KVFormat
) -> float:
    """How far one head's attention [N, d] moves when its cache is kept so: relative, in fp64."""
    from infra_lab.claims.experiments.tiled_attention import dense_attention

    rounded = [
        one(part[:, None])[:, 0].double()
        for one, part in ((kept.keys, keys), (kept.values, values))
    ]
    wanted = dense_attention(queries.double(), keys.double(), values.double())
    found = dense_attention(queries.double(), *rounded)
    return relative_error(found, wanted)


def with_large_channels(keys: torch.Tensor, num_channels: int, factor: float) -> torch.Tensor:
    """The first channels of keys [N, d], grown."""
    grown = keys.clone()
    grown[:, :num_channels] *= factor
    return grown


def quality(
    model: DecoderForCausalLM,
    kept: KVFormat,
    windows: Sequence[Sequence[int]],
    reference: ReferenceText,
) -> TextQuality:
    """What the model makes of a text whose cache is kept so."""
    from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend
    from infra_lab.quantization.evaluate import TextModel, evaluate

    probe = Rounded(WholeSequenceBackend(model.attention_shape), kept.both)
    return evaluate(TextModel(model, as_backend(probe)), windows, reference)


def channel_ranges(
    model: DecoderForCausalLM, window: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest |k| and |v| of every channel, each [layers, kv heads, head_dim]."""
    import torch

    from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend

    probe = Counted(WholeSequenceBackend(model.attention_shape), keep=True)
    read_whole(model, probe, window)
    largest = torch.stack([one.abs().amax(0) for one in probe.keys_and_values])
    return largest[:, 0], largest[:, 1]
