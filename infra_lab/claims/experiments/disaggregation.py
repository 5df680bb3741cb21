"""Two GPUs as two whole replicas, or as one that prefills and one that decodes.

The parts of `prefill-decode-interference`: each GPU is a scheduler of the engine with a block pool
of its own, on the same roofline clock. A prompt's keys and values cross a link between the two;
the decoding side computes none of them, but the last token's, as vLLM's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from infra_lab.calculators.kv_cache import bytes_per_token
from infra_lab.calculators.parallel import transfer_s
from infra_lab.claims.experiments.step_cost import RooflineCost, chunked_config
from infra_lab.engine.simulation import SimulatedRun, TracedRequest, simulate
from infra_lab.step import SchedulerOutput

MAX_NUM_SEQS = 128


@dataclass(frozen=True, slots=True)
class Experience:
    """What a user saw of one request: seconds to the first token, and a token after it."""

    ttft_s: float
    tpot_s: float
    longest_gap_s: float

    def meets(self, ttft_s: float, tpot_s: float) -> bool:
        return self.ttft_s <= ttft_s and self.tpot_s <= tpot_s


@dataclass(frozen=True, slots=True)
class ReceivedPrompts:
    """The cost of a GPU whose prompts' keys and values came from another one: of each prompt it
    computes the last token."""

    cost: RooflineCost

    def seconds(self, step: SchedulerOutput) -> float:
        items = [
            replace(item, token_ids=item.token_ids[-1:], num_computed_tokens=item.end - 1)
            for item in step.scheduled
        ]
        return self.cost.seconds(replace(step, scheduled=items))


def colocated(
    arrivals: Sequence[TracedRequest], cost: RooflineCost, budget: int, num_gpus: int = 2
) -> tuple[list[Experience], float]:
    """Whole replicas that take requests in turn; a budget of 0 leaves prompts in one piece.
    Also gives the seconds until the last of them is done."""
    seen: list[Experience] = []
    end_s = 0.0
    for rank in range(num_gpus):
        own = arrivals[rank::num_gpus]
        run = simulate(own, chunked_config(cost, own, budget, MAX_NUM_SEQS), cost)
        seen += [experience(one.token_times_s) for one in run.served]
        end_s = max(end_s, own[0].arrival_s + run.elapsed_s)
    return seen, end_s


def disaggregated(
    arrivals: Sequence[TracedRequest], cost: RooflineCost, link_bytes_per_s: float
) -> tuple[list[Experience], float]:
    """One GPU prefills and gives the first token, the other gives the rest."""
    prompts = [replace(one, output_len=1) for one in arrivals]
    prefilled = simulate(prompts, chunked_config(cost, prompts, 0, MAX_NUM_SEQS), cost)
    first_s = _first_token_s(prompts, prefilled)
    token_bytes = bytes_per_token(cost.model, cost.setting.cache)
    moved = sorted(
        (
            first_s[index] + transfer_s(arrivals[index].prompt_len * token_bytes, link_bytes_per_s),
            index,
        )
        for index in range(len(arrivals))
    )
    received = [
        TracedRequest(moment, arrivals[index].prompt_len + 1, arrivals[index].output_len - 1)
        for moment, index in moved
    ]
    whole = replace(chunked_config(cost, received, 0, MAX_NUM_SEQS), max_num_batched_tokens=2**20)
    decoded = simulate(received, whole, ReceivedPrompts(cost))
    origin = {id(one): index for one, (_, index) in zip(received, moved, strict=True)}
    seen = []
    for one in decoded.served:
        index = origin[id(one.traced)]
        arrived_s = arrivals[index].arrival_s
        times = [one.traced.arrival_s + time - arrived_s for time in one.token_times_s]
        seen.append(experience([first_s[index] - arrived_s, *times]))
    return seen, received[0].arrival_s + decoded.elapsed_s


def experience(token_times_s: Sequence[float]) -> Experience:
    """Of a request's tokens, in seconds after its arrival; at least two of them."""
    first, last = token_times_s[0], token_times_s[-1]
    gaps = [late - early for early, late in pairwise(token_times_s)]
    return Experience(first, (last - first) / len(gaps), max(gaps))


def attained(seen: Sequence[Experience], ttft_s: float, tpot_s: float) -> float:
    """Share of the requests that met both objectives."""
    return sum(one.meets(ttft_s, tpot_s) for one in seen) / len(seen)


def _first_token_s(arrivals: Sequence[TracedRequest], run: SimulatedRun) -> list[float]:
    """The moment of each request's first token, in the order of arrival."""
    moments = {id(one.traced): one.traced.arrival_s + one.ttft_s for one in run.served}
    return [moments[id(one)] for one in arrivals]
