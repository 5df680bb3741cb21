"""What does an index out of bounds do in C++, who notices it, and what does a check cost?

Real programs, built by the compiler that is here. Layout is the compiler's affair, so that what is
concluded is what every layout shows; the indices themselves are in the tables.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from infra_lab.claims.experiments import array_bounds as bounds
from infra_lab.claims.experiments import bounds_conclusions as findings
from infra_lab.claims.experiments.experiment import (
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.native_programs import Workshop, workshop
from infra_lab.texts import Language, Text, text

_SIZES = (4, 40, 2000)
_LEVELS = ("-O2", "-O3")
_PARTS = (
    text("writes on the stack", "栈上越界写"),
    text("writes on the heap", "堆上越界写"),
    text("warnings and language versions", "警告与语言版本"),
    text("sanitizers", "sanitizer"),
    text("what a check costs", "检查的代价"),
)
_OUTCOMES: Mapping[bounds.Outcome, Text] = {
    "silent": text("silent", "无声"),
    "x changed": text("x changed", "改写了 x"),
    "crash": text("SIGSEGV", "SIGSEGV"),
    "canary": text("stack smashing", "stack smashing"),
    "aborted": text("aborted", "abort"),
    "reported": text("reported", "报告"),
    "other": text("other", "其他"),
}


def run(progress: Progress, seed: int) -> Result:
    """`seed` chooses nothing here: programs, flags and indices are fixed."""
    with workshop() as shop:
        parts = iter(_PARTS)
        done = 0

        def told() -> None:
            nonlocal done
            progress(done, len(_PARTS), next(parts))
            done += 1

        told()
        stack = {
            name: found
            for name, flags in bounds.STACK_BUILDS.items()
            if (found := bounds.stack_writes(shop, flags)) is not None
        }
        checked = {
            name: bounds.caught_behind_the_end(shop, flags)
            for name, flags in bounds.CHECKED_BUILDS.items()
        }
        told()
        heap = [bounds.heap_writes(shop, size) for size in _SIZES] if _has_glibc() else []
        last, has_crashed = bounds.last_offset_read(shop)
        told()
        warned = bounds.warnings_by_level(shop)
        span = {
            standard: shop.build("span_at", f"-std={standard}").program is not None
            for standard in ("c++20", "c++23")
        }
        addresses = shop.run(shop.built("contiguous_address"))
        told()
        seen = _seen(shop)
        told()
        cost = {level: bounds.loop_cost(shop, level) for level in _LEVELS}
        has_libstdcxx = shop.defines("__GLIBCXX__")
        kind, version = shop.kind, shop.version
    plain, protector = stack["plain"], stack["protector"]
    behind = sum(index >= bounds.LENGTH for index in bounds.INDICES)
    numbers: dict[str, float] = {
        "behind": behind,
        "plain_silent": plain.count("silent", "x changed"),
        "plain_crash": plain.count("crash"),
        **{
            name: float(place)
            for name, build in bounds.X_PLACES.items()
            if (place := stack[build].x_index) is not None
        },
        "canary": protector.count("canary"),
        "past_canary": protector.count("crash"),
        "last_offset": last,
        "last_kib": last / 1024,
        "pages": last / os.sysconf("SC_PAGE_SIZE"),
        **{f"warnings_o{level}": count for level, count in warned.items()},
        "published_slots": addresses.number("published") or 0,
        "right_slots": addresses.number("right") or 0,
        **{
            f"{name}_{level[1:].lower()}": value
            for level, one in cost.items()
            for name, value in (("sum", one.sum_ratio), ("gather", one.gather_ratio))
        },
        **{
            f"stack_{name}": float(stack[name].count("reported"))
            for name in ("bounds", "asan")
            if name in stack
        },
        **{f"caught_{name}": float(found) for name, found in checked.items() if found is not None},
        **{f"seen_{name}": float(found) for name, found in seen.items() if found is not None},
        **{f"usable_{one.size}": float(one.usable) for one in heap},
    }
    conclusions = [
        *findings.about_the_stack(stack, numbers),
        *findings.about_the_heap(heap, last, has_crashed),
        *findings.about_compilers(kind, warned, span),
        *findings.about_checks(numbers, has_libstdcxx),
        *findings.about_cost(cost),
        findings.about_addresses(numbers),
    ]
    tables = (
        _stack_table(stack, version),
        _heap_table(heap),
        _cost_table(cost),
    )
    return Result(numbers, tables, tuple(conclusions), {"outcomes": _codes(plain, protector)})


def _seen(shop: Workshop) -> dict[str, bool]:
    """Whether a sanitizer or an assertion stopped a program, by case; not of those that cannot be
    built here."""
    asan = ("-O0", "-g", "-fsanitize=address")
    static = ("-O0", "-fsanitize=bounds", "-fno-sanitize-recover=all")
    cases = {
        "far_asan": ("far_object", *asan),
        "heap_asan": ("heap_pointer", *asan),
        "heap_bounds": ("heap_pointer", *static),
        "gap_asan": ("capacity_gap", "-DUSE_DATA", *asan),
        "gap_annotated": ("capacity_gap", "-DUSE_DATA", "-D_GLIBCXX_SANITIZE_VECTOR", *asan),
    }
    found = {name: bounds.outcome_of(shop, *case) for name, case in cases.items()}
    seen = {name: one == "reported" for name, one in found.items() if one is not None}
    checked = bounds.outcome_of(shop, "capacity_gap", "-O1", "-D_GLIBCXX_ASSERTIONS")
    return seen | {"gap_assertions": checked == "aborted"}


def _stack_table(stack: Mapping[str, bounds.StackWrites], version: str) -> Table:
    builds = list(stack)
    return Table(
        text(f"Writing a[i] of int a[10]: {version}", f"写 int a[10] 的 a[i]：{version}"),
        (column("i", "i", ".0f"), *(column(name, name) for name in builds)),
        tuple(
            (float(index), *(_OUTCOMES[stack[name].outcomes[index]] for name in builds))
            for index in bounds.INDICES
            if index < 0 or index >= bounds.LENGTH
        ),
    )


def _heap_table(heap: list[bounds.HeapWrites]) -> Table:
    return Table(
        text("malloc(n), one byte written, both blocks freed", "malloc(n)，写一个字节，释放两块"),
        (
            column("n", "n", ".0f"),
            column("usable bytes", "可用字节", ".0f"),
            column("last usable byte written", "写最后一个可用字节"),
            column("the next one written", "写下一个字节"),
        ),
        tuple(
            (
                float(one.size),
                float(one.usable),
                text("nothing", "无事") if one.last.status == 0 else f"{one.last.status}",
                f"{one.behind.status} {one.behind.err.strip()}".strip(),
            )
            for one in heap
        ),
    )


def _cost_table(cost: Mapping[str, bounds.LoopCost]) -> Table:
    packed = {True: text("yes", "是"), False: text("no", "否")}
    return Table(
        text("Time with at() over time with []", "at() 与 [] 的时间之比"),
        (
            column("level", "级别"),
            column("sum", "求和", ".2f"),
            column("gather", "gather", ".2f"),
            column("[] vectorized", "[] 向量化"),
            column("at() vectorized", "at() 向量化"),
        ),
        tuple(
            (
                level,
                one.sum_ratio,
                one.gather_ratio,
                packed[one.plain_is_packed],
                packed[one.checked_is_packed],
            )
            for level, one in cost.items()
        ),
    )


def _codes(*builds: bounds.StackWrites) -> list[float]:
    """Outcomes as places in _OUTCOMES, build after build: what the figure colours."""
    kinds = list(_OUTCOMES)
    return [float(kinds.index(one.outcomes[index])) for one in builds for index in bounds.INDICES]


def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import COLOURS, drawing

    codes = list(result.series["outcomes"])
    width = len(bounds.INDICES)
    builds = (text("no protector", "无栈保护"), text("stack protector", "栈保护"))
    with drawing(path, width=7.6, height=2.4) as (_, axes):
        for place, kind in enumerate(_OUTCOMES):
            points = [
                (bounds.INDICES[at % width], at // width)
                for at, code in enumerate(codes)
                if code == place
            ]
            if points:
                axes.scatter(
                    [x for x, _ in points],
                    [-y for _, y in points],
                    marker="s",
                    s=60,
                    color=COLOURS[place],
                    label=_OUTCOMES[kind][language],
                )
        axes.axvspan(-0.5, 9.5, alpha=0.12, color=COLOURS[2])
        axes.set_yticks([0, -1], [one[language] for one in builds])
        axes.set_ylim(-1.7, 0.7)
        axes.set_axisbelow(True)
        axes.set_xlabel({"en": "index written", "zh": "写入的下标"}[language])
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.35), ncols=5)


EXPERIMENT = Experiment(
    "cpp-bounds",
    text("Indices out of bounds in C++", "C++ 下标越界"),
    text(
        "What does an index out of bounds do, who notices it, and what does a check cost?",
        "下标越界会发生什么，谁能发现，检查的代价多大？",
    ),
    run,
    draw,
    seconds=12,
    needs=("compiler", "linux"),
)
