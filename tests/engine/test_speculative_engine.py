"""Whole engines on tiny random models: with any proposer, under any setting, the same tokens as
without; under sampling with a drawn draft, the same law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.engine.event_log import EventLog, StepEvent
from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.tokenizer import Tokenizer
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from infra_lab.speculative_config import SpeculativeConfig

VOCAB, EOS = 13, 5
SHARED = [(i * i + 3) % 11 for i in range(24)]
NGRAM = SpeculativeConfig("ngram", prompt_lookup_min=1, adaptive=False)
EARLY_EXIT = SpeculativeConfig("draft_model", draft_layers=2, adaptive=False)
SEPARATE = SpeculativeConfig("draft_model", draft_model="small", adaptive=False)
METHODS = {"ngram": NGRAM, "early exit": EARLY_EXIT, "another model": SEPARATE}


def save_llama(folder: Path, seed: int, **changes: Any) -> Path:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    LlamaForCausalLM(LlamaConfig(**(shape | changes))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("target"), seed=0)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same vocabulary, with other heads and a shorter context."""
    folder = tmp_path_factory.mktemp("small")
    changes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return save_llama(folder, seed=1, max_position_embeddings=40, **changes)


def make_tokenizer() -> Tokenizer:
    backend = Backend(WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0"))
    return Tokenizer(backend, eos_token_ids=(EOS,))


def make_engine(
    target: Path,
    small: Path,
    speculative: SpeculativeConfig | None,
    log: EventLog | None = None,
    **config: Any,
) -> EngineCore:
    settings_of = EngineConfig(speculative=speculative, **({"num_blocks": 64} | config))
    draft = open_checkpoint(small) if speculative and speculative.draft_model else None
    return build_engine(
        open_checkpoint(target), make_tokenizer(), settings_of, log, draft_checkpoint=draft
    )


Requests = Sequence[tuple[list[int], SamplingParams | BeamSearchParams]]


def run(engine: EngineCore, requests: Requests) -> list[RequestOutput]:
    """Final outputs in order; the accounts are checked after every step."""
    for place, (prompt, params) in enumerate(requests):
        engine.add_request(f"r{place}", prompt, params)
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        engine.scheduler.check_integrity()
    assert engine.scheduler.kv_cache.usage.used == 0
    return [finished[f"r{place}"] for place in range(len(requests))]


def seen(outputs: list[RequestOutput]) -> list[Any]:
    """All that a caller sees of the samples, log-probabilities rounded."""
    result = []
    for output in outputs:
        assert output.error is None
        for sample in output.outputs:
            entries = sample.logprobs or []
            logprobs = [(e.token_id, round(e.logprob, 3), len(e.top)) for e in entries]
            ends = (sample.finish_reason, sample.stop_reason)
            result.append((sample.token_ids, sample.text, ends, logprobs))
    return result


prompts = st.builds(
    lambda shared, tail: [*SHARED[:shared], *tail],
    st.integers(0, 20),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
)
greedy = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    max_tokens=st.integers(4, 24),
    min_tokens=st.integers(0, 4),
    ignore_eos=st.booleans(),
    stop=st.sampled_from([(), (), ("w3",), ("w1 w", "w9w")]),
    stop_token_ids=st.sampled_from([(), (), (7,)]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.6]),
    logit_bias=st.sampled_from([None, None, {4: 1.0}]),
    logprobs=st.sampled_from([None, None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
    num_speculative_tokens=st.sampled_from([None, None, 0, 1, 2]),
)
pools = st.sampled_from(
    [
        {"block_size": 16},
        {"block_size": 1, "num_blocks": 160},
        {"block_size": 32, "num_blocks": 8},
        {"block_size": 4, "num_blocks": 14},  # preemptions
        {"block_size": 4, "num_blocks": 24, "max_num_batched_tokens": 9, "max_num_seqs": 9},
        {"block_size": 8, "enable_prefix_caching": False, "long_prefill_token_threshold": 3},
        {"block_size": 4, "enable_chunked_prefill": False},
    ]
)


@pytest.fixture(scope="module")
def plain(target: Path, small: Path) -> EngineCore:
    return make_engine(target, small, None, enable_prefix_caching=False)


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("method", METHODS)
def test_greedy_output_is_the_same_with_and_without(
    target: Path, small: Path, plain: EngineCore, method: str, data: st.DataObject
) -> None:
    requests = data.draw(st.lists(st.tuples(prompts, greedy), min_size=1, max_size=6))
    # None is the engine's number, and any other is refused where there is no speculation.
    without = [
        (prompt, SamplingParams(**{**as_dict(params), "num_speculative_tokens": None}))
        for prompt, params in requests
    ]
    expected = seen(run(plain, without))
    engine = make_engine(target, small, METHODS[method], **data.draw(pools))
    for _ in range(2):  # the second time with whatever the prefix cache has kept
        assert seen(run(engine, requests)) == expected


def as_dict(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}


def test_preemption_and_drafts_really_meet(target: Path, small: Path, plain: EngineCore) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    requests = [([place, 1, 2, place, 1], params) for place in range(5)]
    expected = seen(run(plain, requests))
    for speculative in METHODS.values():
        engine = make_engine(target, small, speculative, block_size=4, num_blocks=14)
        outputs = run(engine, requests)
        assert seen(outputs) == expected
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        assert sum(output.metrics.num_accepted_tokens for output in outputs) > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "kv_cache_dtype", ["int8_per_token_head", "fp8_per_token_head", "int8_per_channel_keys"]
)
def test_drafts_leave_no_trace_in_a_quantized_cache(
    target: Path, small: Path, kv_cache_dtype: str, method: str
) -> None:
    """Not even in keys that are coded sixteen tokens at a time: no draft completes a group."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    requests = [(SHARED[:length], params) for length in (3, 9, 14, 16)]
    pool: dict[str, Any] = {"block_size": 32, "kv_cache_dtype": kv_cache_dtype}
    expected = seen(run(make_engine(target, small, None, **pool), requests))
    outputs = run(make_engine(target, small, METHODS[method], **pool), requests)
    assert seen(outputs) == expected
    drafted = sum(output.metrics.num_draft_tokens for output in outputs)
    assert drafted > sum(output.metrics.num_accepted_tokens for output in outputs) > 0


def test_a_request_with_a_budget_is_not_drafted_for_and_cannot_ask_for_it(
    target: Path, small: Path
) -> None:
    engine = make_engine(target, small, NGRAM, sparse_kv=True)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, kv_budget=8)
    free = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    requests = [(SHARED[:9], params), (SHARED[:9], free)]
    plain = make_engine(target, small, None, sparse_kv=True)
    outputs = run(engine, requests)
    assert seen(outputs) == seen(run(plain, requests))
    assert [output.metrics.num_draft_tokens > 0 for output in outputs] == [False, True]
    with pytest.raises(InvalidRequestError, match="kv_budget=8 cannot be honoured together"):
        engine.validate([1], SamplingParams(kv_budget=8, num_speculative_tokens=2))


@pytest.mark.parametrize("method", METHODS)
def test_a_beam_search_beside_drafts_finds_what_it_finds_without(
    target: Path, small: Path, plain: EngineCore, method: str
) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    requests: Requests = [
        (SHARED[:6], params),
        (SHARED[:9], BeamSearchParams(beam_width=3, max_tokens=10)),
        (SHARED[:6], params),
    ]
    expected = seen(run(plain, requests))
    for pool in ({"block_size": 4, "num_blocks": 40}, {"block_size": 4, "num_blocks": 16}):
        assert seen(run(make_engine(target, small, METHODS[method], **pool), requests)) == expected


@settings(max_examples=15)
@given(
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.5, 1.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    pool=pools,
)
def test_seeded_samples_are_the_same_with_and_without_ngrams(
    target: Path,
    small: Path,
    plain: EngineCore,
    seed: int,
    temperature: float,
    top_p: float,
    pool: dict[str, Any],
) -> None:
    """Nobody draws an n-gram, so it is the token that is drawn anyway, or it is not."""
    params = SamplingParams(
        n=2, temperature=temperature, top_p=top_p, seed=seed, max_tokens=12, logprobs=1
    )
    requests = [(SHARED[:length], params) for length in (5, 9, 18)]
    expected = seen(run(plain, requests))
    assert seen(run(make_engine(target, small, NGRAM, **pool), requests)) == expected


def test_samples_with_a_drawn_draft_repeat_with_their_seed(target: Path, small: Path) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=16, ignore_eos=True)
    runs = [
        seen(run(make_engine(target, small, EARLY_EXIT), [(SHARED[:6], params)])) for _ in range(2)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("method", ["early exit", "another model"])
def test_sampled_tokens_follow_the_models_law_with_a_drawn_draft(
    tmp_path: Path, method: str
) -> None:
    """Three tokens of a vocabulary of 5 against all 125 probabilities by transformers: chi-square
    through the whole engine. The draft has another law, and is wrong as often as right."""
    draws, vocabulary, prompt = 1500, 5, [1, 3, 2]
    shape = {"vocab_size": vocabulary, "initializer_range": 0.25}
    target = save_llama(tmp_path / "target", seed=3, **shape)
    small = save_llama(tmp_path / "small", seed=4, num_hidden_layers=1, **shape)
    config = EngineConfig(
        num_blocks=256, speculative=METHODS[method], max_num_seqs=64, max_num_batched_tokens=512
    )
    draft = open_checkpoint(small) if method == "another model" else None
    engine = build_engine(open_checkpoint(target), None, config, draft_checkpoint=draft)
    requests = [
        (prompt, SamplingParams(temperature=0.8, seed=seed, max_tokens=4)) for seed in range(draws)
    ]
    outputs = run(engine, requests)
    assert engine.speculation is not None
    rate = engine.speculation.stats.acceptance_rate
    assert rate is not None
    assert 0.1 < rate < 0.95
    counts = Counter(tuple(output.outputs[0].token_ids[:3]) for output in outputs)
    model = LlamaForCausalLM.from_pretrained(target).double().eval()
    cells = list(product(range(vocabulary), repeat=3))
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *cell] for cell in cells])).logits
    law = (logits[:, len(prompt) - 1 : -1] / 0.8).softmax(-1)
    places = torch.tensor(cells)
    expected = draws * law.gather(-1, places[..., None])[..., 0].prod(-1)
    large = expected >= 5
    observed = torch.tensor([counts[cell] for cell in cells]).double()
    pairs = [*zip(observed[large].tolist(), expected[large].tolist(), strict=True)]
    pairs.append((float(observed[~large].sum()), float(expected[~large].sum())))
    statistic = sum((one - other) ** 2 / other for one, other in pairs if other > 0)
    freedom = torch.tensor((len(pairs) - 1) / 2, dtype=torch.float64)
    p = float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))
    assert p > 1e-4


def test_the_first_layers_share_every_weight_of_the_model(target: Path, small: Path) -> None:
    engine = make_engine(target, small, EARLY_EXIT)
    model = engine.executor.model  # type: ignore[attr-defined]
    shallow = model.first_layers(2)
    assert shallow.layers == model.layers[:2]
    assert shallow.head is model.head
    assert shallow.norm is model.norm
    assert (shallow.config.num_hidden_layers, model.config.num_hidden_layers) == (2, 3)


def test_a_draft_of_all_but_nothing_accepts_everything(target: Path, small: Path) -> None:
    """The target itself as its own draft: every token stands, at any block size."""
    itself = SpeculativeConfig("draft_model", draft_model="itself", adaptive=False)
    params = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)
    drawn = SamplingParams(temperature=1.0, seed=1, max_tokens=21, ignore_eos=True)
    for block_size in (1, 3, 16):
        engine = make_engine(target, target, itself, block_size=block_size, num_blocks=96)
        run(engine, [(SHARED[:7], params), (SHARED[:5], drawn), (SHARED[2:9], params)])
        assert engine.speculation is not None
        assert engine.speculation.stats.acceptance_rate == 1.0
        # One step for the prompt, then five tokens a step.
        assert engine.speculation.stats.num_drafts == 3 * 4


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_forks_of_a_prompt_never_draft_from_each_others_keys(
    target: Path, small: Path, block_size: int
) -> None:
    """They share the partly filled block until one of them writes; the target as its own draft
    would be wrong wherever a key is another fork's."""
    itself = SpeculativeConfig("draft_model", draft_model="itself", adaptive=False)
    engine = make_engine(target, target, itself, block_size=block_size, num_blocks=160)
    params = SamplingParams(n=4, temperature=1.5, seed=1, max_tokens=18, ignore_eos=True)
    run(engine, [(SHARED[:7], params), (SHARED[:7], params), (SHARED[:9], params)])
    assert engine.speculation is not None
    assert engine.speculation.stats.acceptance_rate == 1.0


