"""`infra-lab top`: what a server does now, from its /metrics."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.options import AsJson, Command, count_option, new_app
from infra_lab.cli.serve import KEY_VARIABLE
from infra_lab.cli.terminal import make_console, print_json
from infra_lab.errors import InfraLabError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from infra_lab.server.scrape import Activity, Reading

app = new_app()
TIMEOUT_S = 5.0
BAR_WIDTH = 30


@app.command(cls=Command, epilog="Example: infra-lab top --url http://127.0.0.1:8000 --interval 1")
def top(
    url: Annotated[
        str, typer.Option(metavar="URL", help="The server, without a path.")
    ] = "http://127.0.0.1:8000",
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds between two readings.")
    ] = 1.0,
    count: Annotated[
        int | None, count_option("Show so many readings and end; default: until Ctrl-C.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a server: what runs and waits, its KV cache, its tokens a second, TTFT and ITL.

    It reads vLLM's names, so it shows a vLLM server as well. A key is taken from
    INFRA_LAB_API_KEY.
    """
    from infra_lab.server.scrape import activity

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: give an address such as http://127.0.0.1:8000")
    number = count or (1 if as_json else None)
    console = make_console()
    before = _read(url)
    shown = 0
    if as_json or not console.is_terminal:
        while number is None or shown < number:
            time.sleep(interval)
            after = _read(url)
            found = activity(before, after)
            print_json(_as_dict(found)) if as_json else console.print(_line(found), markup=False)
            before, shown = after, shown + 1
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=False) as live:
        while number is None or shown < number:
            time.sleep(interval)
            after = _read(url)
            live.update(_table(url, activity(before, after)), refresh=True)
            before, shown = after, shown + 1


def _read(url: str) -> Reading:
    from infra_lab.server.scrape import read

    request = urllib.request.Request(f"{url.rstrip('/')}/metrics")
    if key := os.environ.get(KEY_VARIABLE):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            text = response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        remedy = f"; set {KEY_VARIABLE}" if error.code == 401 else ""
        raise InfraLabError(f"{url}/metrics answers {error.code} {error.reason}{remedy}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InfraLabError(
            f"no server answers at {url}: {reason}; start one with `infra-lab serve`"
        ) from error
    return read(text, time.monotonic())


def _pair_ms(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{1e3 * pair[0]:.0f} / {1e3 * pair[1]:.0f} ms"


def _rows(found: Activity) -> dict[str, str]:
    filled = round(BAR_WIDTH * found.kv_cache_usage)
    bar = "█" * filled + "░" * (BAR_WIDTH - filled)
    rate = "-" if found.prefix_hit_rate is None else f"{found.prefix_hit_rate:.0%}"
    return {
        "requests": f"{found.running} running, {found.waiting} waiting, "
        f"{found.requests_per_s:.1f}/s ended",
        "KV cache": f"{bar} {found.kv_cache_usage:.0%}",
        "prefix hits": rate,
        "tokens": f"{found.generation_tokens_per_s:.1f}/s out, "
        f"{found.prompt_tokens_per_s:.1f}/s in",
        "TTFT": f"{_pair_ms(found.ttft_s)} (P50 / P99)",
        "ITL": f"{_pair_ms(found.itl_s)} (P50 / P99)",
    }


def _line(found: Activity) -> str:
    """A reading where lines are kept, not overwritten."""
    return (
        f"running {found.running}  waiting {found.waiting}  KV {found.kv_cache_usage:.0%}  "
        f"{found.generation_tokens_per_s:.1f} tokens/s  TTFT {_pair_ms(found.ttft_s)}  "
        f"ITL {_pair_ms(found.itl_s)}"
    )


def _table(url: str, found: Activity) -> RenderableType:
    from rich.table import Table

    table = Table(title=url, title_justify="left", show_header=False, box=None)
    for name, text in _rows(found).items():
        table.add_row(name, text)
    return table


def _as_dict(found: Activity) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(found)
