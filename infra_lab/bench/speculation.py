"""When speculation pays: tokens a step, acceptance by place, and time, by kind of draft and work.

Answers "by how much does speculative decoding speed you up?" with the question it must be answered
with: on what text, for how many at once? The same greedy prompts are answered without drafts and
with each kind; the ids are compared, and only then the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from infra_lab.bench.engine import (
    Clock,
    EngineSettings,
    MeasurementError,
    arithmetic_threads,
    open_engine,
)
from infra_lab.bench.prompts import WORKS, work
from infra_lab.bench.system import machine_facts
from infra_lab.errors import UsageError
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative.acceptance import SpeculativeStats
from infra_lab.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from infra_lab.engine.llm import LLM

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SpeculationRun:
    """One kind of draft on one kind of work with so many requests at a time.

    Attributes:
        batch: requests handed over together; the eight go in turns of that many.
        output_tokens, first_tokens: of all requests; a first token comes out of its prompt's step.
        accepted, drafted: draft tokens.
        per_pos: of drafts that reached a place, the share accepted up to and with it.
        elapsed_s: median of the repeats.
    """

    work: str
    batch: int
    method: str
    output_tokens: int
    first_tokens: int
    accepted: int
    drafted: int
    per_pos: tuple[float, ...]
    elapsed_s: float

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gets from a step that decodes it; 1 without drafts."""
        decoded = self.output_tokens - self.first_tokens
        return decoded / max(decoded - self.accepted, 1)


def methods(
    num_layers: int, num_tokens: int, draft_model: str | None, draft_layers: Sequence[int]
) -> dict[str, SpeculativeConfig | None]:
    """What is compared, by name; none comes first. Raises UsageError for what cannot draft."""
    found: dict[str, SpeculativeConfig | None] = {"none": None}
    found["n-gram"] = SpeculativeConfig("ngram", num_tokens)
    for layers in draft_layers:
        if not 1 <= layers < num_layers:
            raise UsageError(
                f"--draft-layers must be from 1 to {num_layers - 1} for this model, not {layers}"
            )
        name = f"first {layers} of {num_layers} layers"
        found[name] = SpeculativeConfig("draft_model", num_tokens, draft_layers=layers)
    if draft_model is not None:
        config = SpeculativeConfig("draft_model", num_tokens, draft_model=draft_model)
        found[Path(draft_model).name] = config
    return found


def compare_speculation(
    path: Path,
    settings: EngineSettings,
    kinds: Mapping[str, SpeculativeConfig | None],
    batches: Sequence[int],
    output_len: int,
    repeats: int,
    notify: Notify,
    cache_dir: Path | None = None,
) -> list[SpeculationRun]:
    """Every kind of draft on every work and batch; raises MeasurementError if ids differ."""
    runs: list[SpeculationRun] = []
    expected: dict[tuple[str, int], list[list[int]]] = {}
    for method, config in kinds.items():
        notify(f"loading the model: {method}")
        llm = open_engine(path, replace(settings, speculative=config), cache_dir=cache_dir)
        for name, batch in product(WORKS, batches):
            run, ids = measure(llm, name, batch, method, output_len, repeats)
            if ids != expected.setdefault((name, batch), ids):
                raise MeasurementError(f"{method}, {name}: drafts changed the greedy output")
            runs.append(run)
            notify(f"{method}, {name}, {batch} at once: {run.elapsed_s:.1f} s")
        del llm  # two pools would be there at once
    return runs


def measure(
    llm: LLM,
    name: str,
    batch: int,
    method: str,
    output_len: int,
    repeats: int,
    clock: Clock = time.perf_counter,
) -> tuple[SpeculationRun, list[list[int]]]:
    """The run, and the ids that came out; each repeat must give the same."""
    conversations = [[{"role": "user", "content": text}] for text in work(name)]
    params = SamplingParams(temperature=0.0, max_tokens=output_len)
    llm.chat(conversations[:batch], replace(params, max_tokens=4), use_progress=False)
    times, ids = [], []
    accepted = drafted = 0
    per_pos: tuple[float, ...] = ()
    for _ in range(repeats):
        if llm.engine.speculation is not None:
            llm.engine.speculation.stats = SpeculativeStats()
        start = clock()
        outputs = []
        for first in range(0, len(conversations), batch):
            outputs += llm.chat(conversations[first : first + batch], params, use_progress=False)
        times.append(clock() - start)
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        accepted = sum(output.metrics.num_accepted_tokens for output in outputs)
        drafted = sum(output.metrics.num_draft_tokens for output in outputs)
        if llm.engine.speculation is not None:
            per_pos = tuple(llm.engine.speculation.stats.acceptance_rate_per_pos)
    produced = sum(map(len, ids))
    elapsed = median(times)
    run = SpeculationRun(
        name, batch, method, produced, len(ids), accepted, drafted, per_pos, elapsed
    )
    return run, ids


def speculation_report(
    model: str, dtype: str, num_tokens: int, repeats: int, runs: Sequence[SpeculationRun]
) -> dict[str, Any]:
    """Everything about a measurement as one JSON-ready object; the figures come first."""
    base = {(run.work, run.batch): run for run in runs if run.method == "none"}
    rows = [
        {
            "work": run.work,
            "batch": run.batch,
            "draft": run.method,
            "tokens_per_step": run.tokens_per_step,
            "acceptance_rate": run.accepted / run.drafted if run.drafted else None,
            "acceptance_rate_per_pos": list(run.per_pos),
            "output_tokens": run.output_tokens,
            "output_tokens_per_s": run.output_tokens / run.elapsed_s,
            "speedup": base[run.work, run.batch].elapsed_s / run.elapsed_s,
        }
        for run in sorted(runs, key=lambda run: (WORKS.index(run.work), run.batch))
    ]
    return {
        "runs": rows,
        "num_speculative_tokens": num_tokens,
        "repeats": repeats,
        "model": model,
        "dtype": dtype,
        "threads": arithmetic_threads(),
        "machine": machine_facts(),
    }
