"""Becomes vLLM's OpenAI server, under the Python that has vLLM, set up as vllm_runner does it.

Stands alone, beside vllm_runner.py. Usage: `python vllm_server.py MODEL THREADS ARGUMENT...`; the
arguments are those of `vllm serve`. The threads bound to cores are as many as infra-lab has: vLLM
alone would keep one core back for its HTTP server.
"""

from __future__ import annotations

import os
import sys

import vllm_runner


def main() -> None:
    model, threads, *arguments = sys.argv[1:]
    vllm_runner.preload_and_restart()
    vllm_runner.set_environment(int(threads))
    # Not `vllm serve`: that looks for a package named vllm, and a CPU build may be named otherwise.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    os.execv(sys.executable, [*command, *arguments])


if __name__ == "__main__":
    main()
