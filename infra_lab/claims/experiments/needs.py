"""What an experiment needs from the machine, looked for before it begins."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from infra_lab.claims.experiments.experiment import Experiment, Need
from infra_lab.errors import InfraLabError, UsageError
from infra_lab.models.catalog import DEFAULT_MODEL
from infra_lab.texts import Say, english

CXX_COMPILERS = ("g++", "c++", "clang++")


def default_model() -> Path:
    """The default model's file; raises ModelNotFoundError where it was not pulled."""
    from infra_lab.models.store import resolve

    return Path(resolve(DEFAULT_MODEL))


def compiler() -> str | None:
    """The path of a C++ compiler, if there is one on PATH."""
    return next((path for name in CXX_COMPILERS if (path := shutil.which(name))), None)


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
    elif need == "compiler" and compiler() is None:
        return say(
            "needs a C++ compiler: install g++ or clang++ (Debian, Ubuntu: "
            "`apt install build-essential`)",
            "需要 C++ 编译器：安装 g++ 或 clang++（Debian、Ubuntu：`apt install build-essential`）",
        )
    elif need == "linux" and sys.platform != "linux":
        return say("runs on Linux only", "只能在 Linux 上运行")
    return None
