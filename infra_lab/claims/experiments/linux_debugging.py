"""Do the debugging tools of Linux show what answers say they show?

Each session is a real process with a known fault. A tool that is not here, or may not work here,
leaves its row empty and its conclusion out; the rest is checked all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra_lab.claims.experiments import process_labs as labs
from infra_lab.claims.experiments.experiment import (
    Cell,
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.native_programs import (
    ABORTED,
    KILLED,
    SEGMENTATION_FAULT,
    Workshop,
    workshop,
)
from infra_lab.texts import Language, Text, text

_ABSENT = text("not here", "此处没有")
_SEEN = {None: _ABSENT, True: text("yes", "是"), False: text("no", "否")}
_SIGNALS = {"abort": "SIGABRT", "kill": "SIGKILL", "segv": "SIGSEGV"}


@dataclass
class Notes:
    """What the sessions have shown so far."""

    numbers: dict[str, float] = field(default_factory=dict)
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    conclusions: list[Conclusion] = field(default_factory=list)

    def add(self, claims: str, session: Text, seen: str | bool | None) -> None:
        """A row of the table; None for a tool that is absent."""
        self.rows.append((claims, session, seen if isinstance(seen, str) else _SEEN[seen]))

    def conclude(self, en: str, zh: str, holds: bool) -> None:
        self.conclusions.append(Conclusion(text(en, zh), holds))


def _ends(shop: Workshop, notes: Notes) -> None:
    statuses = labs.exit_statuses(shop)
    notes.numbers |= {f"status_{name}": status for name, status in statuses.items()}
    before, after = labs.proc_entry_outlives_its_process(shop)
    for name, status in statuses.items():
        session = text(f"exit status after {_SIGNALS[name]}", f"{_SIGNALS[name]} 后的退出码")
        notes.add("L16", session, f"{status:.0f}")
    notes.add("L16", text("/proc/PID/status after SIGKILL", "SIGKILL 后的 /proc/PID/status"), after)
    notes.conclude(
        "A shell sees {status_segv:.0f} after SIGSEGV, {status_abort:.0f} after SIGABRT and "
        "{status_kill:.0f} after SIGKILL (an OOM kill): 128 and the signal's number.",
        "shell 看到的退出码：SIGSEGV 为 {status_segv:.0f}，SIGABRT 为 {status_abort:.0f}，"
        "SIGKILL（OOM）为 {status_kill:.0f}，即 128 加信号编号。",
        statuses == {"abort": ABORTED, "kill": KILLED, "segv": SEGMENTATION_FAULT},
    )
    notes.conclude(
        "/proc/PID/status is gone with the process: after a kill there is nothing to look at.",
        "/proc/PID/status 随进程一起消失：被杀之后无从查看。",
        before and not after,
    )


def _null_pointer(shop: Workshop, notes: Notes) -> None:
    address, read = labs.null_fault(shop, "read")
    _, write = labs.null_fault(shop, "write")
    notes.numbers["fault_address"] = address
    session = text("address of p->batch_size, p null", "p 为空时 p->batch_size 的地址")
    notes.add("L11", session, f"{address:.0f}")
    if read is None or write is None:
        notes.add("L11", text("error code of the fault", "缺页错误码"), None)
        holds, en, zh = True, "", ""
    else:
        notes.numbers |= {"error_read": read, "error_write": write}
        notes.add(
            "L11", text("error code, read and write", "错误码，读与写"), f"{read:.0f}, {write:.0f}"
        )
        holds = (read, write) == (4, 6)
        en = "; its error code is {error_read:.0f} for a read and {error_write:.0f} for a write"
        zh = "；错误码读为 {error_read:.0f}，写为 {error_write:.0f}"
    notes.conclude(
        "A field 16 bytes into a null structure faults at address {fault_address:.0f}" + en + ".",
        "空指针结构体中偏移 16 字节的字段，出错地址为 {fault_address:.0f}" + zh + "。",
        address == 16 and holds,
    )


def _cores_and_breakpoints(shop: Workshop, notes: Notes) -> None:
    notes.numbers["core_limit"] = labs.core_limit()
    notes.add(
        "L2",
        text("`ulimit -c` here, bytes", "此处的 `ulimit -c`（字节）"),
        f"{notes.numbers['core_limit']:.0f}",
    )
    core = labs.core_file(shop)
    notes.add(
        "L2",
        text("core file with the limit raised", "提高限制后产生 core"),
        None if core is None else True,
    )
    if core is not None:
        without, backtrace = core
        notes.conclude(
            "A crash leaves a core file with `ulimit -c unlimited` and none with a limit of 0.",
            "`ulimit -c unlimited` 时崩溃留下 core，限制为 0 时没有。",
            not without,
        )
        notes.add("L3", text("null pointer in gdb's backtrace", "gdb 回溯中的空指针"), backtrace)
        if backtrace is not None:
            notes.conclude(
                "gdb finds the null pointer in that file: nothing was run again.",
                "gdb 从该文件中找到空指针：无需重新运行。",
                backtrace,
            )
    stopped = labs.conditional_breakpoint(shop)
    command = "break forward if batch_size == 0"
    notes.add("L1", text(f"gdb: {command}", f"gdb：{command}"), stopped)
    if stopped is not None:
        notes.conclude(
            "gdb stops in the one call of five for which the condition holds.",
            "gdb 只在五次调用中条件成立的那一次停下。",
            stopped,
        )


def _traces(shop: Workshop, notes: Notes) -> None:
    opens = labs.traced_opens(shop)
    session = text(
        "strace lines about a missing file: open, openat, %file",
        "strace 关于缺失文件的行数：open、openat、%file",
    )
    notes.add("L8", session, None if opens is None else ", ".join(map(str, opens.values())))
    if opens is not None:
        notes.numbers |= {
            "trace_open": opens["open"],
            "trace_openat": opens["openat"],
            "trace_file": opens["%file"],
        }
        notes.conclude(
            "strace -e trace=open prints {trace_open:.0f} lines about the missing file, "
            "openat {trace_openat:.0f}, %file {trace_file:.0f}.",
            "关于缺失的文件，strace -e trace=open 打印 {trace_open:.0f} 行，"
            "openat {trace_openat:.0f} 行，%file {trace_file:.0f} 行。",
            opens["%file"] > 0 and opens["open"] + opens["openat"] > 0,
        )
    counted = labs.counted_calls(shop)
    notes.add("L7", text("strace -f -c: a table of calls", "strace -f -c：调用统计表"), counted)


def _sanitizers(shop: Workshop, notes: Notes) -> None:
    returned = labs.use_after_return(shop)
    for kind in ("off", "on", "default"):
        session = text(f"use after return, ASan's option {kind}", f"返回后使用，ASan 选项 {kind}")
        notes.add("L5", session, None if returned is None else returned[kind])
    if returned is not None:
        notes.numbers["after_return_default"] = float(returned["default"])
        notes.conclude(
            "ASan finds use after return with detect_stack_use_after_return=1 and not with 0; the "
            "default is the compiler's affair.",
            "detect_stack_use_after_return=1 时 ASan 发现返回后使用，=0 时不发现；默认值因编译器而"
            "异。",
            returned["on"] and not returned["off"],
        )
    wording = labs.overflow_message(shop)
    notes.add(
        "L6", text("ASan: 0 bytes ... 4-byte region", "ASan：0 bytes … 4-byte region"), wording
    )
    if wording is not None:
        notes.conclude(
            "ASan places the byte behind a block of four 0 bytes from it, in one of two wordings.",
            "ASan 指出该字节距 4 字节的块 0 字节，措辞有两种。",
            bool(wording),
        )
    leak, traced = labs.leak_found(shop, False), labs.leak_found(shop, True)
    notes.add("L4", text("leaks found", "发现泄漏"), leak)
    notes.add("L4", text("leaks found under strace", "strace 下发现泄漏"), traced)
    if leak and traced is not None:
        notes.conclude(
            "The leak check works by itself and not under strace: both want ptrace.",
            "泄漏检查单独有效，在 strace 下无效：二者都要用 ptrace。",
            not traced,
        )
    locks = labs.lock_inversion(shop)
    notes.add(
        "L15",
        text("TSan: lock-order-inversion", "TSan：lock-order-inversion"),
        None if locks is None else locks[1],
    )
    if locks is not None:
        notes.conclude(
            "ThreadSanitizer reports an inverted order of locks in a run that does not hang.",
            "ThreadSanitizer 在没有卡死的运行中报告锁次序颠倒。",
            all(locks),
        )


def _whole_program_tools(shop: Workshop, notes: Notes) -> None:
    found = labs.valgrind_findings(shop)
    names = {
        "heap": text("Valgrind: read behind a heap block", "Valgrind：堆块之后的读"),
        "stack": text("Valgrind: write behind a stack array", "Valgrind：栈数组之后的写"),
        "unset": text("Valgrind: a number never set", "Valgrind：未初始化的数"),
    }
    for kind, session in names.items():
        notes.add("L12, L13, D8", session, None if found is None else found[kind])
    if found is not None:
        notes.conclude(
            "Valgrind sees the heap and numbers never set, and misses the stack.",
            "Valgrind 能看到堆上越界与未初始化，但漏掉栈上越界。",
            found["heap"] and found["unset"] and not found["stack"],
        )
    counts = labs.profiler_counts(shop)
    for event in ("cycles", "cpu-clock"):
        notes.add(
            "L14",
            text(f"perf stat -e {event}", f"perf stat -e {event} 可用"),
            None if counts is None else counts[event],
        )


_SESSIONS: tuple[tuple[Text, Callable[[Workshop, Notes], None]], ...] = (
    (text("how processes end", "进程如何结束"), _ends),
    (text("a null pointer", "空指针"), _null_pointer),
    (text("cores and breakpoints", "core 与断点"), _cores_and_breakpoints),
    (text("system calls", "系统调用"), _traces),
    (text("sanitizers", "sanitizer"), _sanitizers),
    (text("valgrind and perf", "valgrind 与 perf"), _whole_program_tools),
)


def run(progress: Progress, seed: int) -> Result:
    """`seed` chooses nothing here: programs and faults are fixed."""
    notes = Notes()
    with workshop() as shop:
        for done, (name, session) in enumerate(_SESSIONS):
            progress(done, len(_SESSIONS), name)
            session(shop, notes)
        version = shop.version
    notes.numbers["sessions"] = len(notes.rows)
    notes.numbers["absent"] = sum(row[-1] is _ABSENT for row in notes.rows)
    title = f"{labs.release()}, {version}"
    table = Table(
        text(f"Sessions: {title}", f"实验记录：{title}"),
        (column("claim", "论断"), column("session", "操作"), column("seen", "所见")),
        tuple(notes.rows),
    )
    return Result(notes.numbers, (table,), tuple(notes.conclusions))


def draw(result: Result, path: Path, language: Language) -> None:
    """The sessions as a sheet: text, as there is nothing to plot."""
    from infra_lab.figures import COLOURS, INK, drawing

    table = result.tables[0]
    rows = table.shown(language)
    with drawing(path, width=7.6, height=0.3 + 0.24 * len(rows)) as (_, axes):
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.set_ylim(len(rows), -1)
        for place, one in zip((0.0, 0.16, 0.8), table.columns, strict=True):
            axes.text(place, -0.5, one.title[language], weight="bold", va="center")
        for line, (claim, session, seen) in enumerate(rows):
            colour = COLOURS[6] if seen == _ABSENT[language] else INK
            for place, words in ((0.0, claim), (0.16, session), (0.8, seen)):
                axes.text(place, line + 0.5, words, color=colour, va="center", fontsize=9)


EXPERIMENT = Experiment(
    "linux-debugging",
    text("Debugging sessions on Linux", "Linux 调试实录"),
    text(
        "Do the debugging tools show what answers say they show?",
        "调试工具真能看到答案里说的东西吗？",
    ),
    run,
    draw,
    seconds=25,
    needs=("linux", "compiler"),
)
