"""Compiles one case after the other in a process of its own: a line in, a line out, in JSON.

A process of its own, because the compiler may die with it, because kernels may be interpreted
where the gate is run from, and because ptxas reports to standard output through Triton.
Started by `aot`: `python -m kernels.testing.aot_worker`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from dataclasses import asdict
from typing import Any

from kernels.testing.architectures import ARCHITECTURES, Architecture
from kernels.testing.cases import AotCase, CaseId


def main() -> None:
    """Serves requests {"module", "index", "arch"} from standard input until it ends."""
    # Answers have the pipe to themselves: what compilers print goes where errors go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        # A cache of Triton's own would skip the assembler, and with it the report.
        os.environ["TRITON_CACHE_DIR"] = folder
        for line in sys.stdin:
            request = json.loads(line)
            case = CaseId(request["module"], request["index"]).load()
            print(json.dumps(measure(case, request["arch"])), file=answers, flush=True)


def measure(case: AotCase, arch: str) -> dict[str, Any]:
    """The row of a case on an architecture; without figures but with a reason if it failed."""
    architecture = ARCHITECTURES[arch]
    name = {"kernel": case.kernel, "config": case.config, "arch": arch}
    missing = missing_tool(architecture)
    if missing:
        return {**name, "status": "no tool", "reason": missing}
    try:
        return {**name, "status": "ok", "reason": "", **_figures(case, architecture)}
    except Exception as error:
        return {**name, "status": "failed", "reason": f"{type(error).__name__}: {error}"[:2000]}


def missing_tool(architecture: Architecture) -> str:
    """What this installation of Triton lacks to compile for the architecture; "" if nothing."""
    from triton import knobs
    from triton.backends import backends

    key = "nvidia" if architecture.backend == "cuda" else "amd"
    if key not in backends:
        return f"this Triton has no {key} backend"
    if architecture.backend == "hip":
        return ""  # LLVM, within Triton itself
    tool = "ptxas_blackwell" if int(architecture.target) >= 100 else "ptxas"
    try:
        getattr(knobs.nvidia, tool)
    except (AttributeError, RuntimeError):
        variable = f"TRITON_{tool.upper()}_PATH"
        return f"this Triton's wheel has no {tool.replace('_', '-')}; {variable} may name one"
    return ""


def _figures(case: AotCase, architecture: Architecture) -> dict[str, Any]:
    from triton import knobs

    from kernels.testing.machine_code import read_amd, read_nvidia

    report = io.StringIO()
    with knobs.nvidia.scope(), contextlib.redirect_stdout(report):
        knobs.nvidia.dump_ptxas_log = True
        compiled = _compile(case, architecture)
    if architecture.backend == "cuda":
        code = read_nvidia(compiled.asm["ptx"], report.getvalue())
    else:
        code = read_amd(compiled.asm["amdgcn"])
    shared, warps = int(compiled.metadata.shared), int(compiled.metadata.num_warps)
    return {
        **asdict(code),
        "shared_bytes": shared,
        "tensor_memory_columns": int(getattr(compiled.metadata, "tmem_size", 0) or 0),
        "warps": warps,
        "stages": case.num_stages,
        "occupancy": round(architecture.occupancy(code.registers, shared, warps), 4),
    }


def _compile(case: AotCase, architecture: Architecture) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.function.arg_names
    source = ASTSource(
        fn=case.function,
        signature={name: case.arguments.get(name, "constexpr") for name in names},
        constexprs=dict(case.constants),
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if _is_divisible(case, name)
        },
    )
    target = GPUTarget(architecture.backend, architecture.target, architecture.warp_size)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    return triton.compile(source, target=target, options=options)


def _is_divisible(case: AotCase, name: str) -> bool:
    """What a launch finds of aligned pointers and friendly sizes, and tells the compiler."""
    kind = case.arguments.get(name, "")
    whole = kind.startswith("*") or kind in ("i32", "i64", "u32", "u64")
    return whole and name not in case.any_alignment


if __name__ == "__main__":
    main()
