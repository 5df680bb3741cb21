"""The request of /v1/completions."""

from __future__ import annotations

from pydantic import Field

from infra_lab.server.protocol.base import GenerationRequest

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest):
    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text, token ids, or a list of either: one prompt, or several."
    )
    max_tokens: int | None = Field(
        DEFAULT_MAX_TOKENS, description="null is as many as the context holds."
    )
    best_of: int | None = None
    echo: bool | None = Field(None, description="Whether the text begins with the prompt.")
    logprobs: int | None = Field(None, description="Likeliest tokens to list, 0 to 20.")
    suffix: str | None = Field(None, description="Refused: these models do not fill in.")

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return [*self.prompt]
