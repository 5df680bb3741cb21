"""What each verdict means, and what to do about it, in both languages."""

from __future__ import annotations

from infra_lab.practice.grade import Verdict

# verdict -> what happened, and what it means or what to do, each (English, Chinese).
VERDICTS: dict[Verdict, tuple[tuple[str, str], tuple[str, str]]] = {
    Verdict.PASSED: (("passed, every property holds", "通过，所有性质都成立"), ("", "")),
    Verdict.UNSOLVED: (
        ("not solved yet", "尚未作答"),
        (
            "The starter's `raise NotImplementedError` is still there: write your solution in "
            "its place.",
            "文件里还留着 starter 的 `raise NotImplementedError`：请在那里写下你的解答。",
        ),
    ),
    Verdict.WRONG_ANSWER: (("wrong answer", "答案错误"), ("", "")),
    Verdict.OVER_BUDGET: (
        ("over budget", "超出预算"),
        (
            "The answer took more operations or memory than the statement allows. They are "
            "counted, so a faster machine changes nothing: look for a better algorithm.",
            "得出答案所用的运算次数或内存超过了题面的限制。这里数的是操作次数而不是时间，"
            "换更快的机器没有用：请寻找更好的算法。",
        ),
    ),
    Verdict.CRASHED: (("the solution raised an exception", "解答抛出了异常"), ("", "")),
    Verdict.FLAKY: (
        ("right once, wrong once, on the same call", "同一个调用，时对时错"),
        (
            "Look for state that outlives a call (a global, a class attribute, a mutable default "
            "argument), for random numbers, and for the order of a set.",
            "请检查跨调用残留的状态（全局变量、类属性、可变的默认参数）、随机数，以及集合的遍历顺序。",
        ),
    ),
    Verdict.MISSING_ENTRY_POINT: (
        ("a name that the statement asks for is missing", "缺少题面要求的名字"),
        (
            "Define it exactly as the statement writes it; upper and lower case count.",
            "请按题面写出的名字定义，注意大小写。",
        ),
    ),
    Verdict.SYNTAX_ERROR: (
        ("the file is not valid Python", "语法错误，文件不是合法的 Python"),
        ("Nothing was run.", "没有运行任何代码。"),
    ),
    Verdict.IMPORT_FAILED: (
        ("the file does not load", "文件加载失败"),
        (
            "An exception left the file's top level, before any call. Only the modules named in "
            "the statement are sure to be there.",
            "还没有调用任何函数，文件的顶层代码就抛出了异常。只有题面列出的模块保证可用。",
        ),
    ),
    Verdict.TIMED_OUT: (
        ("no answer in time", "超时，没有及时返回"),
        (
            "An endless loop, or a solution that is far too slow: right ones need a small part "
            "of this time.",
            "可能是死循环，也可能慢得太多：正确的解答只需要这段时间的一小部分。",
        ),
    ),
    Verdict.MEMORY_EXCEEDED: (
        ("too much memory", "内存超限"),
        (
            "Something grows without bound, or the whole input is copied too often.",
            "可能有数据在无限增长，或者反复复制了整个输入。",
        ),
    ),
    Verdict.OUTPUT_FLOOD: (
        ("the solution prints too much", "打印的内容太多"),
        (
            "Grading was stopped. Is a print left in a loop?",
            "评测已中止。循环里是不是留着 print？",
        ),
    ),
    Verdict.EXITED: (
        ("the solution ended the process", "解答结束了进程"),
        (
            "Remove sys.exit, exit, quit or os._exit. Without any of them the interpreter itself "
            "crashed: recursion without an end, or a fault in native code.",
            "请去掉 sys.exit、exit、quit 或 os._exit。如果都没有用到，那就是解释器本身崩溃了："
            "没有尽头的递归，或者原生代码出错。",
        ),
    ),
    Verdict.TAMPERED: (
        (
            "the solution replaced a part of Python or of the grader",
            "解答替换了 Python 或评测程序的一部分",
        ),
        (
            "Leave other modules' functions as they are; define your own beside them.",
            "请不要改动其他模块的函数，需要时另外定义自己的函数。",
        ),
    ),
    Verdict.GRADER_FAULT: (
        ("the grader is at fault, not your solution", "评测程序出错了，不是你的解答的问题"),
        (
            "Nothing was counted as an attempt. Run it once more; if it happens again, please "
            "report it with your file and the lines below. `infra-lab doctor` checks the "
            "installation.",
            "这次不计入作答记录。请再运行一次；如果仍然如此，请附上你的文件和下面几行提交问题报告。"
            "`infra-lab doctor` 可以检查安装。",
        ),
    ),
}
