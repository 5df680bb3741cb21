"""How good a model is on a text: perplexity, and how far its distributions are from another's.

Answers "perplexity barely moved: is the quantized model the same?": not necessarily. KL divergence
looks at the whole distribution of every token, and top-1 agreement at what greedy decoding would
say. The windows go through the model whole, by the layers that serve requests, packed weights and
quantized activations included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infra_lab.attention.backend import AttentionBackend
from infra_lab.attention.whole_sequence_backend import (
    NO_CACHE,
    WholeSequenceBackend,
    whole_sequences,
)
from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.models.registry import model_class
from infra_lab.models.weights import Weights
from infra_lab.quantization.likelihood import TextLikelihood, text_windows

DEFAULT_WINDOW = 2048
_ROWS_PER_HEAD = 256  # of 49,152 logits in fp32: 50 MB
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TextQuality:
    """What a model makes of a text; the last two in comparison with a reference, if there was one.

    kl_divergence: mean over tokens of KL(reference || model), in nats.
    top1_agreement: share of tokens of which both models think the same likeliest.
    """

    likelihood: TextLikelihood
    kl_divergence: float | None = None
    top1_agreement: float | None = None


class TextModel:
    """A model that reads whole windows, each from its first token on and without a cache.

    `backend`: what attends in place of a WholeSequenceBackend, to watch or change what passes.
    """

    def __init__(
        self, model: DecoderForCausalLM, backend: AttentionBackend[Any] | None = None
    ) -> None:
        self.model = model
        self._backend = WholeSequenceBackend(model.attention_shape) if backend is None else backend

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        window: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> TextModel:
        weights = Weights(checkpoint, dtype, device or torch.device("cpu"))
        return cls(model_class(checkpoint.config.architecture)(checkpoint.config, weights, window))

    def hidden(self, token_ids: Sequence[int]) -> torch.Tensor:
        """One window -> the residual stream [len(token_ids), hidden_size] that its head reads."""
        model = self.model
        tokens = torch.tensor(token_ids, device=model.device)
        plan = self._backend.plan(whole_sequences([len(token_ids)]))
        positions = torch.arange(len(token_ids), device=model.device)
        caches = [NO_CACHE] * len(model.layers)
        return model.forward(tokens, positions, self._backend, caches, plan)


class ReferenceText:
    """What a reference model says of every token of a text: kept as the rows that its head reads,
    a hundredth of the distributions, which are made again when they are compared with."""

    def __init__(
        self, model: TextModel, windows: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> None:
        head = model.model.first_layers(1) if len(model.model.layers) > 1 else model.model
        self._logits = head.logits
        self._windows = windows
        self.hidden = []
        for done, window in enumerate(windows):
            self.hidden.append(model.hidden(window)[:-1])
            if progress is not None:
                progress(done + 1, len(windows))

    def logprobs(self, window: int, rows: slice) -> torch.Tensor:
        """fp32 [rows, vocab_size]."""
        return self._logits(self.hidden[window][rows]).log_softmax(-1)

    def likelihood(self) -> TextLikelihood:
        """As `evaluate` finds it. Raises like that."""
        found: list[float] = []
        for index, window in enumerate(self._windows):
            for rows in _slices(len(window) - 1):
                found += _of_the_next(self.logprobs(index, rows), window, rows, len(found))
        return TextLikelihood(tuple(found))


def evaluate(
    model: TextModel,
    windows: Sequence[Sequence[int]],
    reference: ReferenceText | None = None,
    progress: Progress | None = None,
) -> TextQuality:
    """The likelihood of each window's tokens but its first, and what differs from `reference`.

    Raises ModelLoadError when the model's output is not finite.
    """
    logprobs: list[float] = []
    divergence, agreed = 0.0, 0
    for index, window in enumerate(windows):
        hidden = model.hidden(window)[:-1]
        for rows in _slices(len(hidden)):
            predicted = model.model.logits(hidden[rows]).log_softmax(-1)
            logprobs += _of_the_next(predicted, window, rows, len(logprobs))
            if reference is not None:
                expected = reference.logprobs(index, rows)
                divergence += float(_kl_divergence(expected, predicted).sum())
                agreed += int((expected.argmax(-1) == predicted.argmax(-1)).sum())
        if progress is not None:
            progress(index + 1, len(windows))
    likelihood = TextLikelihood(tuple(logprobs))
    if reference is None:
        return TextQuality(likelihood)
    return TextQuality(likelihood, divergence / len(logprobs), agreed / len(logprobs))


def checked_windows(
    token_ids: Sequence[int], window: int | None, config: ModelConfig
) -> list[list[int]]:
    """The text as windows that fit the model; DEFAULT_WINDOW or less where none is given.

    Raises UsageError for a window longer than the context, and as `text_windows` does.
    """
    context = config.max_position_embeddings
    if window is not None and window > context:
        raise UsageError(
            f"a window of {window} tokens does not fit the model's context of {context}: give less"
        )
    return text_windows(token_ids, window or min(DEFAULT_WINDOW, context))


def _of_the_next(
    predicted: torch.Tensor, window: Sequence[int], rows: slice, already: int
) -> list[float]:
    """The log-probability of the token after each of these rows. already: tokens before them."""
    wanted = torch.tensor(window[1:][rows], device=predicted.device)
    logprobs = predicted.gather(1, wanted[:, None])[:, 0]
    if not logprobs.isfinite().all():
        index = already + int((~logprobs.isfinite()).nonzero()[0])
        raise ModelLoadError(
            f"the model gives scored token {index} no probability: its weights are damaged, or "
            "its type is too small (try --dtype float32)"
        )
    values: list[float] = logprobs.tolist()
    return values


def _kl_divergence(expected: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """Of each row, in fp64: its terms nearly cancel where the models nearly agree."""
    terms = expected.exp() * (expected - predicted)
    return terms.sum(-1, dtype=torch.float64)


def _slices(count: int) -> Iterator[slice]:
    for start in range(0, count, _ROWS_PER_HEAD):
        yield slice(start, min(start + _ROWS_PER_HEAD, count))
