"""A small language model trained to the end: in fp32, rounded, and trained on while rounded.

Answers "when is QAT worth its training?". At 4 bits and more rounding a trained model (PTQ) loses
little; at 2 and 3 bits it loses most of what was learnt, and a short training that sees the
rounding wins nearly all of it back. The model is a Llama of two layers over the characters of a
text, small enough for a laptop; nothing else about it is simplified.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from infra_lab.errors import UsageError
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.qat import prepare_qat, round_linears

OnStep = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Characters:
    """A text as numbers: its first nine tenths to train on, the rest to be judged by.

    Attributes:
        vocabulary: every character of the text, sorted.
        train, held_out: int64 [n], indices into it.
    """

    vocabulary: str
    train: torch.Tensor
    held_out: torch.Tensor

    @classmethod
    def of(cls, text: str) -> Characters:
        vocabulary = "".join(sorted(set(text)))
        number = {character: index for index, character in enumerate(vocabulary)}
        codes = torch.tensor([number[character] for character in text])
        cut = len(text) * 9 // 10
        return cls(vocabulary, codes[:cut], codes[cut:])


@dataclass(frozen=True, slots=True)
class QATResult:
    """Mean losses over the held-out text, in nats a character; all three were trained as long.

    Attributes:
        fp32: of the model trained in full precision; `rounded`: the same, rounded to nearest;
            `trained`: of the one that saw its rounding in the last part of the training.
        model: that one; its layers are QATLinear.
    """

    fp32: float
    rounded: float
    trained: float
    model: nn.Module

    @property
    def recovered(self) -> float:
        """The part of what rounding loses that training wins back; above 1 where it does better
        than fp32."""
        return (self.rounded - self.trained) / (self.rounded - self.fp32)


def tiny_llama(vocab_size: int, seed: int = 0) -> Any:
    """A LlamaForCausalLM of transformers with two layers of 64 channels, random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def windows(tokens: torch.Tensor, length: int, count: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless batches int64 [count, length + 1] from random places, the same for a seed.

    Raises UsageError for a text that has not one window.
    """
    if len(tokens) < length + 1:
        raise UsageError(
            f"the text has {len(tokens)} characters to train on, and a window takes {length + 1}: "
            "give a longer text"
        )
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(tokens) - length, (count,), generator=generator)
        yield tokens[starts[:, None] + torch.arange(length + 1)]


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of each next token of int64 [count, length + 1], in nats."""
    logits = model(batch[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: Any, tokens: torch.Tensor, length: int) -> float:
    """The mean loss over all whole windows of tokens, one behind the other."""
    count = (len(tokens) - 1) // length
    starts = torch.arange(count) * length
    batch = tokens[starts[:, None] + torch.arange(length + 1)]
    model.eval()
    return float(loss_of(model, batch))


def train(
    model: Any,
    batches: Iterator[torch.Tensor],
    steps: int,
    learning_rate: float,
    on_step: OnStep | None = None,
) -> None:
    """AdamW with a short warm-up and a cosine down to nothing; gradients of a norm up to 1.

    `on_step` is told the number of each step and its loss. Raises UsageError when the loss is no
    longer a number.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    warm_up = max(steps // 20, 1)
    for step in range(steps):
        share = min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * share
        loss = loss_of(model, next(batches))
        if not loss.isfinite():
            raise UsageError(
                f"the loss is {loss.item()} at step {step}: give a smaller learning rate"
            )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if on_step is not None:
            on_step(step, loss.item())


def compare_with_rounding(
    text: str,
    scheme: IntegerScheme,
    learn_scales: bool = False,
    steps: int = 400,
    qat_steps: int = 200,
    length: int = 64,
    batch_size: int = 16,
    learning_rate: float = 4e-3,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> QATResult:
    """Trains a tiny Llama on the text for `steps`, and from there twice for `qat_steps`: in full
    precision, to be rounded afterwards, and rounded. Raises UsageError for a text too short."""
    characters = Characters.of(text)
    held_out = characters.held_out
    if len(held_out) < length + 1:
        raise UsageError(
            f"a text of {len(text)} characters leaves {len(held_out)} to judge by, and a window "
            f"takes {length + 1}: give a longer text"
        )
    batches = windows(characters.train, length, batch_size, seed)
    model = tiny_llama(len(characters.vocabulary), seed)
    train(model, batches, steps, learning_rate, on_step)
    aware = copy.deepcopy(model)
    prepare_qat(aware, scheme, learn_scales=learn_scales)
    for each in (model, aware):
        own = windows(characters.train, length, batch_size, seed + 1)
        train(each, own, qat_steps, learning_rate / 2, on_step)
    rounded = copy.deepcopy(model)
    round_linears(rounded, scheme)
    fp32, plain, trained = (evaluate(each, held_out, length) for each in (model, rounded, aware))
    return QATResult(fp32, plain, trained, aware)
