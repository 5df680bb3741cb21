"""What the writes of `cpp-bounds` show, each conclusion under the conditions that it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from infra_lab.claims.experiments import array_bounds as bounds
from infra_lab.claims.experiments.experiment import Conclusion
from infra_lab.claims.experiments.native_programs import ABORTED
from infra_lab.texts import text


def about_the_stack(
    stack: Mapping[str, bounds.StackWrites], numbers: Mapping[str, float]
) -> list[Conclusion]:
    found = [
        Conclusion(
            text(
                "Of {behind:.0f} indices behind an array on the stack {plain_silent:.0f} pass "
                "unnoticed and {plain_crash:.0f} crash: which, the layout decides.",
                "栈数组之后的 {behind:.0f} 个下标中，{plain_silent:.0f} 个毫无反应，"
                "{plain_crash:.0f} 个崩溃：取决于布局。",
            ),
            numbers["plain_silent"] > 0,
        ),
        Conclusion(
            text(
                "The stack protector catches {canary:.0f} of them; {past_canary:.0f} jump over the "
                "canary and crash all the same.",
                "栈保护捕获其中 {canary:.0f} 个；{past_canary:.0f} 个越过 canary，照样崩溃。",
            ),
            numbers["canary"] > 0,
        ),
    ]
    if all(name in numbers for name in bounds.X_PLACES):
        found.append(
            Conclusion(
                text(
                    "Whether an index reaches x depends on order and flags: x lies at "
                    "a[{x_after:.0f}] when declared after a, at a[{x_first:.0f}] when before, and "
                    "then at a[{x_protected:.0f}] with the stack protector. Writing there, and "
                    "only there, changes it.",
                    "哪个下标能改写 x 取决于声明次序与选项：x 声明在 a 之后时位于 "
                    "a[{x_after:.0f}]，之前时位于 a[{x_first:.0f}]，后者加栈保护则在 "
                    "a[{x_protected:.0f}]。只有写到该处才改变 x。",
                ),
                all(_only_x_changes(stack[name]) for name in bounds.X_PLACES.values()),
            )
        )
    return found


def _only_x_changes(writes: bounds.StackWrites) -> bool:
    """Of the indices that were tried, the one at x's place changed it, and no other did."""
    changed = {index for index, found in writes.outcomes.items() if found == "x changed"}
    return changed == ({writes.x_index} & set(writes.outcomes))


def about_the_heap(heap: list[bounds.HeapWrites], last: int, has_crashed: bool) -> list[Conclusion]:
    found = [
        Conclusion(
            text(
                "Reading on behind a block of 100 bytes first fails after {last_kib:.0f} KiB, "
                "{pages:.0f} pages on: crossing a page is not enough.",
                "从 100 字节的块向后读，{last_kib:.0f} KiB（{pages:.0f} 页）之后才第一次出错："
                "跨页并不足以触发 SIGSEGV。",
            ),
            has_crashed and last > 2 * os.sysconf("SC_PAGE_SIZE"),
        )
    ]
    if heap:
        found.append(
            Conclusion(
                text(
                    "malloc(4) has {usable_4:.0f} usable bytes: a write to the last of them does "
                    "nothing, one behind them ends in an abort when blocks are freed (glibc).",
                    "malloc(4) 可用 {usable_4:.0f} 字节：写到最后一个字节无事，再往后一个字节，"
                    "释放时 abort（glibc）。",
                ),
                all(
                    one.usable > one.size - 1
                    and one.last.status == 0
                    and one.behind.status == ABORTED
                    for one in heap
                ),
            )
        )
    return found


def about_compilers(
    kind: str, warned: Mapping[int, int], span: Mapping[str, bool]
) -> list[Conclusion]:
    by_level = text(
        "-Wall -Wextra warn of constant indices {warnings_o0:.0f}, {warnings_o1:.0f}, "
        "{warnings_o2:.0f} and {warnings_o3:.0f} times at -O0 to -O3.",
        "-Wall -Wextra 对常量越界的警告数：-O0 到 -O3 依次为 {warnings_o0:.0f}、"
        "{warnings_o1:.0f}、{warnings_o2:.0f}、{warnings_o3:.0f}。",
    )
    # GCC's warning needs value-range propagation, which -O2 brings; Clang's is a syntax check.
    expected = warned[0] == 0 < warned[2] if kind == "gcc" else warned[0] > 0
    return [
        Conclusion(by_level, expected),
        Conclusion(
            text(
                "std::span::at does not compile as C++20, nor as C++23.",
                "std::span::at 在 C++20 与 C++23 下都不能编译。",
            ),
            not any(span.values()),
        ),
    ]


