"""What a grader is written with.

A grader is a pytest file whose tests take the fixture `solution`:

    @states("the count agrees with walking every path", "计数与逐条路径枚举一致")
    @given(ring_size=st.integers(1, 9), steps=st.integers(0, 9))
    def test_agrees_with_enumeration(solution: Solution, ring_size: int, steps: int) -> None:
        solution.call("count_ways", ring_size, steps).equals(enumerate_walks(ring_size, steps))

Every call of the solution goes through `Solution`, so that a failure can show it as Python that
can be pasted, a call that never ends is stopped, and an exception is the solution's fault and
not the grader's. Answers "how do you grade code fairly?".
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic  # by name: a solution may replace that of the module
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from infra_lab.practice.counting import Counted, Peak, Tally, counting_lines, peak_memory
from infra_lab.practice.equality import is_equal, type_note
from infra_lab.practice.failures import CallTimedOut, Failure, SolutionError, SolutionStopped
from infra_lab.practice.memory import release_memory_limit
from infra_lab.practice.paste import Shown, call_text, paste, shown, snapshot

__all__ = [
    "Call",
    "Counted",
    "Instance",
    "Peak",
    "Shown",
    "Solution",
    "Tally",
    "follow_up",
    "paste",
    "shown",
    "states",
]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONGEST_HISTORY = 40  # calls of one instance that a failure shows
Test = TypeVar("Test", bound=Callable[..., None])


def states(en: str, zh: str) -> Callable[[Test], Test]:
    """Names the property that a test holds, for the report."""

    def mark(test: Test) -> Test:
        test.states = {"en": en, "zh": zh}  # type: ignore[attr-defined]
        return test

    return mark


def follow_up(entry_point: str) -> Callable[[Test], Test]:
    """Marks a test of a follow-up: it is skipped where the solution lacks the entry point, or
    still has the starter's `raise NotImplementedError`."""

    def mark(test: Test) -> Test:
        test.follow_up = entry_point  # type: ignore[attr-defined]
        return test

    return mark


class Current:
    """The call that is running now, for the watchdog, and how long it may take. `since` is None
    between calls. `announce` is told of each call before it begins."""

    def __init__(self) -> None:
        self.since: float | None = None
        self.limit_s = math.inf
        self.text: Callable[[], str] = str
        self.announce: Callable[[str], None] | None = None


