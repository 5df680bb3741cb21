"""`infra-lab bench speculation` and `bench beams`: what drafting and sharing are worth here."""

from __future__ import annotations

from typing import Annotated

import typer

from infra_lab.cli.bench_options import progress
from infra_lab.cli.options import (
    AsJson,
    BlockSize,
    CacheDir,
    DraftModel,
    Dtype,
    Model,
    NumSpeculativeTokens,
    Threads,
    count_option,
)
from infra_lab.cli.terminal import print_json, print_table
from infra_lab.errors import UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

OutputTokens = Annotated[int, count_option("Most output tokens of a request.", minimum=2)]


def speculation(
    model: Model = DEFAULT_MODEL,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = None,
    draft_layers: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="First layers that draft, may be repeated; default: all but two."
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Requests at once, 1 to 8, may be repeated; default: 1, 8."),
    ] = None,
    output_tokens: OutputTokens = 96,
    repeat: Annotated[int, count_option("Runs of each; medians are shown.")] = 1,
    dtype: Dtype = "auto",
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """When drafts pay: tokens a step, acceptance, speed-up.

    Eight texts are summarized and eight questions answered, without drafts and with each kind of
    them. The ids must be the same.
    """
    from infra_lab.bench.engine import EngineSettings, effective_dtype, model_shape
    from infra_lab.bench.prompts import QUESTIONS
    from infra_lab.bench.speculation import compare_speculation, methods, speculation_report
    from infra_lab.bench.tables import speculation_table
    from infra_lab.engine.build_speculation import check_draft_vocabulary
    from infra_lab.speculative_config import DEFAULT_NUM_SPECULATIVE_TOKENS

    batches = batch or [1, len(QUESTIONS)]
    for size in batches:
        if not 1 <= size <= len(QUESTIONS):
            raise UsageError(f"--batch must be from 1 to {len(QUESTIONS)}, not {size}")
    path, config = model_shape(model, cache_dir)
    if draft_model is not None:
        check_draft_vocabulary(config, model_shape(draft_model, cache_dir)[1])
    all_layers = config.num_hidden_layers
    layers = draft_layers or []
    if draft_layers is None and draft_model is None and all_layers > 2:
        layers = [all_layers - 2]
    longest = num_speculative_tokens
    if longest is None:
        longest = DEFAULT_NUM_SPECULATIVE_TOKENS
    kinds = methods(all_layers, longest, draft_model, layers)
    settings = EngineSettings(dtype=dtype, threads=threads)
    runs = compare_speculation(
        path, settings, kinds, batches, output_tokens, repeat, progress(), cache_dir
    )
    report = speculation_report(model, effective_dtype(settings, config), longest, repeat, runs)
    if as_json:
        print_json(report)
    else:
        print_table(speculation_table(report))


def beams(
    model: Model = DEFAULT_MODEL,
    width: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Beam width, may be repeated; default: 2, 4 and 6."),
    ] = None,
    output_tokens: OutputTokens = 64,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """What beams save by sharing their blocks until one of them writes."""
    from infra_lab.bench.beams import beams_report, measure_beams
    from infra_lab.bench.engine import EngineSettings, model_shape
    from infra_lab.bench.tables import beams_table
    from infra_lab.config import EngineConfig

    widths = width or [2, 4, 6]
    path, _ = model_shape(model, cache_dir)
    settings = EngineSettings(dtype=dtype, threads=threads, block_size=block_size)
    rows = measure_beams(path, settings, widths, output_tokens, progress())
    report = beams_report(model, block_size or EngineConfig().block_size, output_tokens, rows)
    if as_json:
        print_json(report)
    else:
        print_table(beams_table(report))
