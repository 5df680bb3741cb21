"""Turns a SchedulerOutput into the flat arrays of one ragged batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra_lab.attention.backend import AttentionMetadata
from infra_lab.step import NO_DRAFT, Draft, SchedulerOutput


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step's tokens, end to end in the order of `SchedulerOutput.scheduled`.

    token_ids, positions: int64 [num_tokens].
    sampling_ids: the requests that sample, in order; forks share the row of their leader.
    drafts: what each of them has to verify; empty for none.
    sample_rows: the token rows whose logits they sample or verify: of each in turn, its last known
        token's and those of its draft.
    prompt_logprob_rows: for each request that is owed prompt log-probabilities, its rows.
    wanted_rows: the rows of both kinds, ascending: what the model must put out.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    metadata: AttentionMetadata
    sample_rows: np.ndarray
    sampling_ids: list[str]
    drafts: list[Draft]
    prompt_logprob_rows: dict[str, range]
    wanted_rows: np.ndarray


def build_input_batch(scheduler_output: SchedulerOutput, block_size: int) -> InputBatch:
    """Lays the scheduled tokens out and maps each to its slot in the cache."""
    scheduled = scheduler_output.scheduled
    query_lens = np.array([len(item.token_ids) for item in scheduled], dtype=np.int64)
    first_positions = np.array([item.num_computed_tokens for item in scheduled], dtype=np.int64)
    query_start_loc = np.zeros(len(scheduled) + 1, dtype=np.int64)
    np.cumsum(query_lens, out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])

    # Position of each row: its request's first position plus its distance from that row.
    shift = first_positions - query_start_loc[:-1]
    positions = np.arange(num_tokens, dtype=np.int64) + np.repeat(shift, query_lens)
    token_ids = np.concatenate([np.asarray(item.token_ids, np.int64) for item in scheduled])

    block_tables = _pad_block_tables([item.block_ids for item in scheduled])
    owners = np.repeat(np.arange(len(scheduled)), query_lens)
    # Beyond a budget there is no block: those slots are the backend's to find.
    blocks = block_tables[owners, np.minimum(positions // block_size, block_tables.shape[1] - 1)]
    budgets = np.array([item.kv_budget or 0 for item in scheduled], dtype=np.int64)
    metadata = AttentionMetadata(
        query_start_loc=query_start_loc,
        seq_lens=first_positions + query_lens,
        block_tables=block_tables,
        slot_mapping=blocks * block_size + positions % block_size,
        kv_budgets=budgets if budgets.any() else None,
    )
    prompt_logprob_rows = _prompt_logprob_rows(scheduler_output, query_start_loc)
    sampling_ids, drafts, sample_rows = _sampling(scheduler_output, query_start_loc)
    return InputBatch(
        token_ids=token_ids,
        positions=positions,
        metadata=metadata,
        sample_rows=sample_rows,
        sampling_ids=sampling_ids,
        drafts=drafts,
        prompt_logprob_rows=prompt_logprob_rows,
        wanted_rows=np.unique(
            np.concatenate([sample_rows, *map(np.asarray, prompt_logprob_rows.values())])
        ).astype(np.int64),
    )


def _pad_block_tables(tables: list[Sequence[int]]) -> np.ndarray:
    padded = np.zeros((len(tables), max(len(table) for table in tables)), dtype=np.int64)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded


def _sampling(
    scheduler_output: SchedulerOutput, query_start_loc: np.ndarray
) -> tuple[list[str], list[Draft], np.ndarray]:
    names: list[str] = []
    drafts: list[Draft] = []
    rows: list[int] = []
    for item, end in zip(scheduler_output.scheduled, query_start_loc[1:].tolist(), strict=True):
        if item.samples:
            last_known = end - 1 - len(item.draft)
            names += (item.request_id, *item.forks)
            drafts += [item.draft, *[NO_DRAFT] * len(item.forks)]
            rows += [*range(last_known, end), *[last_known] * len(item.forks)]
    return names, drafts, np.array(rows, dtype=np.int64)


def _prompt_logprob_rows(
    scheduler_output: SchedulerOutput, query_start_loc: np.ndarray
) -> dict[str, range]:
    """Rows from `prompt_logprobs_from` to the chunk's end; the caller cuts the last prompt
    token, whose successor is not a prompt token."""
    rows = {}
    for index, item in enumerate(scheduler_output.scheduled):
        if item.prompt_logprobs_from is not None:
            offset = item.prompt_logprobs_from - item.num_computed_tokens
            start, end = int(query_start_loc[index]), int(query_start_loc[index + 1])
            rows[item.request_id] = range(start + offset, end)
    return rows
