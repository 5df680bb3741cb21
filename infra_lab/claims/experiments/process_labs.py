"""Small debugging sessions with real processes and the tools that are here.

The measuring half of the experiment `linux-debugging`. A session gives what it showed; None where a
tool is absent or may not do its work here (a container without ptrace, a profiler's missing
counters), which says nothing about the claim.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
from pathlib import Path

from infra_lab.claims.experiments.native_programs import RUN_LIMIT_S, Workshop, run_command, tool
from infra_lab.errors import InfraLabError

ASAN = ("-O0", "-g", "-fsanitize=address")
_PROC = Path("/proc")


def exit_statuses(shop: Workshop) -> dict[str, float]:
    """What a shell sees of processes that end by a signal, by its name."""
    program = shop.built("ends", "-O1")
    return {
        name: float(shop.run(program, number).status)
        for name, number in (("abort", 6), ("kill", 9), ("segv", 11))
    }


def proc_entry_outlives_its_process(shop: Workshop) -> tuple[bool, bool]:
    """Whether /proc/PID/status is there while a process lives, and after it was killed."""
    program = shop.built("ends", "-O1")
    with subprocess.Popen(
        [program, "wait"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None  # as asked for
        if not select.select([process.stdout], [], [], RUN_LIMIT_S)[0]:
            process.kill()  # or leaving the block would wait for it
            raise InfraLabError(f"{program.name} was not ready within {RUN_LIMIT_S:g} s")
        status = _PROC / str(process.pid) / "status"
        before = status.exists()
        process.kill()
        process.wait()
        return before, status.exists()


def null_fault(shop: Workshop, kind: str) -> tuple[float, float | None]:
    """The address of a fault 16 bytes behind a null pointer, and, on x86-64, its error code."""
    ended = shop.run(shop.built("null_field", "-O1"), "tell", kind)
    address = re.search(r"^address (\w+)$", ended.out, re.MULTILINE)
    code = ended.number("error")
    if address is None:
        raise InfraLabError(f"null_field printed no address (status {ended.status})")
    return float(int(address[1], 16)), None if code is None or code < 0 else code


def core_file(shop: Workshop) -> tuple[bool, bool | None] | None:
    """Whether a core file came without and with `ulimit -c unlimited`, as (without, backtrace):
    whether gdb finds the null pointer in it. None where cores go elsewhere or are not allowed."""
    pattern = (_PROC / "sys/kernel/core_pattern").read_text(encoding="utf-8").strip()
    if pattern.startswith(("|", "/")):
        return None
    program = shop.built("null_field", "-O0", "-g")
    folder = shop.folder / "core"
    folder.mkdir()
    command = [str(program), "crash", "read"]
    run_command(command, folder=folder)
    without = bool(list(folder.iterdir()))
    run_command(command, folder=folder, core_limit="unlimited")
    cores = list(folder.iterdir())
    if not cores:
        return None
    gdb = tool("gdb")
    if gdb is None:
        return without, None
    shown = run_command([gdb, "-nx", "-batch", "-ex", "bt", str(program), str(cores[0])])
    return without, "read_field" in shown.out and "p=0x0" in shown.out


def conditional_breakpoint(shop: Workshop) -> bool | None:
    """Whether gdb stops in the one call of five whose batch is empty."""
    gdb = tool("gdb")
    if gdb is None:
        return None
    program = shop.built("batches", "-O0", "-g")
    commands = ("break forward if batch_size == 0", "run", "bt", "info args")
    arguments = [part for command in commands for part in ("-ex", command)]
    ended = run_command([gdb, "-nx", "-batch", *arguments, str(program)], folder=shop.folder)
    if "exited normally" not in ended.out and "Breakpoint 1, " not in ended.out:
        return None  # it was not allowed to start the program
    return "batch_size = 0" in ended.out and "main ()" in ended.out


def traced_opens(shop: Workshop) -> dict[str, int] | None:
    """Lines that strace prints about a missing file, with `trace=open`, `openat` and `%file`."""
    strace = tool("strace")
    if strace is None:
        return None
    program = shop.built("open_missing", "-O1")
    found = {}
    for events in ("open", "openat", "%file"):
        ended = run_command([strace, "-f", "-e", f"trace={events}", str(program)])
        if "+++ exited" not in ended.err and "invalid system call" not in ended.err:
            return None  # ptrace is not allowed
        found[events] = sum("no-such-weights" in line for line in ended.err.splitlines())
    return found


def counted_calls(shop: Workshop) -> bool | None:
    """Whether `strace -f -c` ends with a table of calls."""
    strace = tool("strace")
    if strace is None:
        return None
    ended = run_command([strace, "-f", "-c", str(shop.built("open_missing", "-O1"))])
    return None if "ptrace" in ended.err else "total" in ended.err and "errors" in ended.err


def leak_found(shop: Workshop, under_strace: bool) -> bool | None:
    """Whether AddressSanitizer's leak check reports lost blocks."""
    program = shop.build("leak", *ASAN).program
    strace = tool("strace")
    if program is None or (under_strace and strace is None):
        return None
    command = [str(program)]
    if under_strace:
        command = [str(strace), "-f", "-o", str(shop.folder / "trace"), *command]
    ended = run_command(command, environment={"ASAN_OPTIONS": "detect_leaks=1"})
    if "detected memory leaks" in ended.err:
        return True
    # The check says so where it may not attach to its own process.
    return False if under_strace == ("LeakSanitizer" in ended.err) else None