def about_checks(numbers: Mapping[str, float], has_libstdcxx: bool) -> list[Conclusion]:
    found = [
        Conclusion(
            text(
                "at() ends the program at all {caught_at:.0f} of {behind:.0f} indices.",
                "at() 在全部 {behind:.0f} 个下标中的 {caught_at:.0f} 个终止了程序。",
            ),
            numbers.get("caught_at") == numbers["behind"],
        )
    ]
    if has_libstdcxx:
        found.append(
            Conclusion(
                text(
                    "So does operator[] with -D_GLIBCXX_ASSERTIONS: {caught_assertions:.0f}.",
                    "加 -D_GLIBCXX_ASSERTIONS 的 operator[] 也一样：{caught_assertions:.0f} 个。",
                ),
                numbers.get("caught_assertions") == numbers["behind"],
            )
        )
    if "stack_bounds" in numbers:
        found.append(
            Conclusion(
                text(
                    "-fsanitize=bounds reports all {stack_bounds:.0f} of an array whose length it "
                    "knows, and none through a pointer from new[].",
                    "-fsanitize=bounds 对长度已知的数组全部报告（{stack_bounds:.0f} 个），"
                    "但经 new[] 指针的越界一个也看不到。",
                ),
                numbers["stack_bounds"] == numbers["behind"] and numbers["seen_heap_bounds"] == 0,
            )
        )
    if "stack_asan" in numbers:
        found.append(
            Conclusion(
                text(
                    "AddressSanitizer sees the heap pointer and {stack_asan:.0f} of the indices, "
                    "and "
                    "misses a write that lands in another live object.",
                    "AddressSanitizer 看到堆指针越界和其中 {stack_asan:.0f} 个下标，"
                    "但漏掉落入另一个存活对象的写。",
                ),
                numbers["seen_heap_asan"] == 1
                and numbers["stack_asan"] >= 4
                and numbers["seen_far_asan"] == 0,
            )
        )
        if has_libstdcxx:
            found.append(
                Conclusion(
                    text(
                        "It misses a write between a vector's size and capacity, unless libstdc++ "
                        "is told to annotate; the library's own assertion sees it.",
                        "它也漏掉 vector 的 size 与 capacity 之间的写，除非让 libstdc++ 加标注；"
                        "库自带的断言能看到。",
                    ),
                    numbers["seen_gap_asan"] == 0
                    and numbers["seen_gap_annotated"] == 1
                    and numbers["seen_gap_assertions"] == 1,
                )
            )
    return found


def about_cost(cost: Mapping[str, bounds.LoopCost]) -> list[Conclusion]:
    """Where a check keeps a loop from being vectorized it is dear; a ratio of 1.2 is far below
    what the width of vectors gives, and far above a clock's noise in the fastest of seven runs."""
    fast = cost["-O3"]
    blocked = fast.plain_is_packed and not fast.checked_is_packed
    return [
        Conclusion(
            text(
                "A check costs most where it keeps a loop from being vectorized: at() takes "
                "{sum_o3:.1f}x in a sum at -O3, {sum_o2:.1f}x at -O2, and {gather_o3:.1f}x in a "
                "random gather.",
                "检查在阻碍向量化时最贵：求和在 -O3 下 at() 为 {sum_o3:.1f} 倍，-O2 下 "
                "{sum_o2:.1f} 倍；随机 gather 为 {gather_o3:.1f} 倍。",
            ),
            not blocked or fast.sum_ratio > 1.2,
        )
    ]


def about_addresses(numbers: Mapping[str, float]) -> Conclusion:
    return Conclusion(
        text(
            "The published address gives {right_slots:.0f} tokens {published_slots:.0f} places: "
            "one a request, as the position in the sequence is missing.",
            "帖中的地址公式把 {right_slots:.0f} 个 token 放到 {published_slots:.0f} 个位置："
            "每个请求一个，因为漏了 token 位置。",
        ),
        numbers["published_slots"] < numbers["right_slots"],
    )
