"""How commands look: the shape of their help, and the options that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


class Command(TyperCommand):
    """typer's command, but its help names an argument as NAME, required, or [NAME], optional."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [
            argument.metavar if argument.required else f"[{argument.metavar}]"
            for argument in self._parameters(ctx, "argument")
        ]
        return ["[OPTIONS]", *names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [(one.metavar, one.help) for one in self._parameters(ctx, "argument")]
        options = [one.get_help_record(ctx) for one in self._parameters(ctx, "option")]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _parameters(self, ctx: Any, kind: str) -> list[Any]:
        return [one for one in self.get_params(ctx) if one.param_type_name == kind]


def new_app(**settings: Any) -> typer.Typer:
    """An app whose help is plain text and whose errors reach `cli.main` as exceptions."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
        **settings,
    )


def at_least(minimum: int) -> Callable[[int | None], int | None]:
    """The callback of an option whose number has a floor."""

    def check(value: int | None) -> int | None:
        if value is not None and value < minimum:
            raise typer.BadParameter(f"must be at least {minimum}, not {value}")
        return value

    return check


def count_option(text: str, *names: str, minimum: int = 1) -> Any:
    """An option that takes a whole number of at least `minimum`."""
    return typer.Option(*names, metavar="N", callback=at_least(minimum), help=text)


ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A known name, a folder, a .gguf file, a hub id."),
]
Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="A name from `infra-lab models list`, a folder, a .gguf file, a hub id.",
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="Cache folder; default: $INFRA_LAB_CACHE or the system's.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Events = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write every step's record there, as JSON lines."),
]
Dtype = Annotated[str, typer.Option(metavar="TYPE", help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")]
AttentionName = Annotated[
    str, typer.Option("--attention", metavar="NAME", help="auto, native, torch or triton (GPU).")
]
KVCacheDtype = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="auto (as --dtype), int8_per_token_head, fp8_per_token_head, int8_per_channel_keys.",
    ),
]
Threads = Annotated[
    int | None, count_option("Threads for arithmetic; default: the engine's own choice.")
]
MaxNumSeqs = Annotated[
    int | None, typer.Option(metavar="N", help="Requests that may run in one step.")
]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens that one step may compute.")
]
BlockSize = Annotated[int | None, typer.Option(metavar="N", help="Tokens in one KV-cache block.")]
KVCacheMB = Annotated[int | None, count_option("Memory of the KV pool, in MB.", "--kv-cache-mb")]
LoraPath = Annotated[
    Path | None,
    typer.Option(
        "--lora", metavar="DIR", help="A PEFT folder whose LoRA adapter to use on top of the model."
    ),
]
MaxTokens = Annotated[int, count_option("Most tokens of an answer.")]
Temperature = Annotated[
    float, typer.Option(metavar="X", help="0 always takes the likeliest token.")
]
TopP = Annotated[
    float, typer.Option(metavar="X", help="Sample among the likeliest tokens of this mass.")
]
TopK = Annotated[int, typer.Option(metavar="N", help="Sample among this many tokens; 0: all.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Makes sampling repeatable.")]
Speculative = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Draft tokens and verify them: ngram or draft_model."),
]
NumSpeculativeTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Most tokens drafted for a step; default: 4.")
]
DraftModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="The model that drafts, of the same vocabulary.")
]
DraftLayers = Annotated[
    int | None, typer.Option(metavar="N", help="Draft with the model's own first N layers.")
]