def use_after_return(shop: Workshop) -> dict[str, bool] | None:
    """Whether ASan reports it with its option off, on, and as it comes."""
    program = shop.build("freed_stack", *ASAN, "-w").program
    if program is None:
        return None
    name = "detect_stack_use_after_return"
    options = {"off": f"{name}=0", "on": f"{name}=1", "default": ""}
    return {
        kind: "stack-use-after-return"
        in shop.run(program, environment={"ASAN_OPTIONS": option}).err
        for kind, option in options.items()
    }


def overflow_message(shop: Workshop) -> str | None:
    """How ASan names the byte behind a block of four."""
    program = shop.build("heap_four", *ASAN).program
    if program is None:
        return None
    found = re.search(r"0 bytes (to the right of|after) 4-byte region", shop.run(program).err)
    return found[1] if found else ""


def lock_inversion(shop: Workshop) -> tuple[bool, bool] | None:
    """Whether the program ends with status 0, and whether ThreadSanitizer reports the order."""
    plain = shop.run(shop.built("lock_order", "-O1", "-pthread")).status == 0
    program = shop.build("lock_order", "-O1", "-g", "-fsanitize=thread", "-pthread").program
    if program is None:
        return None
    ended = shop.run(program)
    if "unexpected memory mapping" in ended.err and (setarch := tool("setarch")):
        ended = run_command([setarch, "-R", str(program)])
    if "FATAL: ThreadSanitizer" in ended.err:
        return None  # it does not run on this kernel
    return plain, "lock-order-inversion" in ended.err


def valgrind_findings(shop: Workshop) -> dict[str, bool] | None:
    """Whether Valgrind sees a read behind a heap block, one behind a stack array, and a decision
    by a number that was never set."""
    valgrind = tool("valgrind")
    if valgrind is None:
        return None
    cases = (
        ("heap", "heap_four", ("-O0",), "Invalid read"),
        ("stack", "stack_array", ("-O0", "-fno-stack-protector"), "Invalid"),
        ("unset", "uninitialized", ("-O0", "-w"), "uninitialised"),
    )
    found = {}
    for name, source, flags, words in cases:
        program = shop.built(source, *flags)
        ended = run_command([valgrind, "--error-exitcode=9", str(program), "10"], limit_s=60)
        if "HEAP SUMMARY" not in ended.err:
            return None
        found[name] = words in ended.err
    return found


def profiler_counts(shop: Workshop) -> dict[str, bool] | None:
    """Whether perf can count cycles here, and the clock's ticks."""
    perf = tool("perf")
    if perf is None:
        return None
    program = shop.built("batches", "-O1")
    found = {}
    for event in ("cycles", "cpu-clock"):
        ended = run_command([perf, "stat", "-e", event, str(program)])
        found[event] = ended.status == 0 and "<not supported>" not in ended.err
    return found


def core_limit() -> float:
    """The soft limit of core files that processes start with here, in bytes; -1 for none."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    return -1.0 if soft == resource.RLIM_INFINITY else float(soft)


def release() -> str:
    return f"{os.uname().sysname} {os.uname().release}"
