"""What the ahead-of-time gate compiles: kernels and their configurations, as data.

A kernel's module declares a tuple AOT_CASES; `declared_cases` finds them all. A case should be
made by the function that the wrapper launches with, so that what is measured is what runs.
Importing this module loads neither torch nor triton.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kernels.testing.architectures import ARCHITECTURES

Launch = TypeVar("Launch", bound=Hashable)


@dataclass(frozen=True)
class AotCase:
    """One kernel in one configuration.

    kernel, config: the row's name in the table.
    function: the @triton.jit function.
    arguments: Triton's type of every parameter that is no constant ("*bf16", "i32", "fp32").
    constants: the values of the tl.constexpr parameters.
    any_alignment: parameters that no launch can promise to be divisible by 16, as a launch with
        friendly shapes would find the others to be.
    matrix: whether the machine code must use a matrix instruction.
    architectures: where it must compile; leave out those that lack the data type.
    spill_bytes_allowed: per architecture, where spilling was measured and accepted.
    """

    kernel: str
    config: str
    function: Any
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    any_alignment: frozenset[str] = frozenset()
    matrix: bool = False
    architectures: tuple[str, ...] = tuple(ARCHITECTURES)
    spill_bytes_allowed: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = set(self.architectures) - set(ARCHITECTURES)
        if unknown:
            raise ValueError(f"{self.kernel}: no architecture {sorted(unknown)}")
        names = set(self.function.arg_names)
        declared = set(self.arguments) | set(self.constants)
        if names != declared or set(self.arguments) & set(self.constants):
            raise ValueError(
                f"{self.kernel}, {self.config}: the kernel's parameters are {sorted(names)}, the "
                f"case declares {sorted(declared)}, each once"
            )
        if not self.any_alignment <= set(self.arguments):
            raise ValueError(f"{self.kernel}: {sorted(self.any_alignment)} are not all arguments")


@dataclass(frozen=True)
class CaseId:
    """Where a case is declared; what is sent to the process that compiles it."""

    module: str
    index: int

    def load(self) -> AotCase:
        case: AotCase = importlib.import_module(self.module).AOT_CASES[self.index]
        return case


def by_launch(
    choose: Callable[[str], Launch], architectures: Iterable[str] = tuple(ARCHITECTURES)
) -> dict[Launch, tuple[str, ...]]:
    """Which launches `choose` gives, and for which architectures each: one case for each."""
    found: dict[Launch, tuple[str, ...]] = {}
    for arch in architectures:
        launch = choose(arch)
        found[launch] = (*found.get(launch, ()), arch)
    return found


def declared_cases(package: str = "kernels") -> dict[CaseId, AotCase]:
    """The cases of every module directly in `package`."""
    found: dict[CaseId, AotCase] = {}
    folder = importlib.import_module(package).__path__
    for info in sorted(pkgutil.iter_modules(folder), key=lambda info: info.name):
        if info.ispkg:
            continue
        name = f"{package}.{info.name}"
        cases = getattr(importlib.import_module(name), "AOT_CASES", ())
        found |= {CaseId(name, index): case for index, case in enumerate(cases)}
    keys = [(case.kernel, case.config) for case in found.values()]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"two AOT cases share a name: {twice}")
    return found
