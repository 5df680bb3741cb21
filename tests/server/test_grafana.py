"""The dashboard asks for nothing that the server does not tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import infra_lab.server
from infra_lab.speculative_config import SpeculativeConfig
from tests.server.running import MODEL, running
from tests.server.tiny_model import load_tiny

FOLDER = Path(infra_lab.server.__file__).parent / "grafana"
METRIC = re.compile(r"(?:vllm|infra_lab):\w+")
MATCHER = re.compile(r"(\w+)\s*=~")
BY = re.compile(r"by \(([^)]*)\)")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def labels(tiny_folder: Path) -> dict[str, set[str]]:
    """The labels of every sample in /metrics, by name, of a server that has served and drafts."""
    llm = load_tiny(tiny_folder, speculative=SpeculativeConfig("ngram"))
    with running(llm) as server:
        body = {"model": MODEL, "prompt": "abcd" * 20, "max_tokens": 60, "temperature": 0}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        text = server.http.get("/metrics").text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [
        one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"
    ]
    return queries + variables


def test_every_metric_exists_with_the_labels_that_are_asked_of_it(
    dashboard: dict[str, Any], labels: dict[str, set[str]]
) -> None:
    asked = expressions(dashboard)
    assert len(asked) > 20
    for expression in asked:
        names = METRIC.findall(expression)
        assert names, expression
        wanted = set(MATCHER.findall(expression))
        for group in BY.findall(expression):
            wanted |= {label.strip() for label in group.split(",")}
        for name in names:
            assert name in labels, f"{name} is not in /metrics"
        known = set().union(*(labels[name] for name in names))
        assert wanted <= known, expression


def test_the_state_latencies_and_speculation_are_all_on_it(dashboard: dict[str, Any]) -> None:
    shown = set(METRIC.findall(" ".join(expressions(dashboard))))
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_hits_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "generation_tokens_total",
        "num_preemptions_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    ):
        assert f"vllm:{name}" in shown


def test_counters_are_asked_for_their_growth_and_quantiles_of_buckets(
    dashboard: dict[str, Any],
) -> None:
    for expression in expressions(dashboard):
        for name in METRIC.findall(expression):
            grows = name.endswith(("_total", "_bucket"))
            assert grows == bool(re.search(rf"(rate|increase)\({name}", expression)), expression
        if "histogram_quantile" in expression:
            assert "by (le)" in expression
        assert expression.count("(") == expression.count(")")


def test_panels_have_each_a_place_and_an_explanation(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_what_compose_mounts_is_there_and_leads_to_the_dashboard() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    mounted = {}
    for service in services.values():
        for volume in service["volumes"]:
            source, target, _ = volume.split(":")
            assert (FOLDER / source).exists()
            mounted[target] = FOLDER / source
    providers = yaml.safe_load(
        (FOLDER / "provisioning" / "dashboards" / "dashboards.yaml").read_text()
    )["providers"]
    folder = providers[0]["options"]["path"]
    assert mounted[f"{folder}/dashboard.json"].is_file()
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounted[home] == FOLDER / "./dashboard.json"
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == ["127.0.0.1:8000"]
