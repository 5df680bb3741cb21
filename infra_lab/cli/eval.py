"""`infra-lab eval`: how good a model is on a text, whatever its weights are stored in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra_lab.cli.options import (
    AsJson,
    CacheDir,
    Command,
    Device,
    Dtype,
    ModelArgument,
    Threads,
    count_option,
    new_app,
)
from infra_lab.cli.terminal import print_json, print_table, steps_progress
from infra_lab.models.catalog import DEFAULT_MODEL

app = new_app(help="Measure a model's quality.", epilog="Example: infra-lab eval ppl smollm2-135m")

EvaluatedText = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help="The text; default: the last chapters of a book."),
]
Window = Annotated[
    int | None,
    count_option(
        "Tokens scored together; the stride is the same. Default: 2048, or the context.", minimum=2
    ),
]
MaxScored = Annotated[
    int | None, count_option("Read only so many tokens of the text.", "--tokens", minimum=2)
]


@app.callback()
def group() -> None:
    """Commands of their own, even while there is one."""


@app.command(cls=Command, epilog="Example: infra-lab eval ppl smollm2-135m --text novel.txt --json")
def ppl(
    model: ModelArgument = DEFAULT_MODEL,
    text: EvaluatedText = None,
    window: Window = None,
    tokens: MaxScored = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Perplexity on a text, and the bits that a weight takes.

    Windows stand end to end; a window's first token is not scored. Bits are those of the decoder's
    linear layers as they are stored, scales and all.
    """
    from infra_lab.bench.engine import model_shape
    from infra_lab.bench.quality import load_text_model
    from infra_lab.quantization.corpus import BOOK, evaluation_text
    from infra_lab.quantization.evaluate import evaluate
    from infra_lab.quantization.stored_size import stored_bits_per_weight

    content = evaluation_text(text)
    path, config = model_shape(model, cache_dir)
    text_model, windows = load_text_model(path, content, window, tokens, dtype, device, threads)
    with steps_progress("windows") as progress:
        likelihood = evaluate(text_model, windows, progress=progress).likelihood
    report = {
        "model": model,
        "text": BOOK if text is None else text.name,
        "window": max(map(len, windows)),
        "tokens": len(likelihood.logprobs),
        "perplexity": likelihood.perplexity,
        "bits_per_weight": stored_bits_per_weight(path, config),
    }
    if as_json:
        print_json(report)
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("model", model)
    table.add_row("text", str(report["text"]))
    table.add_row("window", f"{report['window']:,} tokens")
    table.add_row("tokens scored", f"{report['tokens']:,}")
    table.add_row("perplexity", f"{report['perplexity']:.4f}")
    table.add_row("bits per weight", f"{report['bits_per_weight']:.3f}")
    print_table(table)
