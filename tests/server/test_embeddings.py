"""/v1/embeddings against the hidden states that transformers computes."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openai import OpenAI
from transformers import LlamaForCausalLM

from infra_lab.engine.llm import LLM
from infra_lab.errors import UsageError
from infra_lab.models.pooling import pooling_of
from infra_lab.server.service import Service
from infra_lab.server.settings import ServerSettings
from tests.models.lora_helpers import save_adapter
from tests.server.running import MODEL, RunningServer, error_of, running, settings
from tests.server.tiny_model import CONTEXT, load_tiny

TEXTS = ["a", "the lamp is lit at dusk", "0123456789" * 30, "é中 {}"]
HIDDEN = 32


@pytest.fixture(scope="module")
def oracle(tiny_folder: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)
    model.eval()
    return model


def expected(oracle: LlamaForCausalLM, token_ids: list[int], pooling: str) -> np.ndarray:
    """The states behind the final norm, pooled, of length 1; float64 [hidden]."""
    with torch.no_grad():
        states = oracle(torch.tensor([token_ids]), output_hidden_states=True).hidden_states[-1][0]
    vector = states.mean(0) if pooling == "mean" else states[-1]
    return (vector / vector.norm()).numpy()


@pytest.fixture(scope="module", params=["mean", "last"])
def server(request: pytest.FixtureRequest, tiny_folder: Path) -> Iterator[RunningServer]:
    with running(load_tiny(tiny_folder), pooling=request.param) as server:
        yield server
        stats = server.at_rest()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert server.service._limits.num_open == 0


@pytest.fixture
def client(server: RunningServer) -> OpenAI:
    return server.openai()


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_vectors_are_the_pooled_states_of_the_model(
    server: RunningServer, client: OpenAI, oracle: LlamaForCausalLM, encoding: str | None
) -> None:
    """The client asks for base64 by itself, and decodes it."""
    settings: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model=MODEL, input=TEXTS, **settings)
    pooling = server.service.settings.pooling
    assert pooling is not None
    ids = [server.llm.tokenizer.encode(text) for text in TEXTS]
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    for one, token_ids in zip(answer.data, ids, strict=True):
        vector: Any = one.embedding
        if isinstance(vector, str):
            vector = np.frombuffer(base64.b64decode(vector), dtype="<f4")
        assert len(vector) == HIDDEN
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)
        assert np.abs(vector - expected(oracle, token_ids, pooling)).max() < 1e-5
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    assert answer.model == MODEL
    assert answer.object == "list"


def test_a_text_its_ids_and_one_among_many_have_the_same_vector(
    server: RunningServer, client: OpenAI
) -> None:
    text = TEXTS[1]
    ids = server.llm.tokenizer.encode(text)
    forms = [
        client.embeddings.create(model=MODEL, input=one).data[-1].embedding
        for one in (text, [text], ids, [ids], [TEXTS[0], text])
    ]
    assert all(one == forms[0] for one in forms)


def test_nothing_is_left_in_the_cache_and_nobody_generates_otherwise(
    server: RunningServer, client: OpenAI
) -> None:
    """Answers that stream while texts are embedded are the ones that came alone."""
    settings: dict[str, Any] = {
        "model": MODEL, "prompt": "go on", "temperature": 0, "max_tokens": 150,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    alone = client.completions.create(**settings).choices[0].text
    cached = server.service.engine.stats.blocks_cached
    client.embeddings.create(model=MODEL, input=TEXTS)
    assert server.service.engine.stats.blocks_cached == cached
    ends = threading.Event()

    def embed() -> None:
        while not ends.is_set():
            client.embeddings.create(model=MODEL, input=TEXTS)

    other = threading.Thread(target=embed)
    other.start()
    try:
        texts = [client.completions.create(**settings).choices[0].text for _ in range(4)]
    finally:
        ends.set()
        other.join()
    assert texts == [alone] * 4


def test_streams_wait_for_one_input_between_two_steps_whoever_asks(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load_tiny(tiny_folder)
    core, order = llm.engine, []
    embed, step = core.executor.embed, core.step

    def noted_embed(*given: Any) -> list[float]:
        order.append("embed")
        return embed(*given)

    def noted_step() -> Any:
        order.append("step")
        return step()

    monkeypatch.setattr(core.executor, "embed", noted_embed)
    monkeypatch.setattr(core, "step", noted_step)
    ends = threading.Event()
    with running(llm, pooling="mean") as server:

        def ask() -> None:
            with server.openai() as client:
                while not ends.is_set():
                    client.embeddings.create(model=MODEL, input=TEXTS)

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        body = {"model": MODEL, "prompt": "go on", "max_tokens": 300, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        ends.set()
        for client in clients:
            client.join()
    last = len(order) - order[::-1].index("step")
    between = "".join(one[0] for one in order[order.index("step") : last]).split("s")
    assert between.count("e") > 3
    assert max(map(len, between)) == 1


def test_an_input_that_nobody_waits_for_any_more_keeps_its_turn_to_the_end(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two would be with the engine's thread, and both run before its next step."""
    llm, gate, calls = load_tiny(tiny_folder), threading.Event(), []

    def slow(token_ids: list[int], pooling: str) -> list[float]:
        calls.append(token_ids)
        gate.wait()
        return [1.0]

    monkeypatch.setattr(llm.engine.executor, "embed", slow)

    async def main() -> None:
        service = Service(llm, settings(pooling="mean"))
        try:
            left, stays = (
                asyncio.create_task(service.embed("me", 1, lambda ids=ids: [[ids]], "mean"))  # type: ignore[misc]
                for ids in (5, 6)
            )
            async with asyncio.timeout(30):
                while not calls:
                    await asyncio.sleep(0.001)
            left.cancel()
            await asyncio.sleep(0.05)
            assert left.cancelled()
            assert not service.engine._commands
            gate.set()
            assert await stays == ([[1.0]], 1)
            assert calls == [[5], [6]]
            assert service._limits.num_open == 0
        finally:
            gate.set()
            await service.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"input": []}, "input", "at least one text"),
        ({"input": ""}, "input", "at least one token"),
        ({"input": ["a", ""]}, "input[1]", "at least one token"),
        ({"input": [[]]}, "input[0]", "at least one token"),
        ({"input": [5, 10**6]}, "input", "outside the vocabulary"),
        ({"input": [[5], [-1]]}, "input[1]", "outside the vocabulary"),
        ({"input": [5] * (CONTEXT + 1)}, "input", "1025 tokens"),
        ({"input": "ab" * 100_000}, "input", "characters"),
        ({"input": ["\ud800"]}, "input[0]", "surrogate"),
        ({"input": [["a"]]}, "input[0][0]", "integer"),
        ({"input": None}, "input", "valid"),
        ({"input": ["a"] * 300}, "input", "at most 272"),
        ({"dimensions": 8}, "dimensions", "must be 32"),
        ({"encoding_format": "int8"}, "encoding_format", "base64"),
        ({"truncate": True}, "truncate", "unknown parameter"),
        ({"model": "nix"}, "model", "no model 'nix'"),
    ],
)
def test_bad_input_is_refused_by_name(
    server: RunningServer, changes: dict[str, Any], param: str, message: str
) -> None:
    body = json.dumps({"model": MODEL, "input": "a"} | changes)
    headers = {"Content-Type": "application/json"}
    response = server.http.post("/v1/embeddings", content=body, headers=headers)
    assert response.status_code == (404 if "model" in changes else 400)
    error = error_of(response)
    assert error["param"] == param
    assert message in error["message"]


