"""A model and a text, ready to be evaluated: what `eval` and `quantize compare` begin with."""

from __future__ import annotations

from pathlib import Path

from infra_lab.quantization.evaluate import TextModel, checked_windows


def load_text_model(
    path: Path,
    text: str,
    window: int | None,
    max_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
) -> tuple[TextModel, list[list[int]]]:
    """The model, and the text's tokens, `max_tokens` at most, as windows for it.

    Raises UsageError for a window that does not fit, before any weight is read.
    """
    import torch

    from infra_lab.engine.build import choose_device, choose_dtype
    from infra_lab.models.loader import open_checkpoint
    from infra_lab.models.tokenizer import load_tokenizer

    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = open_checkpoint(path)
    token_ids = load_tokenizer(checkpoint).encode(text)[:max_tokens]
    windows = checked_windows(token_ids, window, checkpoint.config)
    on_device = choose_device(device)
    own_dtype = choose_dtype(dtype, checkpoint.config, on_device)
    longest = max(map(len, windows))
    return TextModel.load(checkpoint, longest, own_dtype, on_device), windows
