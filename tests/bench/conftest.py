"""An engine that produces as many tokens as asked, on a clock that tests move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from infra_lab.outputs import CompletionOutput, RequestMetrics, RequestOutput
from infra_lab.sampling_params import SamplingParams


@dataclass
class FakeEngine:
    """Takes one second a call, 0.25 s of it to the first token.

    `missing` tokens are left out of the last request's output, as a faulty engine would.
    """

    missing: int = 0
    error: str | None = None
    now: float = 0.0
    calls: list[tuple[list[list[int]], list[SamplingParams]]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_progress: bool = False,
    ) -> list[RequestOutput]:
        self.calls.append(([list(prompt) for prompt in prompts], list(sampling_params)))
        start = self.now
        self.now += 1.0
        outputs = []
        for index, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True)):
            count = (params.max_tokens or 0) - (self.missing if index == len(prompts) - 1 else 0)
            outputs.append(
                RequestOutput(
                    request_id=f"request-{index}",
                    prompt=None,
                    prompt_token_ids=list(prompt),
                    outputs=[CompletionOutput(index=0, token_ids=[7] * count)],
                    finished=True,
                    metrics=RequestMetrics(start, start, start + 0.25, self.now, count),
                    error=self.error,
                )
            )
        return outputs


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def short_engine() -> FakeEngine:
    """One that stops two tokens early and says why."""
    return FakeEngine(missing=2, error="out of blocks")
