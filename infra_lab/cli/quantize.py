"""`infra-lab quantize MODEL` and `infra-lab quantize compare MODEL`.

The first argument decides: `compare` is a command of its own, anything else belongs to quantizing.
(A folder of that name is ./compare.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from infra_lab.cli.options import (
    AsJson,
    CacheDir,
    Command,
    ModelArgument,
    Threads,
    count_option,
    new_app,
)
from infra_lab.cli.quantize_compare import compare
from infra_lab.cli.terminal import human_bytes, print_json, print_table, steps_progress
from infra_lab.errors import UsageError

_METHODS = "rtn, gptq, awq, smoothquant, rotation, quip, nf4, mxfp4, fp8 or llm_int8."
_FORMATS = "gptq, awq, compressed-tensors, bitsandbytes, fp8 or gguf; default: by method."


def quantize(
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the quantized model goes; must be new.")
    ],
    method: Annotated[str, typer.Option(metavar="NAME", help=_METHODS)] = "gptq",
    bits: Annotated[int | None, typer.Option(metavar="N", help="Of a weight: 2 to 8.")] = None,
    group: Annotated[
        int | None,
        typer.Option(
            "--group",
            metavar="N",
            help="Columns with one scale; -1: a row. Default: 128, 64 or 32, whichever divides.",
        ),
    ] = None,
    sym: Annotated[
        bool | None,
        typer.Option("--sym/--asym", help="Grids with zero in the middle, or where it is best."),
    ] = None,
    act_order: Annotated[
        bool | None,
        typer.Option("--act-order/--no-act-order", help="GPTQ: columns of large inputs first; on."),
    ] = None,
    static_groups: Annotated[
        bool | None,
        typer.Option(
            "--static-groups/--no-static-groups",
            help="And groups of neighbouring columns all the same; on.",
        ),
    ] = None,
    damping: Annotated[
        float | None, typer.Option(metavar="X", help="GPTQ, quip: of the mean diagonal; 0.01.")
    ] = None,
    clip: Annotated[
        bool | None, typer.Option("--clip", help="Shrink ranges to where the error is least.")
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(metavar="X", help="SmoothQuant: how much moves, 0 to 1, or auto (default)."),
    ] = None,
    activation_bits: Annotated[
        int | None, typer.Option(metavar="N", help="Round each token's input too: 8 or 4.")
    ] = None,
    outlier_threshold: Annotated[
        float | None, typer.Option(metavar="X", help="LLM.int8(): full precision above; 6.0.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of rotations.")] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help=_FORMATS)
    ] = None,
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
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a model with its weights in fewer bits; `quantize compare` shows what each way costs.

    Interrupted, the same command goes on after the last finished layer. The folder loads in
    infra-lab with no further option.
    """
    from infra_lab.bench.engine import model_shape
    from infra_lab.bench.system import peak_rss_mb
    from infra_lab.quantization.settings import choose_settings, refuse_unknown_options

    refuse_unknown_options(method, {"calibration": calibration})
    path, config = model_shape(model, cache_dir)
    settings = choose_settings(
        method,
        config,
        {
            "bits": bits,
            "group_size": group,
            "symmetric": sym,
            "act_order": act_order,
            "static_groups": static_groups,
            "damping": damping,
            "clip": clip,
            "alpha": _share_or_auto(alpha),
            "activation_bits": activation_bits,
            "outlier_threshold": outlier_threshold,
            "seed": seed,
            "format": format_name,
            "num_sequences": samples,
            "sequence_length": sequence_length,
        },
    )
    import torch

    from infra_lab.quantization.corpus import calibration_text
    from infra_lab.quantization.run import quantize_to_folder
    from infra_lab.quantization.stored_size import stored_bits_per_weight, stored_bytes

    if threads is not None:
        torch.set_num_threads(threads)
    started = time.perf_counter()
    with steps_progress("layers") as progress:
        run = quantize_to_folder(path, out, settings, calibration_text(calibration), progress)
    report: dict[str, Any] = {
        "model": model,
        "out": str(run.out),
        **settings.described(),
        "bits_per_weight": stored_bits_per_weight(run.out, config),
        "size_bytes": stored_bytes(run.out),
        "resumed_layers": run.resumed_layers,
        "elapsed_s": time.perf_counter() - started,
        "peak_rss_mb": peak_rss_mb(),
    }
    if as_json:
        print_json(report)
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("model", model)
    table.add_row("method", f"{method}, {settings.bits} bits, as {settings.format}")
    table.add_row("bits per weight", f"{report['bits_per_weight']:.3f}")
    table.add_row("size", human_bytes(report["size_bytes"]))
    table.add_row("time", f"{report['elapsed_s']:.1f} s")
    table.add_row("peak memory", f"{report['peak_rss_mb']:,.0f} MiB")
    table.add_row("written to", str(run.out))
    print_table(table)


def _share_or_auto(given: str | None) -> float | str | None:
    """The value of --alpha. Raises UsageError for neither a number nor auto."""
    if given is None or given == "auto":
        return given
    try:
        return float(given)
    except ValueError:
        raise UsageError(f"--alpha is a share from 0 to 1, or auto, not {given}") from None


_quantize_app, _compare_app = new_app(), new_app()
_quantize_app.command(
    cls=Command,
    epilog="Example: infra-lab quantize smollm2-135m --method gptq --bits 4 --group 64 --out "
    "smollm2-gptq4",
)(quantize)
_compare_app.command(
    cls=Command, epilog="Example: infra-lab quantize compare smollm2-135m --bits 4"
)(compare)


class _Commands:
    """What `cli.main` calls: one of the two apps."""

    registered_commands: Sequence[object] = ()
    registered_callback = None

    def __call__(self, args: Sequence[str], prog_name: str, standalone_mode: bool) -> Any:
        app, rest = _quantize_app, list(args) or ["--help"]
        if rest[0] == "compare":
            app, rest, prog_name = _compare_app, rest[1:], f"{prog_name} compare"
        return app(args=rest, prog_name=prog_name, standalone_mode=standalone_mode)


app = _Commands()
