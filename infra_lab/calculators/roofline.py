"""The time that a step cannot go below: arithmetic at the peak, or bytes at the full bandwidth.

Answers "what are the floors of TTFT and TPOT on this GPU, and from which batch on is decode bound
by arithmetic?". Floors, not forecasts: measured decode reaches 60 to 80 % of the bandwidth
(`efficiency`), and a step also launches kernels and talks to other GPUs (see `parallel`).
Williams, Waterman, Patterson 2009, "Roofline".
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.calculators.checks import require_count, require_efficiency, require_positive
from infra_lab.calculators.compute import decode_flops, prefill_flops
from infra_lab.calculators.formats import NumberFormat, number_format
from infra_lab.calculators.hardware import Device
from infra_lab.calculators.kv_cache import bytes_per_token
from infra_lab.calculators.models import Model
from infra_lab.calculators.parameters import (
    expert_parameters,
    head_parameters,
    linear_parameters,
)
from infra_lab.calculators.weights import other_format

BF16 = number_format("bf16")


def default_operands(weights: NumberFormat) -> str:
    """What the products multiply if nothing else is said: weight-only formats are widened to 16
    bits, and 32 stay 32."""
    return "fp32" if weights.name == "fp32" else "bf16"


@dataclass(frozen=True, slots=True)
class RooflineTime:
    """Both ways to bound one step; the longer one is the floor."""

    compute_s: float
    memory_s: float

    @property
    def time_s(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> str:
        return "compute" if self.compute_s > self.memory_s else "memory"


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model runs on GPUs of one kind: formats, operands of the products, shares of the peaks.

    `operands` is the type that the tensor cores multiply: weight-only formats keep it at 16 bits.
    `num_gpus` splits arithmetic and bytes evenly, as tensor parallelism does.
    """

    device: Device
    weights: NumberFormat = BF16
    cache: NumberFormat = BF16
    operands: str = "bf16"
    num_gpus: int = 1
    compute_efficiency: float = 1.0
    bandwidth_efficiency: float = 1.0

    def __post_init__(self) -> None:
        require_count("num_gpus", self.num_gpus)
        require_efficiency("compute_efficiency", self.compute_efficiency)
        require_efficiency("bandwidth_efficiency", self.bandwidth_efficiency)
        self.device.peak(self.operands)

    @property
    def flops_per_s(self) -> float:
        return self.device.peak(self.operands) * self.compute_efficiency * self.num_gpus

    @property
    def bytes_per_s(self) -> float:
        return self.device.bandwidth_bytes_per_s * self.bandwidth_efficiency * self.num_gpus


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step in FLOPs and bytes read, by part."""

    flops: float
    weight_bytes: float
    cache_bytes: float

    @property
    def intensity_flops_per_byte(self) -> float:
        return self.flops / (self.weight_bytes + self.cache_bytes)


def roofline_time(
    flops: float, read_bytes: float, flops_per_s: float, bytes_per_s: float
) -> RooflineTime:
    """compute_s = FLOPs / peak, memory_s = bytes / bandwidth."""
    require_positive("flops_per_s", flops_per_s)
    require_positive("bytes_per_s", bytes_per_s)
    return RooflineTime(flops / flops_per_s, read_bytes / bytes_per_s)


def read_weight_bytes(model: Model, num_tokens: int, weights: NumberFormat = BF16) -> float:
    """What a step of so many tokens reads of the weights: layers, output matrix (16 bits).

    Of the embeddings it reads a row a token, which is nothing. Of the experts it reads those that
    some token was sent to, in the mean of even and independent routing: E (1 - (1 - k / E)^tokens).
    """
    require_count("num_tokens", num_tokens)
    elements: float = linear_parameters(model)
    if model.experts is not None:
        met = experts_met(model.experts.num_experts, model.experts.num_active, num_tokens)
        idle = model.experts.num_experts - met
        elements -= model.num_expert_layers * idle * expert_parameters(model)
    head = head_parameters(model) * other_format(weights).bytes_per_element
    return elements * weights.bytes_per_element + head


def experts_met(num_experts: int, num_active: int, num_tokens: int) -> float:
    """Distinct experts that `num_tokens` tokens meet in the mean, each sent to `num_active`."""
    require_count("num_experts", num_experts)
    require_count("num_active", num_active)
    return num_experts * (1 - (1 - num_active / num_experts) ** num_tokens)


def prefill_cost(
    model: Model, num_tokens: int, num_cached: int = 0, setting: Setting | None = None
) -> StepCost:
    """One prompt's chunk: every weight once, the cached tokens' keys and values once."""
    weights, cache = _formats(setting)
    return StepCost(
        flops=prefill_flops(model, num_tokens, num_cached).total_flops,
        weight_bytes=read_weight_bytes(model, num_tokens, weights),
        cache_bytes=num_cached * bytes_per_token(model, cache),
    )


def decode_cost(
    model: Model, num_requests: int, context: int, setting: Setting | None = None
) -> StepCost:
    """One token a request: every weight once, every request's keys and values once."""
    weights, cache = _formats(setting)
    return StepCost(
        flops=decode_flops(model, num_requests, context).total_flops,
        weight_bytes=read_weight_bytes(model, num_requests, weights),
        cache_bytes=num_requests * context * bytes_per_token(model, cache),
    )


