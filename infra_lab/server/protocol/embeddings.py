"""The request of /v1/embeddings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra_lab.server.protocol.base import Strict


class EmbeddingRequest(Strict):
    model: str = Field(description="The served model.")
    input: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text, token ids, or a list of either: one vector each."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64 is that of little-endian float32; default: float."
    )
    dimensions: int | None = Field(
        None, description="Only the model's own: it was not trained to be cut short."
    )
    user: str | None = Field(None, description="Named in the server's log, and nowhere else.")

    @property
    def inputs(self) -> list[str | list[int]]:
        """One entry a vector."""
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [self.input]
        return [*self.input]
