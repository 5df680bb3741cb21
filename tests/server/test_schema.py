"""/openapi.json, and schemathesis: whatever the schema allows, and what it does not, is answered
with a status below 500."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.server.running import MODEL, RunningServer, error_of, running
from tests.server.tiny_model import load_tiny

EXAMPLES_PER_OPERATION = 50


def test_the_schema_names_every_route_and_parameter(tiny_server: RunningServer) -> None:
    schema = tiny_server.http.get("/openapi.json").json()
    posts = {path for path, methods in schema["paths"].items() if "post" in methods}
    assert posts == {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
    }
    chat = schema["components"]["schemas"]["ChatCompletionRequest"]
    assert chat["required"] == ["model", "messages"]
    assert chat["additionalProperties"] is False
    assert {"tools", "response_format", "top_logprobs", "logit_bias"} <= set(chat["properties"])


@pytest.fixture
def embedding_server(tiny_folder: Path) -> Iterator[RunningServer]:
    """One that refuses no route."""
    with running(load_tiny(tiny_folder), pooling="mean") as server:
        yield server
        stats = server.at_rest()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


@pytest.mark.slow
def test_nothing_that_schemathesis_sends_is_a_fault(embedding_server: RunningServer) -> None:
    import schemathesis
    from schemathesis import GenerationMode

    schema = schemathesis.openapi.from_url(f"{embedding_server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 9
    statuses: set[int] = set()
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=EXAMPLES_PER_OPERATION,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                deadline=None,
            )
            @given(case=cases, names_model=st.booleans())
            def send(case: schemathesis.Case, names_model: bool) -> None:
                if names_model and isinstance(case.body, dict) and "model" in case.body:
                    case.body["model"] = MODEL  # or none would get further than that
                response = case.call(timeout=30)
                statuses.add(response.status_code)
                assert response.status_code < 500, (case.body, response.text)
                if response.status_code == 400:
                    error_of(response)

            try:
                send()
            except Unsatisfiable:  # nothing can be wrong about a request without parameters
                assert len(operation.body) == 0
    assert {200, 400, 404} <= statuses
