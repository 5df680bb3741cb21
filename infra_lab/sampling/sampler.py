"""Chooses each request's next token, and reports log-probabilities where asked.

A request's randomness is a pure function of (its seed, how many tokens it has produced), so
its tokens depend neither on who shares its batch nor on a preemption. Answers "how do you
make sampling reproducible under continuous batching?".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from infra_lab.kernels_guard import kernels_serve
from infra_lab.sampling.filters import keep_candidates
from infra_lab.sampling.logits_processors import process_logits
from infra_lab.sampling.request_state import SamplingState
from infra_lab.step import TokenLogprobs

SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[int]:
    """Picks one token a row.

    Args:
        logits: fp32 [num_requests, vocab], raw.
        states: one for each row; not changed.
    """
    if all(state.is_plain_greedy for state in states):
        return argmax_lowest_id(logits)
    if kernels_serve(logits):
        return sample_in_one_launch(logits, states)
    return [sample_row(row, state) for row, state in zip(logits, states, strict=True)]


def sample_in_one_launch(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[int]:
    """`sample` by a kernel that neither sorts nor waits: one wait for the GPU, not ten a row.

    The tokens are those of `sample_row`, but for a number of a stream that lies within an fp32
    rounding of the border between two tokens.
    """
    numbers = [uniform(state.seed, state.num_output_tokens) for state in states]
    return launch_sampling(logits, states, numbers)[0].tolist()


def launch_sampling(
    logits: torch.Tensor,
    states: Sequence[SamplingState],
    numbers: Sequence[float],
    return_probabilities: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The kernel on raw rows of logits, drawing with `numbers` in [0, 1): token ids [n], and
    where asked for the distributions fp32 [n, vocab] that they were drawn from."""
    from kernels.sampling import sample as kernel

    rows = [process_logits(row, state) for row, state in zip(logits, states, strict=True)]
    params = [state.params for state in states]
    temperature = torch.tensor(
        [_kernel_temperature(each.temperature) for each in params], device=logits.device
    )

    def if_used(values: list[float], unused: float, dtype: torch.dtype) -> torch.Tensor | None:
        if all(value == unused for value in values):
            return None
        return torch.tensor(values, dtype=dtype, device=logits.device)

    sampled = kernel(
        torch.stack(rows),
        temperature,
        # int32 holds no larger one, and none keeps more than all.
        top_k=if_used([min(each.top_k, logits.shape[-1]) for each in params], 0, torch.int32),
        top_p=if_used([each.top_p for each in params], 1.0, torch.float32),
        min_p=if_used([each.min_p for each in params], 0.0, torch.float32),
        uniform=fp32_uniforms(numbers, logits.device),
        return_probabilities=return_probabilities,
    )
    return sampled.token_ids, sampled.probabilities


def fp32_uniforms(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """As a kernel takes them: below 1 even where fp32 rounds up to it."""
    return torch.tensor(numbers, dtype=torch.float32, device=device).clamp(max=1 - 2**-24)


def _kernel_temperature(temperature: float) -> float:
    """As fp32, where the least above 0 would become 0, which is greedy: equal logits share."""
    return max(temperature, SMALLEST_TEMPERATURE) if temperature > 0.0 else 0.0


def argmax_lowest_id(logits: torch.Tensor) -> list[int]:
    """logits: [num_rows, vocab], raw or processed -> for each row the likeliest token, the lowest
    id among equals."""
    if logits.is_cpu:
        # NumPy's takes a seventh of the time of torch's, which was 3 % of a step; but of a matrix
        # whose rows are padded apart it makes a copy first.
        return [int(row.argmax()) for row in logits.numpy()]
    return logits.argmax(dim=-1).tolist()


def sample_row(logits: torch.Tensor, state: SamplingState) -> int:
    """logits: fp32 [vocab], raw -> token id."""
    if state.params.temperature == 0.0:
        return argmax_lowest_id(process_logits(logits, state).unsqueeze(0))[0]
    token_ids, values = surviving_tokens(logits, state)
    choice = pick(values, uniform(state.seed, state.num_output_tokens))
    return int(token_ids[choice])


def surviving_tokens(
    logits: torch.Tensor, state: SamplingState
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits: fp32 [vocab], raw -> the ids [n] that a temperature above 0 may draw and their
    logits [n] after it, in the order in which their masses are added."""
    logits = process_logits(logits, state)
    # The largest becomes 0 and the divisor stays a normal fp32 number, so that no temperature,
    # however small, makes a NaN: it makes the choice greedy.
    temperature = max(state.params.temperature, SMALLEST_TEMPERATURE)
    return keep_candidates((logits - logits.max()) / temperature, state.params)


def pick(logits: torch.Tensor, u: float) -> int:
    """Inverse-CDF sampling: the first index whose cumulative softmax exceeds u in [0, 1).

    Sums in float64, so that no token of a large vocabulary is lost to rounding.
    """
    return pick_by_weight((logits - logits.max()).double().exp(), u)


def pick_by_weight(weights: torch.Tensor, u: float) -> int:
    """The same of weights, float64 [n], at least 0 and not all 0."""
    cumulative = weights.cumsum(-1)
    index = int(torch.searchsorted(cumulative, u * float(cumulative[-1]), right=True))
    return min(index, int(weights.nonzero()[-1]))


def uniform(seed: int, index: int) -> float:
    """The index-th number in [0, 1) of a request's own stream: counter-based (Philox,
    Salmon et al. 2011), so any index can be had without those before it."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index)).random())


def speculation_uniforms(seed: int, index: int) -> tuple[float, float]:
    """Two more numbers of that place in the stream, independent of `uniform` and each other: the
    one that draws a draft token, and the one that decides whether it stands."""
    numbers = np.random.Generator(np.random.Philox(key=seed, counter=index)).random(3)
    return float(numbers[1]), float(numbers[2])


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Log-probabilities of the model's own distribution: before bias, penalties, temperature.

    Args:
        logits: fp32 [n, vocab], raw.
        token_ids: the chosen token of each row.
        num_top: how many likeliest tokens to list for each row.
    """
    # Not logsumexp: torch shares a single row's sum among threads, and then the last bits would
    # depend on how many requests are in the batch.
    logprobs = logits.log_softmax(-1)
    index = torch.tensor(token_ids, device=logits.device).unsqueeze(-1)
    chosen = logprobs.gather(-1, index)
    ranks = (logits > logits.gather(-1, index)).sum(-1) + 1
    most = max(num_top)
    top = logprobs.topk(most, dim=-1) if most > 0 else None
    result = []
    for row, token_id in enumerate(token_ids):
        listed: list[tuple[int, float]] = []
        if top is not None:
            ids = top.indices[row, : num_top[row]].tolist()
            values = top.values[row, : num_top[row]].tolist()
            listed = list(zip(ids, values, strict=True))
        result.append(TokenLogprobs(int(token_id), float(chosen[row, 0]), int(ranks[row]), listed))
    return result
