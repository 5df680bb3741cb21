"""Every quantization method on one model and one text, side by side.

Answers "which method at how many bits?" with measurements: bits a weight as stored, size,
perplexity, KL divergence to the model as it was and top-1 agreement with it, and tokens a second
where layers run on packed weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra_lab.bench.quality_rows import ComparedRow
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.models.parameters import num_parameters
from infra_lab.quantization.modules import num_linear_weights
from infra_lab.quantization.settings import METHODS, PER_ROW, QuantizationSettings, choose_settings

if TYPE_CHECKING:
    import torch

    from infra_lab.engine.engine_core import EngineCore
    from infra_lab.models.checkpoint import Checkpoint
    from infra_lab.quantization.evaluate import ReferenceText
    from infra_lab.quantization.overlay import OverlayCheckpoint

BITS = (8, 4, 3, 2)
_SPEED_TOKENS = 48
_SPEED_REPEATS = 3
Progress = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Variant:
    """A row's method and numbers; what it leaves open is the method's default."""

    method: str
    bits: int
    activation_bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None

    def settings(
        self, config: ModelConfig, common: dict[str, Any], group_size: int | None = None
    ) -> QuantizationSettings:
        """common: of all rows whose method knows it. group_size: of those that leave it open and
        have a choice."""
        method = METHODS[self.method]
        if not method.grouped or "group_size" not in method.options:
            group_size = None
        own = {
            "bits": self.bits,
            "activation_bits": self.activation_bits,
            "group_size": self.group_size or group_size,
            "symmetric": self.symmetric,
        }
        known = {name: value for name, value in common.items() if name in method.known}
        return choose_settings(self.method, config, known | own)


def default_variants(methods: Sequence[str] | None, bits: Sequence[int] | None) -> list[Variant]:
    """Weights alone at every number of bits; then inputs rounded as well, each method beside the
    plain rounding that it is to improve on. Narrowed to these methods and bits, where given.

    Raises UsageError for a method there is not, or where nothing is left.
    """
    for name in methods or ():
        if name not in METHODS:
            raise UsageError(f"no method {name!r}: there are {', '.join(METHODS)}")
    weight_only = [
        Variant(method, width)
        for width in BITS
        for method in ("rtn", "gptq", "awq", "rotation", "quip")
    ]
    weight_only += [Variant("nf4", 4), Variant("mxfp4", 4)]
    both = [
        Variant("rtn", 8, 8, PER_ROW, symmetric=True),
        *(Variant("smoothquant", width, 8) for width in BITS),
        Variant("llm_int8", 8),
        Variant("fp8", 8),
        Variant("rtn", 4, 4, symmetric=True),
        Variant("rotation", 4, 4, symmetric=True),
    ]
    chosen = [
        variant
        for variant in weight_only + both
        if (not methods or variant.method in methods) and (not bits or variant.bits in bits)
    ]
    if not chosen:
        raise UsageError("no method has that many bits: give others")
    return chosen


class Comparison:
    """Rows on one model and text. The reference is the model as it is, in fp32."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        windows: Sequence[Sequence[int]],
        sequences: torch.Tensor | None,
        progress: Progress,
        measure_speed: Callable[[Checkpoint], float] | None = None,
    ) -> None:
        """sequences: to calibrate on, None if no method is to be. measure_speed: gives tokens a
        second of a checkpoint."""
        self._checkpoint = checkpoint
        self._windows = windows
        self._sequences = sequences
        self._progress = progress
        self._measure_speed = measure_speed
        self._reference: ReferenceText | None = None

    def row(self, settings: QuantizationSettings | None) -> ComparedRow:
        """Of the model quantized so; None: of the model itself."""
        return self._model_row() if settings is None else self._quantized_row(settings)

    def _model_row(self) -> ComparedRow:
        from infra_lab.quantization.overlay import OverlayCheckpoint

        # In fp32 indeed: a file's own codes would run packed.
        dense = OverlayCheckpoint(self._checkpoint)
        return ComparedRow(
            "fp32",
            {},
            32.0,
            4 * num_parameters(self._checkpoint.config),
            self._said_by_the_model().likelihood().perplexity,
            0.0,
            1.0,
            self._speed(dense),
            0.0,
        )

    def _quantized_row(self, settings: QuantizationSettings) -> ComparedRow:
        from infra_lab.quantization.evaluate import TextModel, evaluate
        from infra_lab.quantization.quantize import quantize_model
        from infra_lab.quantization.targets import target_format

        name = row_name(settings)
        weight_format = None if settings.format is None else target_format(settings)
        started = time.perf_counter()
        quantized = quantize_model(
            self._checkpoint,
            settings,
            self._sequences,
            weight_format,
            progress=lambda done, total, what: self._progress(
                done, total, f"{name}: quantizing {what}"
            ),
        )
        quantize_s = time.perf_counter() - started
        model = TextModel.load(quantized, max(map(len, self._windows)))
        quality = evaluate(
            model, self._windows, self._said_by_the_model(), self._saying(name, "evaluating")
        )
        del model
        linear_bytes = _linear_bytes(quantized, weight_format)
        config = quantized.config
        others = num_parameters(config) - num_linear_weights(config)
        return ComparedRow(
            name,
            settings.described(),
            8 * linear_bytes / num_linear_weights(config),
            linear_bytes + 2 * others,
            quality.likelihood.perplexity,
            quality.kl_divergence or 0.0,
            quality.top1_agreement or 0.0,
            self._speed(quantized),
            quantize_s,
        )

    def _said_by_the_model(self) -> ReferenceText:
        """Made when the first row needs it: a comparison may find all of them finished."""
        from infra_lab.quantization.evaluate import ReferenceText, TextModel

        if self._reference is None:
            model = TextModel.load(self._checkpoint, max(map(len, self._windows)))
            told = self._saying("fp32", "evaluating")
            self._reference = ReferenceText(model, self._windows, told)
        return self._reference

    def _speed(self, checkpoint: Checkpoint) -> float | None:
        return None if self._measure_speed is None else self._measure_speed(checkpoint)

    def _saying(self, name: str, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._progress(done, total, f"{name}: {what}")


def row_name(settings: QuantizationSettings) -> str:
    """W4A16 is four bits a weight, and inputs as they are."""
    return f"{settings.method} W{settings.bits}A{settings.activation_bits or 16}"


def single_stream_speed(checkpoint: Checkpoint) -> float:
    """Tokens a second of one greedy request, in the engine: the best of three, since another
    program's work only ever slows one down."""
    from infra_lab.config import EngineConfig
    from infra_lab.engine.build import build_engine

    config = EngineConfig(num_blocks=16, max_num_seqs=1, device="cpu", dtype="float32")
    engine = build_engine(checkpoint, None, config)
    return max(_speed_of_one_request(engine, str(repeat)) for repeat in range(_SPEED_REPEATS))


def _speed_of_one_request(engine: EngineCore, request_id: str) -> float:
    from infra_lab.sampling_params import SamplingParams

    prompt = list(range(1, 17))
    params = SamplingParams(temperature=0.0, max_tokens=_SPEED_TOKENS + 8, ignore_eos=True)
    engine.add_request(request_id, prompt, params)
    for _ in range(8):  # the first steps record and warm up
        engine.step()
    started, tokens = time.perf_counter(), 0
    while engine.has_unfinished_requests and tokens < _SPEED_TOKENS:
        engine.step()
        tokens += 1
    elapsed = time.perf_counter() - started
    while engine.has_unfinished_requests:
        engine.step()
    return tokens / elapsed


def _linear_bytes(quantized: OverlayCheckpoint, weight_format: Any) -> int:
    """As the format stores them; where there is none, codes in their bits, scales in 16."""
    total = 0
    for weight in quantized.weights.values():
        if weight_format is not None:
            total += sum(tensor.nbytes for tensor in weight_format.write(weight).values())
            continue
        bits = weight.codes.numel() * weight.bits + weight.scales.numel() * 16
        bits += 0 if weight.zeros is None else weight.zeros.numel() * weight.bits
        bits += 0 if weight.g_idx is None else weight.g_idx.numel() * 32
        total += math.ceil(bits / 8)
    return total
