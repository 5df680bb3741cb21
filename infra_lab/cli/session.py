"""Options of every command that runs a model, and how they become a loaded LLM."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra_lab.cli.terminal import make_console
from infra_lab.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra_lab.engine.event_log import EventLog
    from infra_lab.engine.llm import LLM

Model = Annotated[
    str, typer.Option(help="A name from `infra-lab models list`, a folder, a .gguf file, a hub id.")
]
Events = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write every step's record there, as JSON lines."),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
KVCacheMB = Annotated[
    int | None, typer.Option("--kv-cache-mb", min=1, help="Memory of the KV pool, in MB.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Sample among the likeliest tokens of this mass.")]
TopK = Annotated[int, typer.Option(help="Sample among this many tokens; 0: all.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Engine settings as given on a command line; None and "auto" leave the choice to it."""

    model: str
    cache_dir: Path | None = None
    dtype: str = "auto"
    device: str = "auto"
    kv_cache_mb: int | None = None

    def config(self) -> dict[str, Any]:
        kv_cache_bytes = None if self.kv_cache_mb is None else self.kv_cache_mb * 1_000_000
        return {"dtype": self.dtype, "device": self.device, "kv_cache_bytes": kv_cache_bytes}


def load_llm(options: EngineOptions, event_log: EventLog | None, **config: Any) -> LLM:
    """Loads a model, saying so on stderr while it takes its time in a terminal."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        return _load(options, event_log, config)
    with console.status(f"loading {options.model}"):
        return _load(options, event_log, config)


def _load(options: EngineOptions, event_log: EventLog | None, config: dict[str, Any]) -> LLM:
    from infra_lab.engine.llm import LLM

    return LLM(
        options.model,
        event_log=event_log,
        cache_dir=options.cache_dir,
        **{**options.config(), **config},
    )


@contextmanager
def open_event_log(path: Path | None, capacity: int = 0) -> Iterator[EventLog]:
    """An event log that writes to `path`, if given, and says at the end if it had to stop."""
    from infra_lab.engine.event_log import EventLog

    with EventLog(path, capacity) as log:
        yield log
    if log.write_error is not None:
        raise UsageError(log.write_error)


def read_prompt(prompt: str | None) -> str:
    """The prompt given, or standard input for "-" or where something is piped in."""
    import sys

    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise UsageError('no prompt: give --prompt "text", or pipe the text in')
    return sys.stdin.read().rstrip("\n")
