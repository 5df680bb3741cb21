"""What a budget keeps, and what queries see of it, against the greedy algorithm in float64, one
token and one head at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from infra_lab.attention.backend import AttentionMetadata, AttentionShape
from infra_lab.attention.heavy_hitters import recent_window
from infra_lab.attention.kv_cache import KVCacheFormat
from infra_lab.attention.kv_quantization import dequantize_rows, quantize_rows
from infra_lab.attention.torch_backend import TorchAttentionBackend

CPU = torch.device("cpu")
CODES = {"int8_per_token_head": torch.int8, "fp8_per_token_head": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Case:
    """Requests as (tokens, budget or 0), each computed in steps of these sizes, taken in turns."""

    shape: AttentionShape
    block_size: int
    requests: list[tuple[int, int]]
    cuts: list[int]
    kv_cache_dtype: str = "auto"
    seed: int = 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_kv_heads = draw(st.integers(1, 2))
    shape = AttentionShape(
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([4, 16])),
        scale=draw(st.sampled_from([0.3, 1.0])),
        sliding_window=draw(st.none() | st.integers(1, 30)),
    )
    budgets = st.integers(1, 45) | st.integers(1, 6)
    first = draw(st.tuples(st.integers(1, 40), budgets))
    others = st.lists(st.tuples(st.integers(1, 30), st.just(0) | budgets), max_size=2)
    return Case(
        shape,
        draw(st.sampled_from([1, 3, 16])),
        [first, *draw(others)],
        draw(st.lists(st.sampled_from([1, 1, 2, 5, 9, 40]), min_size=1, max_size=4)),
        draw(st.sampled_from(["auto", "auto", *CODES])),
        draw(st.integers(0, 1000)),
    )


@dataclass
class Run:
    case: Case
    outputs: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        torch.manual_seed(case.seed)
        shape, size = case.shape, case.block_size
        heads = (2, shape.num_kv_heads, shape.head_dim)
        self.key_values = [torch.randn(length, *heads) for length, _ in case.requests]
        self.queries = [
            torch.randn(length, shape.num_heads, shape.head_dim) for length, _ in case.requests
        ]
        self.outputs = [torch.full_like(query, float("nan")) for query in self.queries]
        kept = [min(length, budget or length) for length, budget in case.requests]
        counts = [-(-tokens // size) for tokens in kept]
        order = torch.randperm(sum(counts)).add(1).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in counts]
        heads_and_dim = (shape.num_kv_heads, shape.head_dim)
        layout = KVCacheFormat(
            *heads_and_dim, size, torch.float32, case.kv_cache_dtype, sparse=True
        )
        self.cache = layout.allocate(sum(counts) + 1, CPU)
        for tensor in self.cache.tensors:  # others' leftovers
            tensor.view(torch.uint8).fill_(0x7E if tensor.element_size() == 1 else 0xFF)
        self.backend = TorchAttentionBackend(shape, size, torch.float32, CPU)

    def steps(self):  # type: ignore[no-untyped-def]
        """Computes step by step; gives the tokens computed of each request after each."""
        lengths = [length for length, _ in self.case.requests]
        computed, turn = [0] * len(lengths), 0
        while computed != lengths:
            cut = self.case.cuts[turn % len(self.case.cuts)]
            ends = [min(done + cut, length) for done, length in zip(computed, lengths, strict=True)]
            self._step(computed, ends)
            computed, turn = ends, turn + 1
            yield computed

    def run(self) -> Run:
        for _ in self.steps():
            pass
        return self

    def _step(self, begins: list[int], ends: list[int]) -> None:
        size, budgets = self.case.block_size, [budget for _, budget in self.case.requests]
        members = [i for i in range(len(ends)) if ends[i] > begins[i]]
        width = max(len(self.tables[i]) for i in members)
        tables = np.array([self.tables[i] + [0] * (width - len(self.tables[i])) for i in members])
        slots = [
            0 if budgets[i] else self.tables[i][p // size] * size + p % size
            for i in members
            for p in range(begins[i], ends[i])
        ]
        lens = np.array([ends[i] - begins[i] for i in members])
        metadata = AttentionMetadata(
            np.concatenate([[0], np.cumsum(lens)]),
            np.array([ends[i] for i in members]),
            tables,
            np.array(slots),
            np.array([budgets[i] for i in members]),
        )
        query = torch.cat([self.queries[i][begins[i] : ends[i]] for i in members])
        key_value = torch.cat([self.key_values[i][begins[i] : ends[i]] for i in members])
        out = torch.full_like(query, float("nan"))
        self.backend.forward(query, key_value, self.cache, self.backend.plan(metadata), out)
        for i, piece in zip(members, out.split(lens.tolist()), strict=True):
            self.outputs[i][begins[i] : ends[i]] = piece

    def kept(self, index: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions, and attention received, [slots, num_kv_heads], after `num_tokens`."""
        _, budget = self.case.requests[index]
        table, slots = self.tables[index], min(num_tokens, budget)
        assert self.cache.kept_positions is not None
        assert self.cache.attention_received is not None
        held = (self.cache.kept_positions[table], self.cache.attention_received[table])
        positions, received = (tensor.flatten(0, 1)[:slots].numpy() for tensor in held)
        return positions, received


