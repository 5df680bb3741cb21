"""Runs a saved workload through llama.cpp, under the Python that has llama-cpp-python.

Stands alone, beside saved_job.py: it imports nothing of infra_lab. Usage: `python
llamacpp_runner.py JOB.json MODEL.gguf`; prints JSON. The high-level `Llama` class serves one
sequence at a time, so this drives llama.cpp's own batch interface, as its server does: whole
prompts first, then one token of every live sequence in each step. Weights stay quantized as they
are in the file.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import saved_job

PREFILL_BATCH = 512


class Engine:
    """A loaded model, and greedy generation of many sequences side by side."""

    def __init__(self, model_path: str, max_model_len: int, max_num_seqs: int, threads: int):
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            model_path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model_path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = max_model_len * max_num_seqs
        settings.n_seq_max = max_num_seqs
        settings.n_batch = settings.n_ubatch = PREFILL_BATCH
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context for this many sequences")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(max(PREFILL_BATCH, max_num_seqs), 0, 1)

    def generate(self, requests: list[dict[str, Any]]) -> tuple[float, int]:
        """Seconds and output tokens of `requests`, at most `max_num_seqs` of them."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        start = time.perf_counter()
        latest = {
            sequence: self._prefill(sequence, item["prompt_token_ids"])
            for sequence, item in enumerate(requests)
        }
        produced = dict.fromkeys(latest, 1)
        while live := [s for s in latest if produced[s] < requests[s]["output_len"]]:
            rows = []
            for sequence in live:
                position = len(requests[sequence]["prompt_token_ids"]) + produced[sequence] - 1
                rows.append((latest[sequence], position, sequence, True))
            self._decode(rows)
            for row, sequence in enumerate(live):
                latest[sequence] = self._argmax(row)
                produced[sequence] += 1
        return time.perf_counter() - start, sum(produced.values())

    def _prefill(self, sequence: int, prompt: list[int]) -> int:
        for start in range(0, len(prompt), PREFILL_BATCH):
            chunk = prompt[start : start + PREFILL_BATCH]
            last = len(prompt) - 1
            self._decode(
                [(token, start + i, sequence, start + i == last) for i, token in enumerate(chunk)]
            )
        return self._argmax(-1)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = wants_logits
        status = self.api.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _argmax(self, row: int) -> int:
        import numpy as np

        logits = self.api.llama_get_logits_ith(self.context, row)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, shape=(self.vocab_size,)).argmax())


def run(job: dict[str, Any], model_path: str) -> dict[str, Any]:
    import llama_cpp

    threads = job["threads"] or saved_job.usable_cores()
    engine = Engine(model_path, job["max_model_len"], job["max_num_seqs"], threads)
    engine.generate([{**item, "output_len": 2} for item in job["requests"][:2]])
    batch = saved_job.in_batches(engine.generate, job)
    return {
        "engine": "llama.cpp",
        **saved_job.figures(engine.generate, job, *batch),
        "peak_rss_mb": saved_job.peak_rss_mb(),
        "versions": {"llama-cpp-python": llama_cpp.__version__},
        "settings": {"threads": threads, "weights": Path(model_path).name},
    }


if __name__ == "__main__":
    saved_job.print_result(run)
