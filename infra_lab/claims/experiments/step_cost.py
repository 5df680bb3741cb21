"""What a step of mixed prefill and decode would take on a named GPU, by the roofline.

Every weight is read once a step, every request's keys and values once; the products run at a share
of the peak, and a step has a fixed cost of launches and scheduling. The shares are those that
engines reach (see `calculators.roofline`); conclusions must not hang on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from infra_lab.calculators.capacity import DEFAULT_UTILIZATION, capacity
from infra_lab.calculators.compute import attention_flops, attention_pairs, product_flops
from infra_lab.calculators.hardware import device
from infra_lab.calculators.kv_cache import bytes_per_token
from infra_lab.calculators.model_table import model
from infra_lab.calculators.models import Model
from infra_lab.calculators.parameters import active_linear_parameters, head_parameters
from infra_lab.calculators.roofline import Setting, read_weight_bytes, roofline_time
from infra_lab.calculators.weights import weight_bytes
from infra_lab.config import DEFAULT_BLOCK_SIZE, EngineConfig
from infra_lab.engine.simulation import TracedRequest
from infra_lab.step import SchedulerOutput
from infra_lab.texts import Text, text

COMPUTE_EFFICIENCY = 0.6
BANDWIDTH_EFFICIENCY = 0.8
OVERHEAD_S = 0.001


@dataclass(frozen=True)
class RooflineCost:
    """Seconds of a step. `setting` holds the GPU and the shares of its peaks that are reached."""

    model: Model
    setting: Setting
    overhead_s: float = 0.0
    _linear_flops: float = field(init=False)
    _head_flops: float = field(init=False)
    _pair_flops: float = field(init=False)
    _weight_bytes: float = field(init=False)
    _token_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        if self.model.experts is not None or self.model.latent is not None:
            raise ValueError("what a mixed step of experts or latents reads is not modelled here")
        derived = {
            "_linear_flops": product_flops(active_linear_parameters(self.model), 1),
            "_head_flops": product_flops(head_parameters(self.model), 1),
            "_pair_flops": attention_flops(self.model, 1),
            "_weight_bytes": read_weight_bytes(self.model, 1, self.setting.weights),
            "_token_bytes": bytes_per_token(self.model, self.setting.cache),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def seconds(self, step: SchedulerOutput) -> float:
        flops, context = 0.0, 0
        for item in step.scheduled:
            new, cached = len(item.token_ids), item.num_computed_tokens
            flops += self._linear_flops * new + self._head_flops * item.samples
            flops += self._pair_flops * attention_pairs(new, cached)
            # A token being computed is not read from the cache but in decode, where it counts.
            context += cached + (new == 1)
        read = self._weight_bytes + self._token_bytes * context
        floor = roofline_time(flops, read, self.setting.flops_per_s, self.setting.bytes_per_s)
        return floor.time_s + self.overhead_s


def llama_13b_on_a100(num_gpus: int = 1) -> RooflineCost:
    """The setting of the scheduling experiments: Llama-2-13B, 16 bits, A100 of 80 GB."""
    setting = Setting(
        device("a100-80gb"),
        num_gpus=num_gpus,
        compute_efficiency=COMPUTE_EFFICIENCY,
        bandwidth_efficiency=BANDWIDTH_EFFICIENCY,
    )
    return RooflineCost(model("llama-2-13b"), setting, OVERHEAD_S)


def blocks_that_fit(
    cost: RooflineCost,
    block_size: int = DEFAULT_BLOCK_SIZE,
    utilization: float = DEFAULT_UTILIZATION,
) -> int:
    """Of the GPUs' memory, what the weights leave for blocks."""
    one = cost.setting
    return capacity(
        one.device.memory_bytes,
        weight_bytes(cost.model, one.weights).total_bytes,
        bytes_per_token(cost.model, one.cache) * block_size,
        num_gpus=one.num_gpus,
        utilization=utilization,
    ).num_requests


def chunked_config(
    cost: RooflineCost, arrivals: Sequence[TracedRequest], budget: int, max_num_seqs: int
) -> EngineConfig:
    """With chunks of prompts that fill the budget of a step; a budget of 0 leaves every prompt in
    one piece."""
    longest = max(one.prompt_len for one in arrivals)
    return EngineConfig(
        num_blocks=blocks_that_fit(cost),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget or longest + max_num_seqs,
        enable_chunked_prefill=bool(budget),
        enable_prefix_caching=False,
    )


SETTING: Text = text(
    f"Llama-2-13B in 16 bits on an A100 of 80 GB: roofline at {COMPUTE_EFFICIENCY:.0%} of the peak "
    f"and {BANDWIDTH_EFFICIENCY:.0%} of the bandwidth, {1000 * OVERHEAD_S:.0f} ms a step",
    f"Llama-2-13B 16 bit，A100 80 GB：按 roofline 估算，取峰值算力的 {COMPUTE_EFFICIENCY:.0%}、"
    f"带宽的 {BANDWIDTH_EFFICIENCY:.0%}，每步另加 {1000 * OVERHEAD_S:.0f} ms",
)
