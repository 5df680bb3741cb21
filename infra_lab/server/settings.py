"""What can be set about the server, apart from the engine: names, doors and limits.

Answers "what protects an inference server from its clients?": each limit here is one answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.errors import UsageError
from infra_lab.models.pooling import POOLINGS

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Attributes:
    model_name: what requests call the model; adapters have names of their own.
    api_keys: any of them opens the door, as `Authorization: Bearer KEY`; none leaves it open.
    cors_origins: web pages of these origins may call; "*" is any, none is none.
    allowed_hosts: names by which the server may be called (the Host header), so that a web page
        whose name is pointed at 127.0.0.1 reaches nothing; None allows all.
    max_body_bytes: a longer request is refused with 413.
    max_queue: prompts that may wait beyond those that run; more are refused with 429.
    max_requests_per_client: prompts that one client, by API key or else address, may have under
        way; None is no limit.
    max_samples: most of n and best_of.
    request_timeout_s: from a request's arrival to its answer's end; 504 then.
    body_timeout_s: for a request's body to arrive; 408 then.
    send_timeout_s: for a client to take a piece of a stream; its connection is closed then.
    drain_timeout_s: what running requests are given at shut-down.
    log_prompts: whether logs show what is asked.
    pooling: "mean" or "last": how /v1/embeddings makes one vector of a text; None refuses to.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    max_body_bytes: int = 2 * 1024 * 1024
    max_queue: int = 256
    max_requests_per_client: int | None = None
    max_samples: int = 64
    request_timeout_s: float = 600.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    log_prompts: bool = False
    pooling: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_samples"):
            _require(name, getattr(self, name), 1)
        _require("max_queue", self.max_queue, 0)
        if self.max_requests_per_client is not None:
            _require("max_requests_per_client", self.max_requests_per_client, 1)
        for name in ("request", "body", "send", "drain"):
            seconds = getattr(self, f"{name}_timeout_s")
            if not 0 < seconds < float("inf"):
                raise UsageError(f"{name}_timeout_s must be above 0, not {seconds}")
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise UsageError(f"pooling must be {' or '.join(POOLINGS)}, not {self.pooling!r}")
        if not all(key and key.isascii() and key.isprintable() for key in self.api_keys):
            raise UsageError("an API key must be printable ASCII text of at least one character")


def _require(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise UsageError(f"{name} must be at least {minimum}, not {value}")
