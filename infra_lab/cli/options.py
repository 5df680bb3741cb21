"""Options that several commands share, spelt once."""

from pathlib import Path
from typing import Annotated

import typer

CacheDir = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Cache folder; default: $INFRA_LAB_CACHE or the system's."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
