"""Runs a saved workload through transformers' `generate` as one static batch, and prints JSON.

Stands alone, beside saved_job.py: it imports nothing of infra_lab. Usage: `python
transformers_runner.py JOB.json MODEL`. Answers "what does continuous batching gain?": here prompts
are padded on the left to the longest, and everyone waits for the longest output; only the tokens
asked for are counted.
"""

from __future__ import annotations

import os
import time
from typing import Any

import saved_job


def run(job: dict[str, Any], model_folder: str) -> dict[str, Any]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
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
    batch = saved_job.in_batches(generate, job)
    return {
        "engine": "transformers",
        **saved_job.figures(generate, job, *batch),
        "peak_rss_mb": saved_job.peak_rss_mb(),
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "settings": {"threads": torch.get_num_threads(), "batch": "static, padded on the left"},
    }


if __name__ == "__main__":
    saved_job.print_result(run)
