"""A server in a process of its own, for as long as a benchmark needs it.

Answers "why measure over a socket and not in one process?": because client and server would share
one interpreter, and the client's work would be counted as the server's. Torch-free.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException

from infra_lab.bench.child import ChildFailedError, end_family, last_lines

HOST = "127.0.0.1"
GRACE_S = 30.0
NO_KEY = {"INFRA_LAB_API_KEY": ""}  # who starts a server for himself needs none to use it


@contextmanager
def serving(
    command: Sequence[str], timeout_s: float = 300.0, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Runs `command --host 127.0.0.1 --port N` until the block ends; gives its base URL.

    `environment` is added to this process's own.

    Ready is who answers /health with 200, as our server and vLLM's do. Raises ChildFailedError,
    with the last lines that it wrote, if it ends before, or is not ready in time.
    """
    port = free_port()
    url = f"http://{HOST}:{port}"
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [*command, "--host", HOST, "--port", str(port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {}), **NO_KEY},
                start_new_session=True,
            )
        except OSError as error:
            raise ChildFailedError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            if reason := _wait_until_ready(process, url, timeout_s):
                raise ChildFailedError("\n".join([f"the server {reason}:", *last_lines(output)]))
            yield f"{url}/v1"
        finally:
            _end(process)


def free_port() -> int:
    """A port that nothing listens on, a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, timeout_s: float) -> str | None:
    """Why it is not ready; None once it is."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if (status := process.poll()) is not None:
            return f"ended with status {status}"
        with (
            suppress(urllib.error.URLError, HTTPException, OSError),
            urllib.request.urlopen(f"{url}/health", timeout=5) as response,
        ):
            if response.status == 200:
                return None
        time.sleep(0.1)
    return f"was not ready within {timeout_s:g} s"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks it to stop, and ends what does not; its workers, too."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    end_family(process)