def test_the_whole_context_may_be_embedded_and_its_own_size_asked_for(
    server: RunningServer, client: OpenAI
) -> None:
    answer = client.embeddings.create(model=MODEL, input=[7] * CONTEXT, dimensions=HIDDEN)
    assert answer.usage.prompt_tokens == CONTEXT


def test_without_pooling_the_answer_says_how_to_have_it(tiny_server: RunningServer) -> None:
    response = tiny_server.http.post("/v1/embeddings", json={"model": MODEL, "input": "a"})
    assert response.status_code == 400
    assert "--pooling mean" in error_of(response)["message"]


def test_an_adapter_has_no_embeddings(tiny_folder: Path, tmp_path: Path) -> None:
    llm = load_tiny(tiny_folder)
    llm.load_lora("mine", save_adapter(tiny_folder, tmp_path / "adapter"))
    with running(llm, pooling="mean") as server:
        response = server.http.post("/v1/embeddings", json={"model": "mine", "input": "a"})
    assert response.status_code == 400
    assert "is an adapter" in error_of(response)["message"]


def test_limits_and_failures_of_the_engine_are_told(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load_tiny(tiny_folder)
    with running(llm, pooling="mean", max_requests_per_client=2) as server:
        body = {"model": MODEL, "input": ["a", "b", "c"]}
        response = server.http.post("/v1/embeddings", json=body)
        assert response.status_code == 429
        assert response.headers["retry-after"]

        def broken(token_ids: object, pooling: str) -> list[float]:
            raise RuntimeError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.executor, "embed", broken)
            response = server.http.post("/v1/embeddings", json=body | {"input": "a"})
        assert response.status_code == 500
        assert "no memory" in error_of(response)["message"]
        assert server.http.post("/v1/embeddings", json=body | {"input": "a"}).status_code == 200


@pytest.mark.model
def test_texts_of_one_subject_are_nearer_than_others(smollm2_path: Path) -> None:
    """No claim about quality: only that a real model's vectors are not noise."""
    llm = LLM("smollm2-135m", max_num_seqs=2)
    near = ["How do I cook rice?", "What is the best way to boil rice?"]
    far = "The stock market fell sharply on Monday."
    first, second, other = (
        np.array(llm.engine.executor.embed(llm.tokenizer.encode(text), "mean"))
        for text in (*near, far)
    )
    assert first @ second > first @ other + 0.02


MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Norm", "type": "sentence_transformers.models.Normalize"},
]
DENSE = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("modules", "config", "pooling"),
    [
        (MODULES, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        (MODULES[:2], {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}, "mean"),
        (MODULES, {"pooling_mode_cls_token": True}, None),
        (MODULES, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, None),
        (MODULES, {}, None),
        ([*MODULES, DENSE], {"pooling_mode_mean_tokens": True}, None),
        ("nonsense", {"pooling_mode_mean_tokens": True}, None),
        (MODULES, None, None),
        (None, {"pooling_mode_mean_tokens": True}, None),
    ],
)
def test_a_folder_says_how_its_model_pools(
    tmp_path: Path, modules: object, config: object, pooling: str | None
) -> None:
    if modules is not None:
        (tmp_path / "modules.json").write_text(json.dumps(modules))
    if config is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert pooling_of(tmp_path) == pooling
    assert pooling_of(tmp_path / "modules.json") is None


def test_a_pooling_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="pooling must be mean or last"):
        ServerSettings("m", pooling="max")
