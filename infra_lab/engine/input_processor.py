"""From what a caller gives to what the scheduler takes: token ids and checked parameters.

Answers "what must a server validate before a request may touch a batch?": everything that
depends on the tokenizer, the vocabulary or the context length is refused here, with the
numbers, for that request alone. Torch-free.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from infra_lab.errors import InvalidRequestError, about
from infra_lab.models.text import require_text
from infra_lab.sampling.grammar import CompiledGrammar, GrammarCompiler
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative_config import SpeculativeConfig


class TextTokenizer(Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    """A request that fits this engine.

    `sampling_params.max_tokens` is always a number: never more than the context has room for.
    `grammar` is what structured outputs were compiled to.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    grammar: CompiledGrammar | None = None


class InputProcessor:
    """Checks requests against one model.

    Args:
        tokenizer: None where only token ids come in and go out.
        vocab_size: rows of the model's embedding; a tokenizer may know fewer.
        max_model_len: most tokens of prompt and output together.
        grammars: compiles what structured outputs ask for; None refuses them.
        speculative: the engine's speculation; None where it has none.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer | None,
        vocab_size: int,
        max_model_len: int,
        grammars: GrammarCompiler | None = None,
        speculative: SpeculativeConfig | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._grammars = grammars
        self._speculative = speculative

    def process(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> ProcessedInput:
        """Tokenizes and checks one request; raises InvalidRequestError saying what is wrong."""
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params must be a SamplingParams, not {type(params).__name__}; "
                f"SamplingParams.from_dict makes one from a mapping"
            )
        self._check_vocabulary(params)
        with about("num_speculative_tokens"):
            self._check_speculation(params)
        text = prompt if isinstance(prompt, str) else None
        token_ids = self.token_ids(prompt)
        fitted = self._fitted(params, len(token_ids))
        return ProcessedInput(text, token_ids, fitted, self._grammar(params))

    def token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The ids of a text or, checked, of a sequence of ids; raises InvalidRequestError."""
        with about("prompt"):
            return self._encode(prompt) if isinstance(prompt, str) else self._checked_ids(prompt)

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise InvalidRequestError(
                "a text prompt needs a tokenizer and this engine has none: give token ids instead"
            )
        if not text:
            raise InvalidRequestError("the prompt is empty: give at least one character")
        require_text("the prompt", text)
        token_ids = self._tokenizer.encode(text)
        if not token_ids:
            raise InvalidRequestError(
                f"the prompt {text[:40]!r} has no tokens left after the tokenizer's normalisation: "
                f"give some other text"
            )
        return token_ids

    def _checked_ids(self, prompt: Sequence[int]) -> list[int]:
        try:
            items = list(prompt)
        except TypeError:
            items = None
        if items is None or isinstance(prompt, (bytes, bytearray, dict)):
            raise InvalidRequestError(
                f"the prompt must be a string or a list of token ids, not {type(prompt).__name__}"
            )
        if not items:
            raise InvalidRequestError("the prompt is empty: give at least one token id")
        return [self._checked_id(item, position) for position, item in enumerate(items)]

    def _checked_id(self, item: object, position: int) -> int:
        try:
            token_id = None if isinstance(item, bool) else operator.index(item)  # type: ignore[arg-type]
        except TypeError:
            token_id = None
        if token_id is None:
            raise InvalidRequestError(
                f"prompt token {position} is {item!r} ({type(item).__name__}): "
                f"give integers as token ids"
            )
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"prompt token {position} is id {token_id}, outside the vocabulary: "
                f"ids of this model go from 0 to {self.vocab_size - 1}"
            )
        return token_id

    def _check_vocabulary(self, params: SamplingParams) -> None:
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError(
                "stop strings need a tokenizer and this engine has none: use stop_token_ids "
                "instead",
                "stop",
            )
        named = {"logit_bias": params.logit_bias or (), "stop_token_ids": params.stop_token_ids}
        for name, ids in named.items():
            for token_id in ids:
                if token_id >= self.vocab_size:
                    raise InvalidRequestError(
                        f"{name} names token id {token_id}, outside the vocabulary: "
                        f"ids of this model go from 0 to {self.vocab_size - 1}",
                        name,
                    )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and count > self.vocab_size:
                raise InvalidRequestError(
                    f"{name}={count} asks for more tokens than the vocabulary has: "
                    f"give at most {self.vocab_size}",
                    name,
                )

    def _grammar(self, params: SamplingParams) -> CompiledGrammar | None:
        with about("structured_outputs"):
            if self._grammars is not None:
                return self._grammars.compile_for(params)
            if params.structured_outputs is not None:
                raise InvalidRequestError(
                    "structured_outputs needs a tokenizer: this engine has none"
                )
        return None

    def _check_speculation(self, params: SamplingParams) -> None:
        wanted = params.num_speculative_tokens
        if not wanted:
            return
        if self._speculative is None:
            raise InvalidRequestError(
                f"num_speculative_tokens={wanted} cannot be honoured: this engine was started "
                f"without speculation; leave it at None, or start the engine with speculation"
            )
        if params.kv_budget is not None:
            raise InvalidRequestError(
                f"num_speculative_tokens={wanted} and kv_budget={params.kv_budget} cannot be "
                f"honoured together: a rejected token would have evicted others; give one of them"
            )
        limit = self._speculative.num_speculative_tokens
        if wanted > limit:
            raise InvalidRequestError(
                f"num_speculative_tokens={wanted} is more than this engine drafts: "
                f"give at most {limit}"
            )

    def _fitted(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`params` with max_tokens cut to the room left after the prompt."""
        room = self._max_model_len - num_prompt_tokens
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {num_prompt_tokens} tokens and the context holds "
                f"{self._max_model_len}, at least one of them for the output: "
                f"shorten the prompt to {self._max_model_len - 1} tokens or raise max_model_len",
                "prompt",
            )
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens={params.min_tokens} does not fit: a prompt of {num_prompt_tokens} "
                f"tokens leaves room for {room} of {self._max_model_len}; "
                f"lower min_tokens or shorten the prompt",
                "min_tokens",
            )
        if params.max_tokens is not None and params.max_tokens <= room:
            return params
        return replace(params, max_tokens=room)
