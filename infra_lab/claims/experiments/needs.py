"""What an experiment needs from the machine, looked for before it begins."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from infra_lab.claims.experiments.experiment import Experiment, Need
from infra_lab.claims.texts import Say, english
from infra_lab.errors import InfraLabError, UsageError

DEFAULT_MODEL = "smollm2-135m"
COMPILERS = ("gcc", "cc")
CXX_COMPILERS = ("g++", "c++")


def default_model() -> Path:
    """The default model's file; raises ModelNotFoundError where it was not pulled."""
    from infra_lab.models.store import resolve

    return Path(resolve(DEFAULT_MODEL))


def compiler(names: tuple[str, ...] = COMPILERS) -> str | None:
    """The path of the first of these that is on PATH."""
    return next((path for name in names if (path := shutil.which(name))), None)


def check_needs(experiment: Experiment, say: Say = english) -> None:
    """Raises UsageError that says what is missing and how to get it."""
    for need in experiment.needs:
        if (how := missing(need, say)) is not None:
            raise UsageError(
                say(f"{experiment.name} {how}", f"实验 {experiment.name} {how}"),
            )


def missing(need: Need, say: Say = english) -> str | None:
    """What is to be done where a need is not met; None where it is."""
    if need == "model":
        try:
            default_model()
        except InfraLabError:
            return say(
                f"needs the default model: run `infra-lab models pull {DEFAULT_MODEL}` first",
                f"需要默认模型：先运行 `infra-lab models pull {DEFAULT_MODEL}`",
            )
    elif need == "compiler" and not (compiler() and compiler(CXX_COMPILERS)):
        return say(
            "needs a C and a C++ compiler: install gcc and g++ (Debian, Ubuntu: "
            "`apt install build-essential`)",
            "需要 C 和 C++ 编译器：安装 gcc 与 g++（Debian、Ubuntu："
            "`apt install build-essential`）",
        )
    elif need == "debugger" and shutil.which("gdb") is None:
        return say(
            "needs gdb: install it (Debian, Ubuntu: `apt install gdb`)",
            "需要 gdb：请安装（Debian、Ubuntu：`apt install gdb`）",
        )
    elif need == "linux" and sys.platform != "linux":
        return say("runs on Linux only", "只能在 Linux 上运行")
    return None
