"""Who takes part in a comparison: which Python runs an engine, on which files, with what memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from infra_lab.bench.export import hugging_face_folder
from infra_lab.bench.peers import OURS, Contender
from infra_lab.bench.workload import Job, Workload
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.paths import default_cache_dir

RUNNERS = {
    "vllm": "vllm_runner.py",
    "transformers": "transformers_runner.py",
    "llama.cpp": "llamacpp_runner.py",
}
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LENGTH_UNIT = 128  # vLLM's block of KV cache on a CPU; a round number for everyone else

Notify = Callable[[str], None]


def pair_peers_with_pythons(peers: Sequence[str], pythons: Sequence[str]) -> list[tuple[str, str]]:
    """Which Python runs which peer.

    Pythons go to the peers in order. Where there are fewer, transformers, which is installed
    beside us, runs under our own and the others take them. Raises UsageError for an unknown
    peer or a count that does not work out.
    """
    for name in peers:
        if name not in RUNNERS:
            raise UsageError(f"no peer {name!r}: peers are {', '.join(RUNNERS)}")
    if len(set(peers)) < len(peers):
        raise UsageError("each peer can be named once")
    if not peers:
        raise UsageError(f"name at least one peer: --peer {' | '.join(RUNNERS)}")
    if len(pythons) == len(peers):
        return list(zip(peers, pythons, strict=True))
    needy = [name for name in peers if name != "transformers"]
    if len(pythons) != len(needy):
        raise UsageError(
            f"{len(pythons)} --python for {' and '.join(peers)}: give one for each peer, in the "
            "same order; transformers alone may go without and then runs under this Python"
        )
    chosen = dict(zip(needy, pythons, strict=True))
    return [(name, chosen.get(name, sys.executable)) for name in peers]


def peer_command(name: str, python: str) -> tuple[str, ...]:
    return (python, str(Path(__file__).parent / "peer_runners" / RUNNERS[name]))


def own_command() -> tuple[str, ...]:
    return (sys.executable, "-m", "infra_lab.bench.own_runner")


def contenders_for(
    pairs: Sequence[tuple[str, str]],
    model_path: Path,
    cache_dir: Path | None = None,
    notify: Notify = lambda message: None,
) -> list[Contender]:
    """Ours first, then the peers, each with the form of the model that it can read.

    Raises UsageError when llama.cpp is to run a model that is no .gguf file.
    """
    contenders = [Contender(OURS, own_command(), str(model_path))]
    for name, python in pairs:
        if name == "llama.cpp":
            if model_path.is_dir():
                raise UsageError(f"llama.cpp reads .gguf files, and {model_path} is a folder")
            model = model_path
        else:
            notify(f"preparing the model for {name}")
            model = hugging_face_folder(model_path, cache_dir or default_cache_dir())
        contenders.append(Contender(name, peer_command(name, python), str(model)))
    return contenders


def job_for(
    batch: Workload, stream: Workload, config: ModelConfig, dtype: str, threads: int | None
) -> Job:
    """The job that all engines get, with KV cache enough for the whole batch at once.

    Raises UsageError for a request that passes the model's context and for an unknown dtype.
    """
    if dtype not in ELEMENT_BYTES:
        raise UsageError(f"dtype must be one of {', '.join(ELEMENT_BYTES)}, not {dtype!r}")
    batch, stream = batch.for_model(config), stream.for_model(config)
    longest = max(item.prompt_len_max + item.output_len_max for item in (batch, stream))
    padded = math.ceil(longest / LENGTH_UNIT) * LENGTH_UNIT
    # One unit a request to spare: an engine may keep a block for itself or round up.
    tokens = batch.num_requests * (padded + LENGTH_UNIT)
    return Job(
        requests=tuple(batch.requests()),
        single_stream=tuple(stream.requests()),
        max_model_len=min(padded, config.max_position_embeddings),
        max_num_seqs=batch.num_requests,
        threads=threads,
        dtype=dtype,
        kv_cache_bytes=tokens * config.kv_bytes_per_token(ELEMENT_BYTES[dtype]),
    )
