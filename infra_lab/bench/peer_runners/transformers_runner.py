"""Runs a saved workload through transformers' `generate` as one static batch, and prints JSON.

Stands alone: it imports nothing of infra_lab. Usage: `python transformers_runner.py JOB.json
MODEL`. Answers "what does continuous batching gain?": here prompts are padded on the left to
the longest, and everyone waits for the longest output; only the tokens asked for are counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Libraries may write to file descriptor 1: keep it for the one JSON line.
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(json.dumps(run(job, sys.argv[2])), file=stdout, flush=True)


def run(job: dict[str, Any], model_folder: str) -> dict[str, Any]:
    import torch
    import transformers

    if job["threads"]:
        torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=getattr(torch, job["dtype"])
    ).eval()
    # The checkpoint's own settings may name an end-of-sequence id, which must be ignored.
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)

    def generate(requests: list[dict[str, Any]]) -> tuple[float, int]:
        prompts = [item["prompt_token_ids"] for item in requests]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        )
        new_tokens = max(item["output_len"] for item in requests)
        start = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens)
        elapsed = time.perf_counter() - start
        if output.shape[1] != longest + new_tokens:
            raise RuntimeError(f"generate stopped at {output.shape[1] - longest} of {new_tokens}")
        return elapsed, sum(item["output_len"] for item in requests)

    generate([{**item, "output_len": 2} for item in job["requests"][:2]])
    elapsed, output_tokens = 0.0, 0
    for start in range(0, len(job["requests"]), job["max_num_seqs"]):
        seconds, tokens = generate(job["requests"][start : start + job["max_num_seqs"]])
        elapsed += seconds
        output_tokens += tokens
    streams = []
    for item in job["single_stream"]:
        ttft, _ = generate([{**item, "output_len": 1}])
        latency, tokens = generate([item])
        streams.append({"ttft_s": ttft, "latency_s": latency, "output_tokens": tokens})
    prompt_tokens = sum(len(item["prompt_token_ids"]) for item in job["requests"])
    return {
        "engine": "transformers",
        "elapsed_s": elapsed,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / elapsed,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / elapsed,
        "peak_rss_mb": peak_rss_mb(),
        "single_stream": streams,
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "settings": {"threads": torch.get_num_threads(), "batch": "static, padded on the left"},
    }


def peak_rss_mb() -> float:
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().peak_wset) / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main()
