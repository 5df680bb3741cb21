"""What the engine did, as typed records: to watch live, to keep, to read back.

Answers "what would you log to explain one slow request?": per step the batch, tokens, blocks,
cache hits, evictions, preemptions and where the time went; per request its arrival and its end.
Panels, figures and dashboards only read these records. Torch-free.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TextIO, TypeVar

from infra_lab.errors import InfraLabError, UsageError

DEFAULT_CAPACITY = 1024
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The sizes against which the other records are read."""

    type: ClassVar[str] = "engine_started"
    time_s: float
    model: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class RequestArrived:
    type: ClassVar[str] = "request_arrived"
    time_s: float
    request_id: str
    num_prompt_tokens: int
    max_tokens: int | None = None
    num_samples: int = 1


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """How a request ended ("stop", "length", "abort", "error") and how it fared."""

    type: ClassVar[str] = "request_finished"
    time_s: float
    request_id: str
    reason: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_time_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One request's share of a step: `num_tokens` after `num_computed_tokens` known ones."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int
    is_prompt_chunk: bool


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One step of the engine.

    Attributes:
        step: counts from 0.
        start_time_s: on the same monotonic clock as all times here.
        schedule_ms, execute_ms, update_ms, propose_ms: the parts of a step, the last the drafting
            for the next one; `prepare_ms`, `model_ms` and `sample_ms` are the parts of
            `execute_ms` where the worker reports them.
        num_sampled_tokens: output tokens that the step produced.
        num_draft_tokens, num_accepted_tokens: drafted ones among the batch, and those that stood.
        blocks_used, blocks_cached, blocks_free: the pool after the step; cached blocks are held by
            no request and found by their hash. The three add up to the pool.
        prefix_hit_tokens: prompt tokens of this step's batch that the cache saved computing.
        num_evictions: cached blocks given up in this step for new tokens.
        num_swap_outs, num_swap_ins: blocks copied to the swap space and from it.
    """

    type: ClassVar[str] = "step"
    step: int
    start_time_s: float
    schedule_ms: float
    execute_ms: float
    update_ms: float
    batch: tuple[BatchEntry, ...] = ()
    num_sampled_tokens: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    prefix_hit_tokens: int = 0
    num_evictions: int = 0
    preempted_request_ids: tuple[str, ...] = ()
    num_running: int = 0
    num_waiting: int = 0
    prepare_ms: float | None = None
    model_ms: float | None = None
    sample_ms: float | None = None
    num_swap_outs: int = 0
    num_swap_ins: int = 0
    propose_ms: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(entry.num_tokens for entry in self.batch)

    @property
    def total_ms(self) -> float:
        return self.schedule_ms + self.execute_ms + self.update_ms + self.propose_ms


Event = EngineStarted | RequestArrived | RequestFinished | StepEvent
EVENT_TYPES: Mapping[str, type[Event]] = {
    kind.type: kind for kind in (EngineStarted, RequestArrived, RequestFinished, StepEvent)
}


class EventLog:
    """Takes records, keeps the latest in memory, and passes them on.

    Args:
        path: a file that gets one JSON object a line, replaced if it exists. Lines are complete
            whenever a reader sees them. Raises UsageError if it cannot be opened.
        capacity: records kept in memory; 0 keeps none.
    """

    def __init__(self, path: Path | str | None = None, capacity: int = DEFAULT_CAPACITY) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 0:
            raise UsageError(
                f"the capacity of an event log must be an integer of at least 0, not {capacity!r}"
            )
        self._recent: deque[Event] = deque(maxlen=capacity)
        self._capacity = capacity
        self._subscribers: list[Callable[[Event], None]] = []
        self._file = None if path is None else _open_for_writing(Path(path))
        self.write_error: str | None = None

    @property
    def enabled(self) -> bool:
        """Whether anyone listens; where not, building a record is work for nothing."""
        return self._capacity > 0 or self._file is not None or bool(self._subscribers)

    @property
    def recent(self) -> list[Event]:
        """The latest records, oldest first."""
        return list(self._recent)

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Calls `subscriber` with every record from now on; the returned function ends that."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def append(self, event: Event) -> None:
        self._recent.append(event)
        for subscriber in tuple(self._subscribers):
            subscriber(event)
        if self._file is not None:
            self._write(self._file, event)

    def close(self) -> None:
        """Closes the file; memory and subscribers go on. May be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, file: TextIO, event: Event) -> None:
        """A full disk ends the file and sets `write_error`; no request may die of its log."""
        try:
            file.write(encode_event(event) + "\n")
        except OSError as error:
            self.write_error = f"the event log stopped: {error.strerror or error}"
            self._file = None
            with contextlib.suppress(OSError):
                file.close()


def encode_event(event: Event) -> str:
    """One line of JSON, `type` first."""
    values = {"type": event.type, **_values_of(event)}
    return json.dumps(values, separators=(",", ":"), default=_values_of)


def decode_event(line: str) -> Event:
    """The record that `encode_event` wrote; raises InfraLabError saying what is wrong with it."""
    try:
        values = json.loads(line)
    except ValueError:
        raise InfraLabError("not a JSON object") from None
    if not isinstance(values, dict):
        raise InfraLabError("not a JSON object")
    kind = EVENT_TYPES.get(str(values.pop("type", None)))
    if kind is None:
        raise InfraLabError(f"its type is none of {', '.join(EVENT_TYPES)}")
    for name in {"batch", "preempted_request_ids"} & set(values):
        if not isinstance(values[name], list):
            raise InfraLabError(f"its {name} must be a list")
        values[name] = tuple(values[name])
    if "batch" in values:
        values["batch"] = tuple(_build(BatchEntry, entry) for entry in values["batch"])
    return _build(kind, values)


def read_events(path: Path | str, on_torn: Callable[[str], None] | None = None) -> list[Event]:
    """Reads a log back.

    A last line that was cut short, as by a crash or a full disk, is left out and described to
    `on_torn`; damage anywhere else raises InfraLabError naming the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the event log {path}: {reason}") from None
    lines = text.split("\n")
    events = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            events.append(decode_event(line))
        except InfraLabError as error:
            message = f"line {number} of the event log {path} is damaged: {error}"
            if number < len(lines):
                raise InfraLabError(f"{message}; write the log anew") from None
            if on_torn is not None:
                on_torn(f"{message}; it was cut short and is left out")
    return events


def _values_of(record: Event | BatchEntry) -> dict[str, object]:
    """Fields by name. `dataclasses.asdict` copies deeply, which costs more than the encoding."""
    return {name: getattr(record, name) for name in record.__slots__}


def _build(kind: type[Record], values: object) -> Record:
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        raise InfraLabError(f"a {kind.__name__} must be a JSON object")
    if unknown := sorted(set(values) - set(known)):
        raise InfraLabError(f"{kind.__name__} has no {', '.join(unknown)}")
    required = [name for name, item in known.items() if item.default is MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise InfraLabError(f"{kind.__name__} lacks {', '.join(missing)}")
    checked: dict[str, Any] = values
    return kind(**checked)


def _open_for_writing(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8", buffering=1)  # line-buffered, for live readers
    except OSError as error:
        raise UsageError(
            f"cannot write the event log {path}: {error.strerror}; "
            f"give a file in a folder that exists and that you may write to"
        ) from None
