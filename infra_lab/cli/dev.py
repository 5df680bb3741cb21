"""`infra-lab dev`: make a problem, check that its grader is fair, and measure how sharp it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.options import AsJson, Command, count_option, new_app
from infra_lab.cli.terminal import counted, make_console, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra_lab.practice.catalog_check import CatalogReport
    from infra_lab.practice.mutation import Fate, MutationReport

app = new_app(
    help="Make, check and measure problems: for authors of problems.",
    epilog="Example: infra-lab dev check ring_walk",
)

Slug = Annotated[str, typer.Argument(metavar="SLUG", help="The problem's folder, as ring_walk.")]
OptionalSlug = Annotated[
    str | None, typer.Argument(metavar="SLUG", help="One problem; without it, all.")
]
Workers = Annotated[int, count_option("Grading processes at a time.", "--workers")]


@app.command(
    cls=Command,
    epilog='Example: infra-lab dev new two_sum --signature "two_sum(a: list[int], n: int) -> int"',
)
def new(
    slug: Slug,
    signature: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of the entry point: name(parameters) -> result."),
    ] = None,
    track: Annotated[
        str, typer.Option(metavar="NAME", help="algorithms, attention, serving or quantization.")
    ] = "algorithms",
    level: Annotated[str, typer.Option(metavar="NAME", help="easy, medium or hard.")] = "easy",
) -> None:
    """Make the folders of a new problem, from templates that load and grade."""
    from infra_lab.practice.catalog import default_root
    from infra_lab.practice.scaffold import scaffold

    root = default_root()
    for path in scaffold(slug, signature, track, level, root):
        typer.echo(path.relative_to(root).as_posix())
    typer.echo(f"Next: `infra-lab dev check {slug}` lists what is still to be written.")


@app.command(cls=Command, epilog="Example: infra-lab dev check ring_walk")
def check(slug: OptionalSlug = None, json: AsJson = False, workers: Workers = 2) -> int:
    """Verify everything that a problem's folder promises; exit 1 if anything is not so."""
    from infra_lab.practice.catalog import default_root, load, slugs
    from infra_lab.practice.catalog_check import check_problems

    root = default_root()
    known = slugs(root)
    if slug is not None and slug not in known:
        load(slug, root)  # says what is near
    chosen = known if slug is None else [slug]
    with _progress(f"checking {counted(len(chosen), 'problem')}", len(chosen)) as step:
        report = check_problems(
            chosen, root, lambda one, what: step(f"{one} {what}".strip(), not what), workers
        )
    if json:
        print_json(report.as_dict())
    else:
        _show_check(report, slug)
    return 1 if report.all_faults or not report.problems else 0


@app.command(cls=Command, epilog="Example: infra-lab dev mutate ring_walk")
def mutate(
    slug: Slug,
    approach: Annotated[
        str | None,
        typer.Option(metavar="STEM", help="Only this file's mutants; nothing is recorded then."),
    ] = None,
    stop_at: Annotated[
        int | None, count_option("End after so many survivors.", "--stop-at")
    ] = None,
    json: AsJson = False,
    workers: Workers = 2,
) -> int:
    """Grade every small change of the reference solutions; exit 1 if one passes unexplained."""
    from infra_lab.practice import mutation
    from infra_lab.practice.catalog import load
    from infra_lab.practice.mutation_record import all_mutants

    problem = load(slug)
    approaches = () if approach is None else (approach,)
    total = len(all_mutants(problem, approaches))
    with _progress(f"grading {counted(total, 'mutant')}", total) as step:

        def notify(fate: Fate, done: int, of: int) -> None:
            step("" if fate.is_killed else f"alive: {fate.mutant.id}", True)

        report = mutation.mutate(problem, approaches, notify, workers, stop_at)
    record = report.record()
    if report.is_whole:
        record.save(problem)
    is_right = not (record.survivors or report.faults or report.needless)
    if json:
        print_json(_mutation_json(report))
        return 0 if is_right else 1
    for line in mutation.describe(report):
        typer.echo(line)
    if is_right and report.is_whole:
        typer.echo(f"Next: `infra-lab dev check {slug}`.")
    else:
        typer.echo(f"Next: mend the above, then `infra-lab dev mutate {slug}`.")
    return 0 if is_right else 1


def _show_check(report: CatalogReport, slug: str | None) -> None:
    from rich.table import Table

    from infra_lab.practice.catalog_check import PARTS

    if slug is not None and report.problems[0].folder is not None:
        kills = Table("mutant", "killed by", box=None, pad_edge=False)
        for mutant, killer in report.problems[0].folder.kills.items():
            kills.add_row(mutant, killer)
        if kills.row_count:
            print_table(kills)
            typer.echo("")
    table = Table("problem", *(part.replace("_", " ") for part in PARTS), "survivors", "faults")
    table.box, table.pad_edge = None, False
    rows = [(one.slug, one.tally, one.record, one.faults) for one in report.problems]
    for name, tally, record, faults in rows:
        cells = [f"{tally(part).ok}/{tally(part).total}" for part in PARTS]
        survivors = "-" if record is None else str(len(record.survivors))
        table.add_row(name, *cells, survivors, str(len(faults)))
    if len(rows) > 1:
        cells = [f"{report.tally(part).ok}/{report.tally(part).total}" for part in PARTS]
        survivors = str(sum(len(one.record.survivors) for one in report.problems if one.record))
        table.add_row("all", *cells, survivors, str(len(report.all_faults)))
    print_table(table)
    faults = report.all_faults
    if faults:
        typer.echo("")
        for fault in faults:
            typer.echo(f"fault: {fault}")
    typer.echo(_next_after_check(report, slug))


def _next_after_check(report: CatalogReport, slug: str | None) -> str:
    if not report.problems:
        return "There are no problems here. Next: `infra-lab dev new SLUG`."
    faulty = next((one for one in report.problems if one.faults), None)
    if faulty is None and not report.faults:
        command = f"infra-lab test {slug}" if slug else "make test"
        return f"All is as it must be. Next: `{command}`."
    if faulty is None:
        return "Next: mend the above, then `infra-lab dev check`."
    if all("`infra-lab dev mutate" in fault for fault in faulty.faults):
        return f"Next: `infra-lab dev mutate {faulty.slug}`."
    return f"Next: mend the above, then `infra-lab dev check {faulty.slug}`."


def _mutation_json(report: MutationReport) -> dict[str, object]:
    record = report.record()
    return {
        "slug": report.slug,
        "is_whole": report.is_whole,
        "total": record.total,
        "killed": record.killed,
        "equivalent": record.equivalent,
        "rules": record.rules,
        "survivors": [
            {"id": one.id, "rule": one.rule, "before": one.before, "after": one.after}
            for one in report.survivors
        ],
        "needless": report.needless,
        "faults": report.faults,
    }


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[str, bool], None]]:
    """Takes a text and whether one more is done. Piped, it says only what begins and what ends
    a tenth of the work, on stderr."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        done = 0
        console.print(title)

        def plain(text: str, is_done: bool) -> None:
            nonlocal done
            done += is_done
            if is_done and (done == total or done % max(1, total // 10) == 0):
                console.print(f"{done}/{total} {text}".rstrip(), markup=False)

        yield plain
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=total)

        def moving(text: str, is_done: bool) -> None:
            if text.startswith("alive: "):
                bars.console.print(text, markup=False)
            elif text:
                bars.update(task, description=text)
            if is_done:
                bars.advance(task)

        yield moving
