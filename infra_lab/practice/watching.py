"""Tells when a file was saved: by the system's events, or by looking where none come.

WSL, network drives and some containers report no changes; a file is then looked at twice a
second, and the caller is told so.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.5
SETTLE_S = 0.1  # an editor saves in steps: the file must have stood still so long
LONGEST_SETTLE_S = 2.0
EVENT_TIMEOUT_MS = 1000
# File systems that report other machines' changes late or never, as the system names them.
WITHOUT_EVENTS = ("nfs", "cifs", "smb", "9p", "drvfs", "vboxsf", "fuse.sshfs", "afp", "webdav")

Sleep = Callable[[float], None]


class NoEventsError(Exception):
    """The system does not report that this file changes."""


def contents_on_save(
    path: Path,
    poll: bool = False,
    on_polling: Callable[[str], None] = lambda why: None,
    on_gone: Callable[[], None] = lambda: None,
    sleep: Sleep = time.sleep,
) -> Iterator[bytes]:
    """The file's content now, and then again each time it was saved with another one.

    Touching the file, saving it unchanged, and whatever else happens in its folder yield nothing.
    While it is gone (many editors replace a file) nothing is yielded either. One that comes back
    after `on_gone` was called is yielded, whatever it holds.

    Args:
        poll: look at the file instead of waiting for events.
        on_polling: told why the file is looked at, where that was not asked for.
        on_gone: called once each time that the file is gone for longer than a save takes.
    """
    seen: str | None = None
    is_gone = False
    for _ in _occasions(path, poll, on_polling, sleep):
        content = _settled(path, sleep)
        if content is None:
            if not is_gone:
                on_gone()
            seen, is_gone = None, True
            continue
        is_gone = False
        digest = hashlib.sha256(content).hexdigest()
        if digest != seen:
            seen = digest
            yield content


def _occasions(
    path: Path, poll: bool, on_polling: Callable[[str], None], sleep: Sleep
) -> Iterator[None]:
    """Whenever the file may have changed, and once at the start."""
    signature = _signature(path)  # before each yield: the caller takes its time, and misses nothing
    yield None
    if not poll:
        try:
            yield from _events(path)
        except NoEventsError as reason:
            on_polling(str(reason))
            signature = _signature(path)
            yield None
    while True:
        sleep(POLL_S)
        before, signature = signature, _signature(path)
        if signature != before:
            yield None


def _events(path: Path) -> Iterator[None]:
    """Raises NoEventsError where there are none, at once or when a change came without one."""
    file_system = file_system_of(path)
    if file_system.startswith(WITHOUT_EVENTS):
        raise NoEventsError(f"{file_system} does not report every change")
    try:
        from watchfiles import watch
    except ImportError:
        raise NoEventsError("the package watchfiles is not installed") from None
    known, unreported, is_first = _signature(path), 0, True
    try:
        for changes in watch(
            path.parent,
            watch_filter=lambda _, changed: Path(changed).name == path.name,
            step=50,
            debounce=400,
            rust_timeout=EVENT_TIMEOUT_MS,
            yield_on_timeout=True,
            recursive=False,
            force_polling=False,
        ):
            signature = _signature(path)
            if changes or is_first:  # the first: whatever was saved before the watch began
                known, unreported, is_first = signature, 0, False
                yield None
            elif signature is None or signature == known:
                unreported = 0
            else:
                unreported += 1
                if unreported == 2:  # once may be an event that is still on its way
                    raise NoEventsError("the file changed, and the system did not report it")
    except (OSError, RuntimeError) as error:  # out of watches, or no support for them
        raise NoEventsError(str(error)) from None


def file_system_of(path: Path) -> str:
    """The name of the file system that holds the path, "" if the system does not say."""
    import psutil

    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return ""
    real = path.resolve()
    holders = [one for one in partitions if real.is_relative_to(one.mountpoint)]
    holder = max(holders, key=lambda one: len(one.mountpoint), default=None)
    return holder.fstype.lower() if holder is not None else ""


def _settled(path: Path, sleep: Sleep) -> bytes | None:
    """The content once the file has stood still; None if it is gone."""
    waited = 0.0
    before = _signature(path)
    while waited < LONGEST_SETTLE_S:
        sleep(SETTLE_S)
        waited += SETTLE_S
        now = _signature(path)
        if now is not None and now == before:
            break
        before = now
    try:
        return path.read_bytes()
    except OSError:
        return None


def _signature(path: Path) -> tuple[int, ...] | None:
    """What changes when the file is saved; None while it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
