"""From a command line to a loaded model, its event log and the text to work on."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra_lab.cli.terminal import make_console
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.models.text import require_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra_lab.engine.event_log import EventLog
    from infra_lab.engine.llm import LLM
    from infra_lab.speculative_config import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Engine settings as given on a command line; None and "auto" leave the choice to it."""

    model: str
    cache_dir: Path | None = None
    dtype: str = "auto"
    device: str = "auto"
    kv_cache_mb: int | None = None
    attention: str = "auto"
    lora: Path | None = None
    kv_cache_dtype: str = "auto"
    speculative: SpeculativeConfig | None = None

    @property
    def lora_name(self) -> str | None:
        """What requests call the one adapter that a command may load."""
        return None if self.lora is None else str(self.lora)

    def config(self) -> dict[str, Any]:
        kv_cache_bytes = None if self.kv_cache_mb is None else self.kv_cache_mb * 1_000_000
        return {
            "dtype": self.dtype,
            "device": self.device,
            "attention": self.attention,
            "kv_cache_dtype": self.kv_cache_dtype,
            "kv_cache_bytes": kv_cache_bytes,
            "speculative": self.speculative,
        }


def speculative_config(
    method: str | None,
    num_speculative_tokens: int | None,
    draft_model: str | None,
    draft_layers: int | None,
) -> SpeculativeConfig | None:
    """From the options of that name; None without --speculative, which the others need."""
    from infra_lab.speculative_config import SpeculativeConfig

    settings = {
        "num_speculative_tokens": num_speculative_tokens,
        "draft_model": draft_model,
        "draft_layers": draft_layers,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    if method is None:
        if given:
            option = next(iter(given)).replace("_", "-")
            raise UsageError(f"--{option} needs --speculative ngram or --speculative draft_model")
        return None
    return SpeculativeConfig(method, **given)  # type: ignore[arg-type]


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
        lora_adapters={} if options.lora is None else {str(options.lora): options.lora},
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


def read_prompt(argument: str | None, option: str | None) -> str:
    """The prompt given, or standard input for "-" or where something is piped in."""
    if argument is not None and option is not None:
        raise UsageError("two prompts, one with --prompt and one without: give one of them")
    given = option if argument is None else argument
    if given is None and sys.stdin.isatty():
        raise UsageError('no prompt: give one ("-" reads it from standard input)')
    if given is None or given == "-":
        given = sys.stdin.read().rstrip("\n")
        if not given:
            raise InvalidRequestError("no prompt: none was given and standard input is empty")
    if not given:
        raise InvalidRequestError("the prompt is empty: give at least one character")
    require_text("the prompt", given)
    return given
