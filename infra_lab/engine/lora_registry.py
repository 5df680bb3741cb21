"""Which LoRA adapters requests may name, and when one leaves memory. Torch-free.

Answers "what does it take to load and unload adapters while a server runs?": names are the
caller's, identity is the content. Requests and the prefix cache go by the content's digest, so
that a new adapter under an old name never meets what was computed with the old one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra_lab.errors import InvalidRequestError, UsageError


class AdapterStore(Protocol):
    """Where adapters are kept; the real one reads PEFT folders into a worker's model."""

    def load(self, path: Path) -> str:
        """Reads an adapter and makes it ready; returns its digest. One that is there already may
        be loaded again. Raises an InfraLabError for one that cannot be used."""
        ...

    def unload(self, digest: str) -> None: ...


@dataclass(frozen=True, slots=True)
class LoRAInfo:
    name: str
    path: Path
    digest: str


class LoRARegistry:
    """At most `max_loras` adapters in memory, those that only running requests need included."""

    def __init__(self, store: AdapterStore, max_loras: int) -> None:
        self._store = store
        self._max_loras = max_loras
        self._named: dict[str, LoRAInfo] = {}
        self._in_memory: set[str] = set()

    @property
    def loaded(self) -> list[LoRAInfo]:
        return list(self._named.values())

    @property
    def num_in_memory(self) -> int:
        return len(self._in_memory)

    @property
    def has_leftovers(self) -> bool:
        """Whether something in memory has no name any more."""
        return self._in_memory != {info.digest for info in self._named.values()}

    def load(self, name: str, path: str | Path) -> None:
        """Makes an adapter known under a name.

        Raises:
            UsageError: the name is taken, or there is no room.
            InfraLabError: this adapter cannot be used; nothing else is affected.
        """
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"an adapter's name must be a text of at least one character: {name!r}"
            )
        if name in self._named:
            raise UsageError(
                f"an adapter named {name!r} is loaded, from {self._named[name].path}: unload it "
                f"first, or give another name"
            )
        if len(self._in_memory) >= self._max_loras:
            raise UsageError(
                f"{len(self._in_memory)} adapters are in memory and max_loras is "
                f"{self._max_loras}: unload one, wait for the requests that use it, or raise "
                f"max_loras"
            )
        digest = self._store.load(Path(path))
        self._in_memory.add(digest)
        self._named[name] = LoRAInfo(name, Path(path), digest)

    def unload(self, name: str, in_use: Collection[str | None]) -> None:
        """No later request may name it; its memory is freed when the last one that does has ended.

        Raises UsageError for a name that is not loaded.
        """
        if name not in self._named:
            raise UsageError(f"no adapter named {name!r} is loaded: {self._known()}")
        del self._named[name]
        self.free_unused(in_use)

    def resolve(self, name: str) -> str:
        """The digest of a named adapter; raises InvalidRequestError if it is not loaded."""
        info = self._named.get(name) if isinstance(name, str) else None
        if info is None:
            raise InvalidRequestError(
                f"lora names {name!r}, which is not loaded: {self._known()}; load_lora loads one"
            )
        return info.digest

    def free_unused(self, in_use: Collection[str | None]) -> None:
        """Frees what has no name any more and is not among the digests `in_use`."""
        needed = {info.digest for info in self._named.values()}.union(filter(None, in_use))
        for digest in self._in_memory - needed:
            self._store.unload(digest)
        self._in_memory &= needed

    def _known(self) -> str:
        return f"loaded are {', '.join(sorted(self._named)) or 'none'}"
