"""Who watches a launch under the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.testing.float_codecs import Array


class LaunchObserver:
    """Is told what a launch does; this one looks on and says nothing.

    Addresses are those of the active lanes, one dimension, uint64; `size` is bytes a lane.
    """

    def begin_launch(
        self, kernel: str, grid: tuple[int, int, int], arguments: Mapping[str, Any]
    ) -> None:
        """`arguments` are the values as the host passed them, tensors on the CPU."""

    def begin_program(self, program: tuple[int, int, int]) -> None: ...

    def end_launch(self) -> None: ...

    def load(self, addresses: Array, size: int) -> None: ...

    def store(self, addresses: Array, size: int, values: Array) -> None: ...

    def atomic(self, addresses: Array, size: int) -> None: ...

    def integer_operation(self, operation: str, bits: int, exact: Array) -> None:
        """The exact results of an int32 (or narrower) operation that must not wrap."""
