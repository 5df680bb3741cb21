"""What requests for completions and for chats have in common."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from infra_lab.sampling_params import SamplingParams


class Strict(BaseModel):
    """A number is no text, and a name that is not known is refused: nothing is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool = Field(False, description="Whether a last chunk tells the token counts.")


class GenerationRequest(Strict):
    """Parameters of OpenAI's that both kinds of request have, and below them those that vLLM's
    server added, under its names. null is as good as leaving a parameter out."""

    model: str = Field(description="The served model, or one of its LoRA adapters.")
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(
        None, description="Token id to a number in [-100, 100] that is added to its logit."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Named in the server's log, and nowhere else.")

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None, description="One of json, regex, choice, json_object; the form of the answer."
    )
    cache_salt: str | None = Field(
        None, description="Cached prefixes are shared only with requests of the same salt."
    )
    priority: int | None = Field(None, description="The lower goes first.")
    kv_budget: int | None = None
    num_speculative_tokens: int | None = None


# Of the above, those that SamplingParams has under the same name.
SAMPLING_FIELDS = tuple(
    field.name for field in fields(SamplingParams) if field.name in GenerationRequest.model_fields
)
