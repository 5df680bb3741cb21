"""A serving benchmark from plan to report: what is sent, when and how, to whichever endpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from infra_lab.bench.arrivals import Arrivals
from infra_lab.bench.openai_endpoint import APIS, Endpoint
from infra_lab.bench.serving import ServingRun, drive, measure_words
from infra_lab.bench.serving_report import Slo, run_figures
from infra_lab.bench.serving_requests import ServingRequest, draw_requests, parse_lengths, take
from infra_lab.bench.system import machine_facts
from infra_lab.errors import UsageError

Notify = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Everything about a benchmark but whom it measures.

    Attributes:
        arrivals: one run each, in this order.
        prompt_len, output_len: as `parse_lengths` takes them; of random words.
        prompts: requests to send in place of random words.
        max_concurrency: most requests under way; None does not limit them.
        ignore_eos: asks for answers of exactly the length drawn, where the endpoint can do that.
        timeout_s: what one request may take, whole.
        seed: of arrivals, lengths and words; each run has its own, so that no run finds what an
            earlier one left in a prefix cache.
    """

    arrivals: tuple[Arrivals, ...] = (Arrivals(),)
    num_requests: int = 100
    prompt_len: str = "sharegpt"
    output_len: str = "sharegpt"
    prompts: tuple[ServingRequest, ...] | None = None
    api: str = "completions"
    max_concurrency: int | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout_s: float = 600.0
    seed: int = 0
    slo: Slo | None = None

    def __post_init__(self) -> None:
        if self.api not in APIS:
            raise UsageError(f"--api must be {' or '.join(APIS)}, not {self.api!r}")
        if not 0 < self.timeout_s < math.inf:
            raise UsageError(f"--timeout must be above 0 seconds, not {self.timeout_s:g}")
        parse_lengths("--prompt-len", self.prompt_len, 0)
        parse_lengths("--output-len", self.output_len, 1)
        if self.api == "completions":
            for one in self.prompts or ():
                if not isinstance(one.prompt, str):
                    raise UsageError("--prompts has messages in it: give --api chat")

    @property
    def parameters(self) -> dict[str, Any]:
        """What every request has beside its prompt and max_tokens."""
        given: dict[str, Any] = {"temperature": self.temperature}
        return given | {"ignore_eos": True} if self.ignore_eos else given

    async def run(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        notify: Notify = lambda done, total, what: None,
    ) -> list[ServingRun]:
        """One run for each of `arrivals`, behind two short requests that warm the endpoint up.

        Raises EndpointError if it does not answer those.
        """
        endpoint = Endpoint(base_url, model, self.api, api_key, self.parameters, self.timeout_s)
        try:
            cost = await measure_words(endpoint)
            runs = []
            for number, arrivals in enumerate(self.arrivals):
                seed, what = self.seed + number, rate_name(arrivals.rate_per_s)
                if self.prompts is not None:
                    requests = take(self.prompts, self.num_requests)
                else:
                    prompt_len = parse_lengths("--prompt-len", self.prompt_len, 0)
                    output_len = parse_lengths("--output-len", self.output_len, 1)
                    requests = draw_requests(self.num_requests, prompt_len, output_len, cost, seed)
                times_s = arrivals.times_s(self.num_requests, seed)
                notify(0, self.num_requests, what)
                runs.append(
                    await drive(
                        endpoint,
                        requests,
                        times_s,
                        self.max_concurrency,
                        lambda done, total, what=what: notify(done, total, what),  # type: ignore[misc]
                    )
                )
            return runs
        finally:
            await endpoint.close()

    def report(
        self, base_url: str | None, model: str, runs: Sequence[ServingRun]
    ) -> dict[str, Any]:
        """Everything about a measurement as one JSON-ready object; None as base_url is a server
        that was started for it."""
        figures = [
            run_figures(run, arrivals, self.slo)
            for run, arrivals in zip(runs, self.arrivals, strict=True)
        ]
        is_random = self.prompts is None
        burstiness = self.arrivals[0].burstiness
        return {
            "runs": figures,
            "model": model,
            "base_url": base_url,
            "api": self.api,
            "burstiness": None if math.isinf(burstiness) else burstiness,
            "max_concurrency": self.max_concurrency,
            "prompt_len": self.prompt_len if is_random else None,
            "output_len": self.output_len if is_random else None,
            "parameters": self.parameters,
            "seed": self.seed,
            "slo_ms": None if self.slo is None else self.slo.limits,
            "client": machine_facts(),
        }


def rate_name(rate_per_s: float | None) -> str:
    """For people; None and inf have no gaps between arrivals."""
    if rate_per_s is None or math.isinf(rate_per_s):
        return "all at once"
    return f"{rate_per_s:g}/s"
