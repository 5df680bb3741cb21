"""What both kinds of generation request are checked for, and the engine has no word for."""

from __future__ import annotations

from infra_lab.sampling_params import MAX_LOGPROBS
from infra_lab.server.api_errors import bad_request
from infra_lab.server.protocol.base import GenerationRequest


def check_stream_options(body: GenerationRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is for streams: set stream to true", "stream_options")


def check_num_logprobs(param: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise bad_request(
            f"{param} must be an integer from 0 to {MAX_LOGPROBS}, not {value}", param
        )
