"""What the commands of `infra-lab bench` share: the options that say what is sent, and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.terminal import make_console

if TYPE_CHECKING:
    from collections.abc import Callable

NumRequests = Annotated[int, typer.Option(metavar="N", help="Requests in the batch.")]
PromptLen = Annotated[
    str, typer.Option(metavar="MIN:MAX", help="Prompt tokens: a range, or one number.")
]
OutputLen = Annotated[
    str, typer.Option(metavar="MIN:MAX", help="Output tokens: a range, or one number.")
]
StreamPromptLen = Annotated[
    int, typer.Option(metavar="N", help="Prompt tokens of a single-stream request.")
]
StreamOutputLen = Annotated[
    int, typer.Option(metavar="N", help="Output tokens of a single-stream request.")
]
WorkloadSeed = Annotated[int, typer.Option(metavar="N", help="Seeds lengths and token ids.")]


def progress() -> Callable[[str], None]:
    """Says on stderr what is going on."""
    console = make_console(stderr=True)
    return lambda message: console.print(message, markup=False)