class Solution:
    """A solution under test. `calls` counts its calls; `budgets` keeps, for each budget, the
    use that came nearest to it: name -> (used, allowed). `passes_interrupts_on`: a
    KeyboardInterrupt comes from a keyboard, and ends the grading."""

    def __init__(self, module: ModuleType) -> None:
        self.passes_interrupts_on = True
        self.module = module
        self.file = str(module.__file__)
        self.current = Current()
        self.calls = 0
        self.budgets: dict[str, tuple[int, int]] = {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """Calls the entry point `name`; an argument may be `shown(value, "code")`."""
        return self._run(getattr(self.module, name), name, args, kwargs, [])

    def new(self, name: str, *args: Any, **kwargs: Any) -> Instance:
        """Makes an instance of the class `name`."""
        variable = _variable_name(name)
        call = self._run(getattr(self.module, name), name, args, kwargs, [])
        return Instance(self, variable, call.value, [f"{variable} = {call.text}"])

    def function(self, name: str) -> Any:
        """The entry point itself, for what `call` cannot do: such calls are neither shown nor
        stopped."""
        return getattr(self.module, name)

    @contextmanager
    def counting_lines(self) -> Iterator[Tally]:
        """Counts the lines of the solution's file that run inside the block. It slows them
        down some ten times: keep the inputs small."""
        with counting_lines(self.file) as tally:
            yield tally

    @contextmanager
    def peak_memory(self) -> Iterator[Peak]:
        """The most memory that Python and NumPy hold at once inside the block, in bytes."""
        with peak_memory() as peak:
            yield peak

    def within(self, what: str, used: int, allowed: int, call: Call) -> None:
        """Fails if `used` is over the budget, and else reports how near it came.

        Args:
            what: the operations that are counted, as a plural: "hash look-ups".
            call: the last of the calls that used them.
        """
        if used > allowed:
            call.fail(
                got=f"{used:,} {what}", expected=f"at most {allowed:,}", verdict="over_budget"
            )
        before = self.budgets.get(what)
        if before is None or used * before[1] > before[0] * allowed:
            self.budgets[what] = (used, allowed)

    def _run(
        self,
        function: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: list[str],
    ) -> Call:
        shown_args = tuple(map(snapshot, args))
        shown_kwargs = {key: snapshot(value) for key, value in kwargs.items()}
        call = Call(self, name, shown_args, shown_kwargs, args, kwargs, history)
        self.calls += 1
        stopped: Failure | None = None
        self.current.text = lambda: call.script
        if self.current.announce is not None:
            self.current.announce(call.script)
        self.current.since = monotonic()
        try:
            call._result = function(
                *map(_plain, args), **{key: _plain(value) for key, value in kwargs.items()}
            )
        except CallTimedOut:
            limit = f"no answer after {self.current.limit_s:g} s"
            stopped = Failure("timed_out", call.script, limit, "an answer in time")
        except MemoryError:
            release_memory_limit()
            stopped = Failure("memory_exceeded", call.script, "MemoryError", "less memory in use")
        except SystemExit as error:
            stopped = Failure("exited", call.script, f"SystemExit({error.code!r})", "an answer")
        except SolutionStopped:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.passes_interrupts_on:
                raise
            call._error = error
        finally:
            self.current.since = None
        # Raised here, where the solution's frames and what they hold are gone already.
        if stopped is not None:
            raise SolutionStopped(stopped)
        return call


class Instance:
    """An object of the solution's, with the calls made on it so far."""

    def __init__(self, solution: Solution, variable: str, value: Any, history: list[str]) -> None:
        self.solution = solution
        self.variable = variable
        self.value = value
        self.history = history
        self._made = history[-1]  # a grader may put lines before and after it
        self._left_out = 0

    def call(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """Calls the method `name`."""
        full = f"{self.variable}.{name}"
        method = getattr(self.value, name, None)
        if method is None:
            script = "\n".join([*self.history, call_text(full, args, kwargs)])
            raise SolutionError(
                Failure("missing_entry_point", script, "no such method", f"a method {name!r}")
            )
        call = self.solution._run(method, full, args, kwargs, list(self.history))
        self.history.append(call.text)
        if len(self.history) > LONGEST_HISTORY:
            # After the line that makes the object, one says how many are missing there.
            first = self.history.index(self._made) + 1
            self.history[first : first + (2 if self._left_out else 1)] = []
            self._left_out += 1
            self.history.insert(first, f"# {self._left_out} calls left out here")
        return call


class Call:
    """One call and what came of it; its methods say what should have come of it."""

    def __init__(
        self,
        solution: Solution,
        name: str,
        shown_args: tuple[Any, ...],
        shown_kwargs: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: list[str],
    ) -> None:
        self._solution = solution
        self._name = name
        self._shown_args = shown_args
        self._shown_kwargs = shown_kwargs
        self._args = args
        self._kwargs = kwargs
        self._history = history
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def text(self) -> str:
        """The call as Python, with the arguments as they were before it."""
        return call_text(self._name, self._shown_args, self._shown_kwargs)

    @property
    def script(self) -> str:
        """The call after those before it on the same object."""
        return "\n".join([*self._history, self.text])

    @property
    def value(self) -> Any:
        """What came back; an exception of the solution's fails the test."""
        if self._error is not None:
            self._fail_with_exception(self._error, "an answer, not an exception")
        return self._result

    def fail(
        self,
        expected: str,
        got: str | None = None,
        note: str = "",
        verdict: str = "wrong_answer",
    ) -> NoReturn:
        """Fails the test; texts as the learner shall read them."""
        shown_result = paste(self._result) if got is None else got
        raise SolutionError(Failure(verdict, self.script, shown_result, expected, note))

    def equals(self, expected: Any, note: str = "") -> Call:
        """The result is `expected`. An int is wanted where an int is expected (NumPy's will do,
        a float or a bool will not), and a list where a list is."""
        got = self.value
        if not is_equal(got, expected):
            self.fail(paste(expected), note=note or type_note(got, expected))
        return self

    def close_to(
        self, expected: Any, rtol: float = 1e-9, atol: float = 0.0, note: str = ""
    ) -> Call:
        """The result is an array (or number) of the same shape, and each number satisfies
        |got - expected| <= atol + rtol |expected|; infinities and NaN stand where expected."""
        import numpy as np

        wanted = np.asarray(expected)
        got = self.array(wanted.shape)
        with np.errstate(invalid="ignore"):
            # |anything - inf| <= inf holds: infinities are compared below, by equality.
            right = np.isfinite(wanted) & (np.abs(got - wanted) <= atol + rtol * np.abs(wanted))
        right |= got == wanted
        right |= np.isnan(got) & np.isnan(wanted)
        if not right.all():
            where = tuple(int(i) for i in np.argwhere(~right)[0])
            at = f"first at {list(where)}: {got[where]!s} for {wanted[where]!s}; " if where else ""
            error = f"{at}allowed is {atol:g} + {rtol:g} |expected|"
            self.fail(paste(wanted), paste(got), f"{note}; {error}" if note else error)
        return self

    def array(self, shape: tuple[int, ...]) -> Any:
        """The result as a NumPy array of numbers of this shape, or the test fails."""
        import numpy as np

        try:
            got = np.asarray(self.value)
            got = got if got.dtype.kind in "fiu" else got.astype(np.float64)
        except (TypeError, ValueError):
            self.fail(f"an array of numbers of shape {shape}")
        if got.shape != shape:
            self.fail(f"an array of shape {shape}", f"an array of shape {got.shape}")
        return got

    def of_type(self, kind: type, expected: str = "") -> Any:
        """The result, or the test fails because it is no `kind`."""
        got = self.value
        if not isinstance(got, kind):
            self.fail(expected or f"a {kind.__name__}", f"{paste(got)}, a {type(got).__name__}")
        return got

    def raises(self, *kinds: type[BaseException]) -> Call:
        """An exception of one of these kinds leaves the call."""
        wanted = " or ".join(kind.__name__ for kind in kinds)
        if self._error is None:
            self.fail(f"{wanted} to be raised")
        if isinstance(self._error, NotImplementedError) and NotImplementedError not in kinds:
            self._fail_with_exception(self._error, f"{wanted} to be raised")
        if not isinstance(self._error, kinds):
            self._fail_with_exception(self._error, f"{wanted} to be raised")
        return self

    def leaves_arguments_alone(self) -> Call:
        """The arguments are as they were before the call."""
        pairs = [*zip(self._args, self._shown_args, strict=True)]
        pairs += [(self._kwargs[key], self._shown_kwargs[key]) for key in self._kwargs]
        for after, before in pairs:
            if not is_equal(_plain(after), _plain(before)):
                self.fail(
                    f"the argument still to be {paste(before)}",
                    f"it was changed to {paste(after)}",
                )
        return self

    def _fail_with_exception(self, error: BaseException, expected: str) -> NoReturn:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == self._solution.file
        ]
        is_stub = isinstance(error, NotImplementedError)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise SolutionError(
            Failure(
                "unsolved" if is_stub else "crashed",
                self.script,
                said.split("\n")[0][:300],
                expected,
                line=lines[-1] if lines else None,
            )
        ) from None


def has_follow_up(module: ModuleType, name: str) -> bool:
    """Whether the solution attempts it: it is there, and some function of it is more than a
    docstring and a raise of NotImplementedError."""
    entry = getattr(module, name, None)
    if entry is None:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(entry)))
    except (OSError, TypeError, SyntaxError):
        return True
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    return not functions or not all(map(_is_stub, functions))


def _is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or body[0].exc is None:
        return False
    raised = body[0].exc.func if isinstance(body[0].exc, ast.Call) else body[0].exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Shown) else value


def _variable_name(class_name: str) -> str:
    """LRUCache -> lru_cache."""
    letters = []
    for index, letter in enumerate(class_name):
        follows = class_name[index + 1 : index + 2].islower()
        after_lower = class_name[index - 1 : index].islower()
        if index and letter.isupper() and (follows or after_lower):
            letters.append("_")
        letters.append(letter.lower())
    return "".join(letters)
