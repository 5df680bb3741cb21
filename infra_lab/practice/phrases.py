"""The Chinese of what the kit and the sandbox say in a failure.

A grader names its properties in both languages; `got`, `expected` and `note` are mostly values,
and otherwise the phrases below. What a grader words itself stays as it is.
"""

from __future__ import annotations

import re

_PHRASES = (
    # kit.py
    (r"no answer after (\S+) s", r"\1 秒后仍未返回"),
    (r"an answer in time", "及时返回"),
    (r"an answer in (\S+) s", r"在 \1 秒内返回"),
    (r"an answer, not an exception", "返回结果，而不是抛出异常"),
    (r"an answer in less memory", "用更少的内存得到结果"),
    (r"an answer", "返回结果"),
    (r"less memory(?: in use)?", "占用更少的内存"),
    (r"at most ([\d,]+)", r"至多 \1"),
    (r"([\d,]+) executed lines", r"执行了 \1 行代码"),
    (r"no such method", "没有这个方法"),
    (r"a method (.+)", r"方法 \1"),
    (r"an array of numbers of shape (.+)", r"形状为 \1 的数值数组"),
    (r"an array of shape (.+)", r"形状为 \1 的数组"),
    (r"(\w+) to be raised", r"抛出 \1"),
    (r"(\w+) or (\w+) to be raised", r"抛出 \1 或 \2"),
    (r"the argument still to be (.*)", r"参数仍为 \1"),
    (r"it was changed to (.*)", r"参数被改成了 \1"),
    (r"the call returned None: is a return missing\?", "调用返回了 None：是不是漏了 return？"),
    (r"got a (\w+), expected a (\w+)", r"得到的类型是 \1，应为 \2"),
    (
        r"first at (\[.*?\]): (\S+) for (\S+); allowed is (.*)",
        r"第一处不符在下标 \1：得到 \2，应为 \3；允许误差 \4",
    ),
    (r"allowed is (\S+ \+ \S+ \|expected\|)", r"允许误差 \1"),
    (
        r"the same call was right another time: "
        r"the solution keeps state or draws at random",
        "同一次调用在另一次运行时是对的：解答保留了状态，或用了随机数",
    ),
    # loading.py
    (r"no end yet", "仍未结束"),
    (r"a file that loads at once", "文件能立即加载完"),
    (r"a file that only defines things", "文件里只有定义"),
    (r"a file that loads", "文件能正常加载"),
    (r"a file that can be read", "文件可读"),
    (r"(\w+) is there", r"文件里有 \1"),
    (r"defined are: none", "文件里没有定义任何函数或类"),
    (r"defined are: (.*)", r"文件里定义了：\1"),
    (r"(\w+) is an? (\w+), not a function or class", r"\1 的类型是 \2，不是函数或类"),
    (r"a function or class named (\w+)", r"名为 \1 的函数或类"),
    (r"(\w+), by exactly this name", r"\1，名字须完全一致"),
    (r"bytes that are not UTF-8: (.*)", r"有不是 UTF-8 的字节：\1"),
    (r"Python in UTF-8", "UTF-8 编码的 Python 文件"),
    (r"Python that compiles", "能编译的 Python 代码"),
    # child.py
    (r"(\S+) was replaced", r"\1 被替换了"),
    (r"Python and the grader left as they are", "保持 Python 和评测程序原样"),
    # sandbox.py
    (r"more than (\d+) MiB printed", r"打印了超过 \1 MiB"),
    (r"less output", "更少的输出"),
    (r"no end in (\S+) s", r"\1 秒内没有结束"),
    (r"an end in time", "及时结束"),
    (r"no answer yet", "仍未返回"),
    (r"more than (\d+) MiB in use", r"占用超过 \1 MiB"),
    (r"more than (\S+) s of CPU time used", r"CPU 时间超过 \1 秒"),
    (r"the process ended by itself, with status (.*)", r"进程自行退出，状态码 \1"),
    (r"the process ended by itself, by signal (.*)", r"进程自行退出，被信号 \1 终止"),
    (r"the grading process does not start", "评测进程无法启动"),
    (r"the grading process did not start: (.*)", r"评测进程没有启动：\1"),
    (r"the grader has no tests: nothing was graded", "grader 里没有测试：什么都没有评测"),
    (r"some tests did not run, and nothing says why", "有些测试没有运行，原因不明"),
    (r"every test was skipped: nothing was graded", "所有测试都被跳过：什么都没有评测"),
)
_COUNTED = {"executed lines": "执行的代码行数", "bytes": "字节数", "calls": "调用次数"}
_COMPILED = tuple((re.compile(pattern), chinese) for pattern, chinese in _PHRASES)


def phrase(text: str, language: str) -> str:
    """What was got, expected or noted, in the language where it is one of ours."""
    if language == "en" or not text:
        return text
    for pattern, chinese in _COMPILED:
        if match := pattern.fullmatch(text):
            return match.expand(chinese)
    return text


def counted_name(name: str, language: str) -> str:
    """The name of what a budget counts."""
    return name if language == "en" else _COUNTED.get(name, name)
