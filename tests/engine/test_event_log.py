"""Records come back from the file as they were; damage is told, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.engine.event_log import (
    BatchEntry,
    EngineStarted,
    Event,
    EventLog,
    RequestArrived,
    RequestFinished,
    StepEvent,
    decode_event,
    encode_event,
    read_events,
)
from infra_lab.errors import InfraLabError, UsageError

numbers = st.floats(allow_nan=False, allow_infinity=False)
# Request ids are the caller's: line breaks and half surrogate pairs must survive too.
ids = st.text(st.characters(exclude_categories=()), max_size=8)
counts = st.integers(0, 2**40)
entries = st.builds(BatchEntry, ids, counts, counts, st.booleans())
steps = st.builds(
    StepEvent,
    step=counts,
    start_time_s=numbers,
    schedule_ms=numbers,
    execute_ms=numbers,
    update_ms=numbers,
    batch=st.lists(entries, max_size=3).map(tuple),
    blocks_cached=counts,
    preempted_request_ids=st.lists(ids, max_size=3).map(tuple),
    model_ms=st.none() | numbers,
)
events = st.one_of(
    st.builds(EngineStarted, numbers, ids, counts, counts, counts, counts, counts),
    st.builds(RequestArrived, numbers, ids, counts, st.none() | counts, counts),
    st.builds(RequestFinished, numbers, ids, ids, counts, counts, ttft_s=st.none() | numbers),
    steps,
)
ARRIVED = RequestArrived(1.5, "a", 3)


def step(number: int) -> StepEvent:
    return StepEvent(number, 0.0, 0.25, 2.0, 0.5, batch=(BatchEntry("a", 3, 0, True),))


@given(st.lists(events, max_size=5))
def test_a_log_read_back_has_equal_records(records: list[Event]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        with EventLog(path) as log:
            for record in records:
                log.append(record)
        assert read_events(path) == records


@given(events)
def test_a_record_is_one_line_of_ascii_json_that_names_its_type(record: Event) -> None:
    line = encode_event(record)
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line)["type"] == record.type
    assert decode_event(line) == record


@given(st.lists(events, min_size=1, max_size=3), st.data())
def test_a_log_cut_anywhere_gives_its_whole_records(
    records: list[Event], data: st.DataObject
) -> None:
    text = "".join(encode_event(record) + "\n" for record in records)
    cut = data.draw(st.integers(0, len(text) - 1))
    told: list[str] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_text(text[:cut], encoding="utf-8")
        read = read_events(path, told.append)
    assert read == records[: len(read)]
    assert len(read) >= text[:cut].count("\n")
    assert len(told) <= 1


def test_a_torn_last_line_is_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(encode_event(ARRIVED) + "\n" + encode_event(step(0))[:30])
    told: list[str] = []
    assert read_events(path, told.append) == [ARRIVED]
    assert "line 2" in told[0]
    assert "cut short" in told[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"type":"dance"}', "its type is none of engine_started"),
        ('{"type":"request_arrived","time_s":1}', "lacks request_id, num_prompt_tokens"),
        ('{"type":"step","colour":"red"}', "StepEvent has no colour"),
        ('{"type":"step","batch":[3]}', "a BatchEntry must be a JSON object"),
        ('{"type":"step","batch":3}', "batch must be a list"),
    ],
)
def test_damage_before_the_end_is_an_error_that_names_the_line(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{encode_event(ARRIVED)}\n{line}\n{encode_event(ARRIVED)}\n")
    with pytest.raises(InfraLabError, match=f"line 2 .*{message}"):
        read_events(path)


def test_a_whole_last_line_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{encode_event(ARRIVED)}\n{{}}\n")
    with pytest.raises(InfraLabError, match=r"line 2 .*its type is none of"):
        read_events(path)


def test_a_file_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the event log .*folder that exists"):
        EventLog(tmp_path / "missing" / "log.jsonl")
    with pytest.raises(UsageError, match="cannot write the event log"):
        EventLog(tmp_path)
    with pytest.raises(UsageError, match="cannot read the event log"):
        read_events(tmp_path / "none.jsonl")


def test_a_file_that_is_no_text_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_events(path)


def test_a_reader_sees_every_line_while_the_log_is_still_open(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.append(ARRIVED)
        assert read_events(path) == [ARRIVED]


def test_a_new_log_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number in range(2):
        with EventLog(path) as log:
            log.append(step(number))
    assert read_events(path) == [step(1)]


def test_memory_is_bounded_and_keeps_the_latest() -> None:
    log = EventLog(capacity=3)
    for number in range(10):
        log.append(step(number))
    assert log.recent == [step(7), step(8), step(9)]


def test_subscribers_get_every_record_until_they_leave() -> None:
    log = EventLog(capacity=0)
    seen: list[Event] = []
    leave = log.subscribe(seen.append)
    log.append(ARRIVED)
    leave()
    leave()
    log.append(step(0))
    assert seen == [ARRIVED]


def test_a_log_is_enabled_only_while_someone_listens(tmp_path: Path) -> None:
    log = EventLog(capacity=0)
    assert not log.enabled
    leave = log.subscribe(lambda event: None)
    assert log.enabled
    leave()
    assert not log.enabled
    assert EventLog().enabled
    with EventLog(tmp_path / "log.jsonl", capacity=0) as written:
        assert written.enabled


def test_a_disk_that_fills_up_ends_the_file_and_not_the_engine() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full to stand for a full disk")
    log = EventLog(full)
    log.append(ARRIVED)
    log.append(step(0))
    log.close()
    assert log.write_error is not None
    assert log.recent == [ARRIVED, step(0)]


@pytest.mark.parametrize("capacity", [-1, 1.5, True, None])
def test_a_capacity_that_is_no_count_is_refused(capacity: object) -> None:
    with pytest.raises(UsageError, match="at least 0"):
        EventLog(capacity=capacity)  # type: ignore[arg-type]


def test_totals_of_a_step_follow_from_its_parts() -> None:
    assert step(0).total_ms == 2.75
    assert step(0).num_scheduled_tokens == 3