def step_time(cost: StepCost, setting: Setting) -> RooflineTime:
    """One maximum over the whole step: what no machine can beat, even one that reads a cache while
    it multiplies. Kernels that run one after another take the sum of theirs, up to twice this."""
    return roofline_time(
        cost.flops, cost.weight_bytes + cost.cache_bytes, setting.flops_per_s, setting.bytes_per_s
    )


def ttft_floor(
    model: Model, num_tokens: int, setting: Setting, num_cached: int = 0
) -> RooflineTime:
    """Time to first token of a prompt alone on the GPUs, `num_cached` of it found in the cache."""
    return step_time(prefill_cost(model, num_tokens, num_cached, setting), setting)


def tpot_floor(model: Model, num_requests: int, context: int, setting: Setting) -> RooflineTime:
    """Time per output token of a batch: one decode step."""
    return step_time(decode_cost(model, num_requests, context, setting), setting)


def crossover_batch(model: Model, context: int, setting: Setting) -> float | None:
    """The batch from which on decode is bound by arithmetic; None where that never happens.

    W + B k bytes and B f FLOPs: B = (W / bandwidth) / (f / peak - k / bandwidth). With a context
    of nothing and 16-bit weights that is the ridge. A long context makes k / bandwidth the larger:
    each request brings its own bytes, and no batch helps. For models without experts, whose read
    bytes do not depend on the batch.
    """
    one = decode_cost(model, 1, context, setting)
    per_request = one.flops / setting.flops_per_s - one.cache_bytes / setting.bytes_per_s
    if model.experts is not None or per_request <= 0:
        return None
    return one.weight_bytes / setting.bytes_per_s / per_request


def crossover_context(model: Model, setting: Setting) -> float | None:
    """The context from which on no batch of decodes is bound by arithmetic; None where every
    context has such a batch.

    With s tokens of context a request brings f + a s FLOPs and k s bytes; both take equally long
    at s = (f / peak) / (k / bandwidth - a / peak). Where attention alone is bound by arithmetic,
    which takes many query heads for each cached number as in MLA, that never comes.
    """
    one, two = (decode_cost(model, 1, context, setting) for context in (1, 2))
    per_token_flops = two.flops - one.flops
    per_token_s = one.cache_bytes / setting.bytes_per_s - per_token_flops / setting.flops_per_s
    if per_token_s <= 0:
        return None
    return (one.flops - per_token_flops) / setting.flops_per_s / per_token_s


def intensity_limit(model: Model, context: int, setting: Setting) -> float:
    """FLOPs a byte of an endless batch: only the requests' own bytes are left to divide by."""
    one = decode_cost(model, 1, context, setting)
    return one.flops / one.cache_bytes


def ridge_batch(weights: NumberFormat, setting: Setting) -> float:
    """Tokens a step from which on the matrix products alone are bound by arithmetic.

    2 P B / peak = P b / bandwidth: B = peak / bandwidth x b / 2 with b bytes a weight. The ridge
    itself for 16 bits, a quarter of it for 4: fewer bytes reach the limit of arithmetic earlier.
    """
    return setting.flops_per_s / setting.bytes_per_s * weights.bytes_per_element / 2


def _formats(setting: Setting | None) -> tuple[NumberFormat, NumberFormat]:
    """Of weights and cache; 16 bits where nothing else is said."""
    return (BF16, BF16) if setting is None else (setting.weights, setting.cache)
