"""`infra-lab quantize compare`: every method on one model, as a table, a figure or JSON."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra_lab.cli.eval import EvaluatedText, MaxScored, Window
from infra_lab.cli.options import AsJson, CacheDir, ModelArgument, Threads, count_option
from infra_lab.cli.terminal import human_bytes, print_json, print_table, steps_progress
from infra_lab.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.table import Table


def compare(
    model: ModelArgument = DEFAULT_MODEL,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="May be repeated; default: all.")
    ] = None,
    bits: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Of a weight, may be repeated; default: 8, 4, 3, 2."),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", metavar="N", help="Columns with one scale, where it is a choice."),
    ] = None,
    text: EvaluatedText = None,
    tokens: MaxScored = None,
    window: Window = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text to calibrate on; default: a book's beginning."),
    ] = None,
    samples: Annotated[
        int | None, count_option("Calibration sequences; default: 30.", "--samples")
    ] = None,
    sequence_length: Annotated[
        int | None, count_option("Tokens of each; default: 512, or the context.")
    ] = None,
    outliers: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Plant outliers first, so many times as large: a power of two."
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw perplexity against bits there, as SVG."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep finished rows there, and go on with them."),
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Time one greedy request of each, too.")
    ] = True,
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """All methods side by side: bits, size, perplexity, KL, speed.

    KL divergence is that of the model as it is to the quantized one, a token; top-1 is how often
    both think the same token likeliest.
    """
    import torch

    from infra_lab.bench.engine import model_shape
    from infra_lab.bench.quality_figure import quality_figure
    from infra_lab.bench.quality_rows import RowsFile
    from infra_lab.bench.quantization import Comparison, default_variants, single_stream_speed
    from infra_lab.bench.system import machine_facts
    from infra_lab.figures import checked_figure_path
    from infra_lab.models.loader import open_checkpoint
    from infra_lab.models.tokenizer import load_tokenizer
    from infra_lab.quantization.calibration import calibration_sequences
    from infra_lab.quantization.corpus import BOOK, calibration_text, evaluation_text
    from infra_lab.quantization.evaluate import checked_windows
    from infra_lab.quantization.outliers import with_planted_outliers
    from infra_lab.quantization.partial_folder import content_hash, text_hash
    from infra_lab.quantization.settings import refuse_unknown_options

    variants = default_variants(method, bits)
    checked_figure_path(figure)
    path, config = model_shape(model, cache_dir)
    shared = {"num_sequences": samples, "sequence_length": sequence_length}
    chosen = [variant.settings(config, shared, group) for variant in variants]
    is_calibrated = any(settings.is_calibrated for settings in chosen)
    if not is_calibrated:
        refuse_unknown_options(chosen[0].method, shared | {"calibration": calibration})
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint)
    if outliers is not None:
        checkpoint = with_planted_outliers(checkpoint, outliers)
    judged_on, learned_from = evaluation_text(text), calibration_text(calibration)
    windows = checked_windows(tokenizer.encode(judged_on)[:tokens], window, config)
    sequences = None
    if is_calibrated:
        learned = tokenizer.encode(learned_from)
        first = next(settings for settings in chosen if settings.is_calibrated)
        sequences = calibration_sequences(learned, first, config)
    kept = RowsFile(
        rows,
        {
            "model": content_hash(path),
            "outliers": outliers,
            "text": text_hash(judged_on),
            "windows": [len(one) for one in windows],
            "calibration": text_hash(learned_from),
        },
    )
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": machine_facts(),
        "model": model,
        "text": BOOK if text is None else text.name,
        "tokens": sum(len(one) - 1 for one in windows),
        "window": max(map(len, windows)),
        "outliers": outliers,
    }
    with steps_progress("steps") as progress:
        comparison = Comparison(
            checkpoint,
            windows,
            sequences,
            progress,
            single_stream_speed if speed else None,
        )
        finished = []
        for settings in [None, *chosen]:
            described = {} if settings is None else settings.described()
            row = kept.find(described, with_speed=speed)
            if row is None:
                row = comparison.row(settings)
                kept.add(row)
            finished.append(row)
    report["rows"] = [asdict(row) for row in finished]
    if figure is not None:
        quality_figure(report["rows"], f"{model} on {report['text']}", figure)
    if as_json:
        print_json(report)
    else:
        print_table(comparison_table(report))


def comparison_table(report: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{report['model']}, {report['tokens']:,} tokens of {report['text']} in windows of "
        f"{report['window']:,}"
    )
    table.add_column("method")
    columns = ("group", "bits/weight", "size", "perplexity", "change", "KL", "top-1", "tokens/s")
    for name in columns:
        table.add_column(name, justify="right")
    base = report["rows"][0]["perplexity"]
    for row in report["rows"]:
        speed = row["tokens_per_s"]
        table.add_row(
            row["name"],
            _group(row["settings"]),
            f"{row['bits_per_weight']:.2f}",
            human_bytes(row["size_bytes"]),
            f"{row['perplexity']:.3f}",
            f"{row['perplexity'] / base - 1:+.1%}",
            f"{row['kl_divergence']:.4f}",
            f"{row['top1_agreement']:.1%}",
            "-" if speed is None else f"{speed:.1f}",
        )
    return table


def _group(settings: dict[str, Any]) -> str:
    if not settings:
        return "-"
    kind = "sym" if settings["symmetric"] else "asym"
    return f"{settings['group_size'] or 'row'}, {kind}"
