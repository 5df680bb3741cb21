"""Runs Triton kernels on the CPU with a GPU's arithmetic.

Does a kernel compute what it should, in bf16 and fp8 too, before any GPU has seen it? Within

    with use_faithful_interpreter():
        kernel[grid](...)

every kernel launched is interpreted, whenever it was imported: Triton's own switch, the variable
TRITON_INTERPRET, must be set before its first import and then holds for the whole process. On
leaving the block everything is as it was: the same kernels compile again, for a GPU or for the
ahead-of-time gate.

What differs from Triton's interpreter: `builder` (arithmetic, casts, lanes that a mask leaves
undefined), `reductions`, and here: parameters have the types that a launch gives them, a grid
too large for CUDA is refused, an error names the kernel and the program.

The replacement is seen by all threads of the process; launch from one thread at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton import knobs
from triton.runtime import interpreter as stock
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import JITFunction

from kernels.checks import MAX_GRID_X, MAX_GRID_Y
from kernels.testing.builder import FaithfulBuilder, FaithfulSemantic, convert_float
from kernels.testing.faults import SanitizerError
from kernels.testing.observer import LaunchObserver
from kernels.testing.reductions import Reduction, Scan
from kernels.testing.rewriting import rewritten

MAX_GRID = (MAX_GRID_X, MAX_GRID_Y, MAX_GRID_Y)  # in x, y and z


class KernelCrashError(RuntimeError):
    """A kernel raised an error; says in which program. The error itself is the cause."""


@contextmanager
def use_faithful_interpreter(observer: LaunchObserver | None = None) -> Iterator[None]:
    """Within the block every Triton kernel is interpreted; `observer` is told what it does."""
    interpreter = _Interpreter(observer or LaunchObserver())
    with _replaced() as replace:
        replace(stock, "interpreter_builder", interpreter.builder)
        replace(stock, "interpreter_semantic", interpreter.semantic)
        # Triton 3.6 makes builders and semantic layers of its own as it goes.
        replace(stock, "InterpreterBuilder", lambda: interpreter.builder)
        replace(stock, "TritonSemantic", FaithfulSemantic)
        replace(stock, "_convert_float", convert_float)
        replace(stock, "ReduceOps", Reduction)
        replace(stock, "ScanOps", Scan)
        for kind in (JITFunction, stock.InterpretedFunction):
            replace(kind, "run", interpreter.run_method())
            replace(kind, "__call__", interpreter.call_method())
            replace(kind, "__get__", _bind_to_tensor)  # x.sum(): a kernel as a method
        replace(Autotuner, "run", _run_first_configuration)
        yield


class _Interpreter:
    """What one `use_faithful_interpreter` block needs: builder, rewritten functions, launches."""

    def __init__(self, observer: LaunchObserver) -> None:
        self.observer = observer
        self.builder = FaithfulBuilder(observer)
        self.semantic = FaithfulSemantic(self.builder)
        self._rewritten: dict[Callable[..., Any], Callable[..., Any]] = {}

    def run_method(self) -> Callable[..., None]:
        def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            if not warmup:
                self.launch(function, grid, args, kwargs)

        run.interpreter = self  # type: ignore[attr-defined]
        return run

    def call_method(self) -> Callable[..., Any]:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return self.rewritten(function.fn)(*args, **kwargs)

        return call

    def rewritten(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as it is run: see `rewriting`."""
        if function not in self._rewritten:
            self._rewritten[function] = rewritten(function, self.semantic)
        return self._rewritten[function]

    def launch(
        self, function: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        plain = function.fn
        names = inspect.getfullargspec(plain)
        known = {*names.args, *names.kwonlyargs}
        kwargs = {name: value for name, value in kwargs.items() if name in known}
        bound = inspect.signature(plain).bind(*args, **kwargs)
        bound.apply_defaults()
        sizes = _checked_grid(plain.__name__, grid(bound.arguments) if callable(grid) else grid)
        if 0 in sizes:
            return
        executor = stock.GridExecutor(plain, list(bound.arguments), sizes)
        devices = list(bound.arguments.values())
        hosts, _ = executor._init_args_hst(devices, {})
        for hook in getattr(function, "pre_run_hooks", ()):
            hook(*hosts)
        named = dict(zip(bound.arguments, hosts, strict=True))
        values = {
            name: host if name in executor.constexprs else _as_parameter(host)
            for name, host in named.items()
        }
        self.observer.begin_launch(plain.__name__, sizes, named)
        with _triton_functions_interpreted(), np.errstate(all="ignore"):
            self._run_programs(self.rewritten(plain), sizes, values)
        self.observer.end_launch()
        executor._restore_args_dev(devices, hosts, {}, {})

    def _run_programs(
        self, kernel: Callable[..., Any], grid: tuple[int, int, int], values: dict[str, Any]
    ) -> None:
        self.builder.set_grid_dim(*grid)
        for program in np.ndindex(*grid):
            self.builder.set_grid_idx(*program)
            self.observer.begin_program(program)
            try:
                kernel(**values)
            except SanitizerError:
                raise
            except Exception as error:
                place = f"{kernel.__name__}, program {program}"
                raise KernelCrashError(f"{place}: {type(error).__name__}: {error}") from error


@contextmanager
def _replaced() -> Iterator[Callable[[Any, str, Any], None]]:
    """Gives a setattr that is undone at the end of the block, in reverse."""
    undo: list[tuple[Any, str, bool, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        own = name in vars(owner)
        undo.append((owner, name, own, vars(owner).get(name)))
        setattr(owner, name, value)

    try:
        yield replace
    finally:
        for owner, name, own, value in reversed(undo):
            if own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)


@contextmanager
def _triton_functions_interpreted() -> Iterator[None]:
    """For one launch `tl.load` and its like act at once, instead of building code."""
    scope = stock._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    # Triton 3.6 and 3.7 know no fnuz types here. An interpreted type stands for itself.
    scope.set_attr(tl.dtype, "to_ir", lambda dtype, builder: dtype)
    try:
        with knobs.runtime.scope():
            # So that constexpr functions return plain values.
            vars(knobs.runtime)["interpret"] = True
            yield
    finally:
        scope.restore()


def _bind_to_tensor(function: Any, instance: Any, owner: Any = None) -> Any:
    return partial(function, instance) if isinstance(instance, tl.tensor) else function


def _run_first_configuration(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """Tuning measures time, which means nothing here: the first configuration stands for all."""
    config = tuner.configs[0]
    chosen = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **chosen})
    return tuner.fn.run(*args, **kwargs, **chosen)


def _checked_grid(kernel: str, grid: Any) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in (grid if isinstance(grid, tuple | list) else (grid,)))
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{kernel}: a grid has 1 to 3 dimensions, not {len(sizes)}: {sizes}")
    x, y, z = (*sizes, 1, 1)[:3]
    full = (x, y, z)
    for size, limit, axis in zip(full, MAX_GRID, "xyz", strict=True):
        if not 0 <= size <= limit:
            raise ValueError(f"{kernel}: grid {full}: {axis} must be in 0..{limit}")
    return full


def _as_parameter(value: Any) -> Any:
    """A launch argument in the type that a compiled kernel gets it in."""
    if isinstance(value, bool):
        return tl.tensor(TensorHandle(np.array([value]), tl.int1), tl.int1)
    if isinstance(value, float):
        return tl.tensor(TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
    if type(value) is tuple:
        return tuple(_as_parameter(item) for item in value)
    return stock._implicit_cvt(value)