def test_steps_and_requests_tell_how_their_drafts_fared(target: Path, small: Path) -> None:
    log = EventLog()
    engine = make_engine(target, small, EARLY_EXIT, log)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    outputs = run(engine, [(SHARED[:6], params), (SHARED[3:12], params)])
    steps = [event for event in log.recent if isinstance(event, StepEvent)]
    assert engine.speculation is not None
    stats = engine.speculation.stats
    assert sum(step.num_draft_tokens for step in steps) == stats.num_draft_tokens > 0
    assert sum(step.num_accepted_tokens for step in steps) == stats.num_accepted_tokens > 0
    assert sum(out.metrics.num_draft_tokens for out in outputs) == stats.num_draft_tokens
    assert sum(out.metrics.num_accepted_tokens for out in outputs) == stats.num_accepted_tokens
    # Every prompt token, every output token but the last of each, every rejected token.
    rejected = stats.num_draft_tokens - stats.num_accepted_tokens
    computed = sum(step.num_scheduled_tokens for step in steps)
    assert computed == 6 + 9 + 2 * 19 + rejected


@pytest.mark.parametrize("method", METHODS)
def test_a_step_that_fails_leaves_nothing_of_an_ended_request_behind(
    target: Path, small: Path, plain: EngineCore, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the step that would have told of the end of r0, whose id is then used again."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    engine = make_engine(target, small, METHODS[method])
    run(engine, [(SHARED[:8], params)])
    engine.add_request("other", SHARED[:5], params)
    with monkeypatch.context() as patch:
        patch.setattr(engine.executor, "execute", lambda step: 1 / 0)
        (failed,) = engine.step()
    assert failed.error is not None
    proposer = engine.speculation._proposer  # type: ignore[union-attr]
    kept = proposer._indexes if method == "ngram" else proposer._states  # type: ignore[attr-defined]
    assert not kept
    again = [(SHARED[3:9], params)]
    assert seen(run(engine, again)) == seen(run(plain, again))


@pytest.mark.parametrize(("wanted", "said"), [(1, "started without speculation"), (0, None)])
def test_a_request_that_wants_drafts_of_an_engine_without_is_refused(
    plain: EngineCore, wanted: int, said: str | None
) -> None:
    params = SamplingParams(num_speculative_tokens=wanted)
    if said is None:
        plain.validate([1], params)
        return
    with pytest.raises(InvalidRequestError, match=said):
        plain.validate([1], params)


def test_a_request_that_wants_longer_drafts_than_the_engine_makes_is_refused_alone(
    target: Path, small: Path
) -> None:
    engine = make_engine(target, small, NGRAM)
    with pytest.raises(InvalidRequestError, match=r"num_speculative_tokens=5 is more .* at most 4"):
        engine.add_request("r", [1], SamplingParams(num_speculative_tokens=5))
    (output,) = run(engine, [([1], SamplingParams(num_speculative_tokens=4, max_tokens=2))])
    assert output.error is None


def test_a_draft_of_another_vocabulary_is_refused(tmp_path: Path, target: Path) -> None:
    other = save_llama(tmp_path, seed=0, vocab_size=VOCAB + 1)
    with pytest.raises(UsageError, match="vocabulary of 14 tokens and the model one of 13"):
        make_engine(target, other, SEPARATE)


def test_a_draft_whose_ids_mean_other_words_is_refused(tmp_path: Path) -> None:
    for name, words in (("target", "abc"), ("draft", "acb")):
        folder = save_llama(tmp_path / name, seed=0, vocab_size=3)
        vocabulary = {word: index for index, word in enumerate(words)}
        from transformers import PreTrainedTokenizerFast

        backend = Backend(WordLevel(vocabulary, unk_token=words[0]))
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    speculative = SpeculativeConfig("draft_model", draft_model=str(tmp_path / "draft"))
    with pytest.raises(UsageError, match="vocabulary is another: 4 entries differ, 'b' with id 1"):
        LLM(tmp_path / "target", num_blocks=4, speculative=speculative)


@pytest.mark.parametrize("layers", [3, 4])
def test_a_draft_of_as_many_layers_as_the_model_has_is_refused(
    target: Path, small: Path, layers: int
) -> None:
    speculative = SpeculativeConfig("draft_model", draft_layers=layers)
    with pytest.raises(UsageError, match=f"the first {layers} of 3 layers make no smaller model"):
        make_engine(target, small, speculative)


def test_a_draft_model_that_was_not_opened_is_named(target: Path) -> None:
    config = EngineConfig(num_blocks=4, speculative=SEPARATE)
    with pytest.raises(UsageError, match="the draft model 'small' was not opened"):
        build_engine(open_checkpoint(target), None, config)


def test_the_drafts_keys_and_values_come_out_of_the_same_memory(target: Path, small: Path) -> None:
    """Three layers' keys and values alone, or five layers' with a draft of two."""
    sizes = [
        make_engine(
            target, small, speculative, num_blocks=None, kv_cache_bytes=61_440
        ).scheduler.kv_cache.num_usable_blocks
        for speculative in (None, EARLY_EXIT)
    ]
    assert sizes == [10, 6]
