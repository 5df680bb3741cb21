"""The Chinese of what the kit and the sandbox say in a failure.

A grader names its properties in both languages; `got`, `expected` and `note` are mostly values,
and otherwise the phrases below. What a grader words itself stays as it is, but for the names of
what it counts, which every report of a right solution shows.
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
# What a grader counts: one of these nouns, and then over which calls or input.
_COUNTED = {
    "bytes": "占用的字节数",
    "bytes at once": "同时占用的字节数",
    "bytes held at once": "同时占用的字节数",
    "bytes kept": "保留的字节数",
    "bytes of extra memory": "额外占用的字节数",
    "bytes of memory": "占用的字节数",
    "calls": "调用次数",
    "comparisons": "比较的次数",
    "comparisons of values": "值的比较次数",
    "elements searched or moved": "查找或移动的元素数",
    "executed lines": "执行的代码行数",
    "hashes and comparisons of keys": "键的哈希与比较次数",
    "lines executed": "执行的代码行数",
    "nested calls": "嵌套调用的层数",
    "pairs of values compared": "比较的值对数",
    "passes": "遍历次数",
    "places in memory": "用过的内存位置数",
    "steps": "步数",
}
_OVER = (
    (r"", ""),
    (r" by (\w+)", r"\1 "),
    (r" for ([\d,]+) calls at capacity (\d+)", r"容量为 \2 时 \1 次调用中"),
    (r" for ([\d,]+) nodes", r"\1 个节点时"),
    (r" for ([\d,]+) nodes in (\d+) lists", r"\2 条链表、\1 个节点时"),
    (r" for ([\d,]+) values", r"\1 个值时"),
    (r" for ([\d,]+) values of (\d+) iterables", r"\2 个序列、\1 个值时"),
    (r" in ([\d,]+) calls", r"\1 次调用中"),
    (r" in ([\d,]+) calls on a full cache", r"缓存已满时 \1 次调用中"),
    (r" in all pushes", r"全部 push 中"),
    (r" in two calls", r"两次调用中"),
    (r" in three calls", r"三次调用中"),
    (r" after ([\d,]+) calls", r"\1 次调用后"),
    (r" after ([\d,]+) pushes", r"\1 次 push 后"),
    (r" after ([\d,]+) values", r"\1 个值之后"),
)
_COMPILED_OVER = tuple((re.compile(pattern), chinese) for pattern, chinese in _OVER)
_COMPILED = tuple((re.compile(pattern), chinese) for pattern, chinese in _PHRASES)


def phrase(text: str, language: str) -> str:
    """What was got, expected or noted, in the language where it is one of ours."""
    if language == "en" or not text:
        return text
    for pattern, chinese in _COMPILED:
        if match := pattern.fullmatch(text):
            return match.expand(chinese)
    number, _, what = text.partition(" ")
    if re.fullmatch(r"[\d,]+", number) and (name := _counted_in_chinese(what)) is not None:
        return f"{name}：{number}"
    return text


def counted_name(name: str, language: str) -> str:
    """The name of what a budget counts: "executed lines for 500 nodes"."""
    return name if language == "en" else _counted_in_chinese(name) or name


def _counted_in_chinese(name: str) -> str | None:
    for noun, counted in _COUNTED.items():
        if not name.startswith(noun):
            continue
        for pattern, chinese in _COMPILED_OVER:
            if match := pattern.fullmatch(name, len(noun)):
                return match.expand(chinese) + counted
    return None