class Greedy:
    """Algorithm 1 of the paper for one KV head: a list of tokens, the least of them dropped."""

    def __init__(self, run: Run, index: int, head: int) -> None:
        self.shape = run.case.shape
        _, self.budget = run.case.requests[index]
        read = run.key_values[index]
        if run.case.kv_cache_dtype != "auto":
            read = dequantize_rows(*quantize_rows(read, CODES[run.case.kv_cache_dtype]))
        self.keys, self.values = read[:, :, head].double().numpy().transpose(1, 0, 2)
        group = slice(head * self.shape.group_size, (head + 1) * self.shape.group_size)
        self.queries = run.queries[index][:, group].double().numpy()
        self.received: dict[int, float] = {}
        self.closest = np.inf  # by how much the dropped one was beaten

    def token(self, position: int) -> np.ndarray:
        """What the token's query heads get, [group, head_dim]; it then stays, and one may go."""
        self.received[position] = 0.0
        window = self.shape.sliding_window or len(self.keys)
        seen = [kept for kept in self.received if kept > position - window]
        outputs = []
        for query in self.queries[position]:
            weights = np.exp(self.shape.scale * (self.keys[seen] @ query))
            weights /= weights.sum()
            outputs.append(weights @ self.values[seen])
            for kept, weight in zip(seen, weights, strict=True):
                self.received[kept] += weight
        if len(self.received) > self.budget:
            newest = position - recent_window(self.budget)
            older = sorted((self.received[kept], kept) for kept in self.received if kept <= newest)
            if len(older) > 1:
                self.closest = min(self.closest, older[1][0] - older[0][0])
            del self.received[older[0][1]]
        return np.stack(outputs)


@settings(max_examples=60)
@given(case=cases())
def test_kept_tokens_are_the_greedy_heavy_hitters_and_queries_see_just_them(case: Case) -> None:
    run = Run(case).run()
    length, _ = case.requests[0]
    positions, received = run.kept(0, length)
    for head in range(case.shape.num_kv_heads):
        greedy = Greedy(run, 0, head)
        expected = np.stack([greedy.token(position) for position in range(length)])
        assume(greedy.closest > 1e-5)
        assert dict(zip(positions[:, head], received[:, head], strict=True)) == pytest.approx(
            greedy.received, rel=1e-4, abs=1e-5
        )
        group = slice(head * case.shape.group_size, (head + 1) * case.shape.group_size)
        ours = run.outputs[0][:, group].double().numpy()
        np.testing.assert_allclose(ours, expected, atol=3e-5, rtol=3e-5)


@settings(max_examples=40)
@given(case=cases())
def test_never_more_than_the_budget_is_kept_and_the_newest_always_are(case: Case) -> None:
    run = Run(case)
    for computed in run.steps():
        for index, (_, budget) in enumerate(case.requests):
            if not budget:
                continue
            count = computed[index]
            positions, _ = run.kept(index, count)
            newest = set(range(max(0, count - recent_window(budget)), count))
            for head in positions.T.tolist():
                assert len(set(head)) == len(head) == min(count, budget)
                assert newest <= set(head) <= set(range(count))


@settings(max_examples=30)
@given(case=cases(), data=st.data())
def test_neither_cuts_nor_neighbours_change_what_is_kept(case: Case, data: st.DataObject) -> None:
    run = Run(case).run()
    index = data.draw(st.integers(0, len(case.requests) - 1))
    length, budget = case.requests[index]
    request = [case.requests[index]]
    alone = Run(Case(case.shape, 4, request, [length], case.kv_cache_dtype))
    alone.key_values, alone.queries = [run.key_values[index]], [run.queries[index]]
    alone.run()
    if budget:
        for head in range(case.shape.num_kv_heads):
            greedy = Greedy(run, index, head)
            for position in range(length):
                greedy.token(position)
            assume(greedy.closest > 1e-5)
        assert np.array_equal(run.kept(index, length)[0], alone.kept(0, length)[0])
    torch.testing.assert_close(run.outputs[index], alone.outputs[0], atol=1e-5, rtol=1e-5)


@settings(max_examples=20)
@given(case=cases())
def test_a_budget_of_all_tokens_is_attention_to_all_tokens(case: Case) -> None:
    length, _ = case.requests[0]
    outputs = []
    for budget in (0, length, length + 5):
        requests = [(length, budget), *case.requests[1:]]
        run = Run(
            Case(case.shape, case.block_size, requests, case.cuts, case.kv_cache_dtype, case.seed)
        )
        outputs.append(run.run().outputs[0])
    for within in outputs[1:]:
        torch.testing.assert_close(within, outputs[0], atol=1e-5, rtol=1e-5)


def test_of_equals_the_oldest_goes() -> None:
    shape = AttentionShape(1, 1, 4, 1.0, sliding_window=1)  # only its own token gets attention
    run = Run(Case(shape, 4, [(6, 4)], [1]))
    run.run()
    # 0 to 3 fit; 4 drives out the oldest of 0, 1, 2 (received 1 each), 5 the next.
    assert sorted(run.kept(0, 6)[0][:, 0].tolist()) == [2, 3, 4, 5]


def test_the_recent_window_is_half_the_budget_and_at_least_the_newest_token() -> None:
    assert [recent_window(budget) for budget in (1, 2, 3, 4, 101)] == [1, 1, 2, 2, 51]
