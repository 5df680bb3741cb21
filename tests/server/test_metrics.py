"""/metrics, /v1/cache, /health and the other small routes, against what must be true of them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra_lab.sampling_params import SamplingParams
from infra_lab.server.block_map import USED, block_map
from infra_lab.speculative_config import SpeculativeConfig
from tests.server.running import MODEL, RunningServer, error_of, running
from tests.server.tiny_model import CONTEXT, load_tiny

NUM_REQUESTS, NUM_TOKENS = 5, 7


def read(server: RunningServer) -> dict[str, float]:
    """Samples without buckets, by name and the reason they are labelled with."""
    found = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
                found[sample.name + "".join(f"[{v}]" for v in labels.values())] = sample.value
    return found


@pytest.mark.parametrize("speculative", [None, SpeculativeConfig("ngram")])
def test_every_request_and_token_is_counted_once(
    tiny_folder: Path, speculative: SpeculativeConfig | None
) -> None:
    llm = load_tiny(tiny_folder, speculative=speculative)
    with running(llm) as server:
        prompts = [[10 + index, 20, 30, 40] for index in range(NUM_REQUESTS)]
        body: dict[str, Any] = {"model": MODEL, "max_tokens": NUM_TOKENS, "ignore_eos": True}
        for prompt in prompts:
            answer = server.http.post("/v1/completions", json=body | {"prompt": prompt})
            assert answer.status_code == 200
        server.http.post("/v1/completions", json=body | {"prompt": []})
        server.http.get("/made/up/path")
        found = read(server)
    assert found["vllm:time_to_first_token_seconds_count"] == NUM_REQUESTS
    assert found["vllm:inter_token_latency_seconds_count"] == NUM_REQUESTS * (NUM_TOKENS - 1)
    assert found["vllm:e2e_request_latency_seconds_count"] == NUM_REQUESTS
    assert found["vllm:request_queue_time_seconds_count"] == NUM_REQUESTS
    assert found["vllm:prompt_tokens_total"] == NUM_REQUESTS * 4
    assert found["vllm:request_prompt_tokens_sum"] == NUM_REQUESTS * 4
    assert found["vllm:generation_tokens_total"] == NUM_REQUESTS * NUM_TOKENS
    assert found["vllm:request_generation_tokens_sum"] == NUM_REQUESTS * NUM_TOKENS
    assert found["vllm:request_success_total[length]"] == NUM_REQUESTS
    assert found["vllm:prefix_cache_queries_total"] == NUM_REQUESTS * 4
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["infra_lab:http_requests_total[/v1/completions][200]"] == NUM_REQUESTS
    assert found["infra_lab:http_requests_total[/v1/completions][400]"] == 1
    assert found["infra_lab:http_requests_total[other][404]"] == 1
    e2e = found["vllm:e2e_request_latency_seconds_sum"]
    ttft, itl = (
        found[f"vllm:{name}_seconds_sum"] for name in ("time_to_first_token", "inter_token_latency")
    )
    assert e2e * 0.5 < ttft + itl <= e2e + 0.01


def test_several_samples_have_one_first_token_and_each_their_intervals(tiny_folder: Path) -> None:
    with running(load_tiny(tiny_folder)) as server:
        body = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "ignore_eos": True, "n": 3}
        server.http.post("/v1/completions", json=body)
        found = read(server)
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == 3 * 3
    assert found["vllm:generation_tokens_total"] == 12
    assert found["vllm:request_params_n_sum"] == 3


def test_what_became_of_drafts_is_told_by_place_and_only_where_there_are_any(
    tiny_folder: Path,
) -> None:
    llm = load_tiny(tiny_folder, speculative=SpeculativeConfig("ngram"))
    with running(llm) as server:
        body = {"model": MODEL, "prompt": "abcd" * 20, "max_tokens": 200, "temperature": 0}
        server.http.post("/v1/completions", json=body | {"ignore_eos": True})
        found = read(server)
        shown = server.service.engine.speculation
    stats = llm.engine.speculation.stats
    assert shown == stats
    assert shown is not stats  # which the engine's thread goes on changing
    assert stats.num_accepted_tokens > 0
    name = "vllm:spec_decode_num"
    assert found[f"{name}_drafts_total"] == stats.num_drafts
    assert found[f"{name}_draft_tokens_total"] == stats.num_draft_tokens
    assert found[f"{name}_accepted_tokens_total"] == stats.num_accepted_tokens
    places = [found[f"{name}_accepted_tokens_per_pos_total[{place}]"] for place in range(4)]
    assert places == stats.num_accepted_tokens_per_pos
    assert sum(places) == stats.num_accepted_tokens
    with running(load_tiny(tiny_folder)) as server:
        assert not any(key.startswith(name) for key in read(server))


def test_the_cache_tells_its_blocks_and_its_hits(tiny_folder: Path) -> None:
    with running(load_tiny(tiny_folder)) as server:
        empty = server.http.get("/v1/cache").json()
        assert empty["blocks"] == {"total": 256, "used": 0, "cached": 0, "free": 256}
        assert empty["prefix_cache"] == {"queries": 0, "hits": 0, "hit_rate": 0.0}
        body = {"model": MODEL, "prompt": list(range(10, 34)), "max_tokens": 1}
        for _ in range(2):
            server.http.post("/v1/completions", json=body)
        full = server.http.get("/v1/cache").json()
    # 24 tokens are three blocks of 8; the last token must be computed, so two are found.
    assert full["prefix_cache"] == {"queries": 48, "hits": 16, "hit_rate": pytest.approx(1 / 3)}
    assert full["blocks"]["cached"] == 4  # the third was computed twice, and either may be found
    assert full["blocks"]["used"] == 0
    assert full["requests"] == {"running": 0, "waiting": 0}


def test_models_are_listed_and_found_by_name(tiny_server: RunningServer) -> None:
    client = tiny_server.openai()
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == CONTEXT
    assert client.models.retrieve(MODEL) == model
    response = tiny_server.http.get("/v1/models/some/other")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


def test_tokens_of_a_prompt_go_there_and_back(tiny_server: RunningServer) -> None:
    body = {"prompt": 'abc {"é"}', "return_token_strs": True}
    answer = tiny_server.http.post("/tokenize", json=body).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == CONTEXT
    assert answer["token_strs"][0] == "abc"
    assert "bytes:\\xc3" in answer["token_strs"]
    back = tiny_server.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": 'abc {"é"}'}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": [], "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": [1, 10**9]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "ab"}, "tokens"),
    ],
)
def test_small_routes_refuse_by_name(
    tiny_server: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    response = tiny_server.http.post(path, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_the_map_of_blocks_names_who_holds_them(tiny_folder: Path) -> None:
    core = load_tiny(tiny_folder).engine
    core.add_request("a", list(range(10, 34)), SamplingParams(max_tokens=20, ignore_eos=True))
    core.add_request("b", [1, 2], SamplingParams(max_tokens=20, ignore_eos=True, n=2))
    for _ in range(5):
        core.step()
    found = block_map(core)
    assert [sample["id"] for sample in found["running"]] == ["a", "b#0", "b#1"]
    for sample in found["running"]:
        assert sample["num_computed_tokens"] == sample["num_tokens"] - 1
        assert len(sample["block_ids"]) == -(-sample["num_computed_tokens"] // 8)
    held = {index + 1 for index, state in enumerate(found["blocks"]) if state == USED}
    assert held == {block for sample in found["running"] for block in sample["block_ids"]}


def test_the_map_of_blocks_adds_up_with_the_cache(tiny_server: RunningServer) -> None:
    tiny_server.http.post("/v1/completions", json={"model": MODEL, "prompt": "abcd" * 9})
    found = tiny_server.http.get("/v1/cache/blocks").json()
    blocks = tiny_server.http.get("/v1/cache").json()["blocks"]
    assert found["running"] == []
    assert len(found["blocks"]) == blocks["total"]
    assert found["blocks"].count("c") == blocks["cached"] > 0
    assert found["blocks"].count(".") == blocks["free"]


def test_the_chat_page_asks_nobody_else_and_runs_nothing_else(tiny_server: RunningServer) -> None:
    page = tiny_server.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for tag in ("script", "style"):
        content = page.text.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "http" not in page.text
    assert "innerHTML" not in page.text
    assert "style=" not in page.text  # the policy would drop it
