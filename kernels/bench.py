"""Times the kernels on this GPU, each beside its yardstick, in the same run.

    python -m kernels.bench                     the table
    python -m kernels.bench --json              the rows as a list, with the card's name
    python -m kernels.bench --kernel rms_norm   only this one

A row's share is its speed over the yardstick's: torch's own best kernel for the same work, or the
bandwidth of a copy. Ends with 0, with 1 if a share that is asked for is missed, with 2 without a
GPU. Times are medians of many launches, the caches flushed in between.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from kernels.bench_case import Case, Sizes
from kernels.bench_cases import cases
from kernels.errors import KernelInputError

COPY_BYTES = 1 << 30
Timer = Callable[[Callable[[], object]], float]


@dataclass(frozen=True)
class Result:
    """speed: in TFLOP/s or GB/s, as `unit` says; share: of the yardstick's speed, None if this
    card runs no yardstick.
    """

    kernel: str
    config: str
    ms: float
    speed: float
    unit: str
    yardstick: str
    yardstick_speed: float
    share: float | None
    wanted: float | None

    @property
    def is_missed(self) -> bool:
        return self.wanted is not None and (self.share is None or self.share < self.wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("error: no GPU: this times compiled kernels. Tests run without one.", file=sys.stderr)
        return 2
    wanted = [case.kernel for case in cases(Sizes.tiny(), "cuda")]
    if options.kernel not in (None, *wanted):
        known = ", ".join(dict.fromkeys(wanted))
        print(f"error: no kernel {options.kernel!r}: there are {known}", file=sys.stderr)
        return 2
    from triton.testing import do_bench

    def timer(run: Callable[[], object]) -> float:
        return float(do_bench(run, warmup=100, rep=400, return_mode="median"))

    copied = copy_bandwidth(timer)
    results = []
    for case in cases(Sizes(), "cuda"):
        if options.kernel in (None, case.kernel):
            if sys.stderr.isatty():
                print(f"\r{case.kernel + ', ' + case.config:<100.100}", end="", file=sys.stderr)
            try:
                results.append(measure(case, timer, copied))
            except KernelInputError as reason:  # fp8 on a card without it
                print(f"left out: {case.kernel}, {case.config}: {reason}", file=sys.stderr)
    if sys.stderr.isatty():
        print(f"\r{'':<100}\r", end="", file=sys.stderr)
    device = torch.cuda.get_device_name()
    if options.json:
        rows = [{**asdict(result), "device": device} for result in results]
        print(json.dumps(rows, indent=2))
    else:
        print(f"{device}; a copy moves {copied:,.0f} GB/s\n{render(results)}")
    return int(any(result.is_missed for result in results))


def copy_bandwidth(timer: Timer, size: int = COPY_BYTES, device: str = "cuda") -> float:
    """GB/s, read and written bytes both counted."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / timer(lambda: target.copy_(source)) / 1e6


def measure(case: Case, timer: Timer, copied: float) -> Result:
    """A case's time and the best of its peers', or the copy's bandwidth."""
    ms = timer(case.run)
    if not case.peers:
        speed = case.bytes / ms / 1e6
        return Result(
            case.kernel, case.config, ms, speed, "GB/s", "copy", copied, speed / copied, case.wanted
        )
    times = {}
    for name, run in case.peers.items():
        try:
            times[name] = timer(run)
        except RuntimeError as error:  # what torch says of a backend that this card lacks
            if "out of memory" in str(error):
                raise
    best = min(times, key=lambda name: times[name], default="none runs here")
    return Result(
        case.kernel,
        case.config,
        ms,
        case.flops / ms / 1e9,
        "TFLOP/s",
        best,
        case.flops / times[best] / 1e9 if times else 0.0,
        times[best] / ms if times else None,
        case.wanted,
    )


def render(results: Iterable[Result]) -> str:
    """The rows as a table for a terminal."""
    lines = [("kernel", "config", "ms", "speed", "yardstick", "its speed", "share", "wanted")]
    for row in results:
        lines.append(
            (
                row.kernel,
                row.config,
                f"{row.ms:.3f}",
                f"{row.speed:,.0f} {row.unit}",
                row.yardstick,
                f"{row.yardstick_speed:,.0f} {row.unit}",
                "unknown" if row.share is None else f"{row.share:.0%}",
                "" if row.wanted is None else f"{row.wanted:.0%}{' missed' * row.is_missed}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, 1, 4, 7) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.bench",
        description="Times the kernels on this GPU, each beside its yardstick.",
        epilog="Example: python -m kernels.bench --kernel paged_attention --json",
    )
    parser.add_argument("--kernel", help="only this one")
    parser.add_argument("--json", action="store_true", help="rows as a JSON list")
    return parser


if __name__ == "__main__":
    sys.exit(main())
