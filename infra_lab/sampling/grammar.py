"""From the form that an answer must have to a grammar over token ids.

llguidance (MIT, Rust) does the parsing: an Earley parser over a lexer of regex derivatives,
walked along a trie of the vocabulary. This module decides what it is asked: which forms are
refused, and that none is compiled twice. Torch-free. Answers "how does constrained decoding
know which of 50,000 tokens keep the JSON valid, and what does it cost?".
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from infra_lab.errors import InvalidRequestError
from infra_lab.sampling.grammar_state import GrammarState
from infra_lab.sampling.json_schema import has_finite_document, prepare
from infra_lab.sampling.regex_dialect import alternatives, to_engine
from infra_lab.sampling_params import SamplingParams
from infra_lab.structured_outputs import StructuredOutputsParams

MAX_CACHED = 64  # compiled grammars; one takes some kilobytes
# Bounded: a small model that may always add white space does so until max_tokens.
WHITESPACE = r"( |\n {0,16})?"


class GrammarTokenizer(Protocol):
    """What is needed of models.tokenizer.Tokenizer."""

    backend: Any
    eos_token_ids: tuple[int, ...]


class CompiledGrammar:
    """A grammar that can be met, over one vocabulary."""

    def __init__(self, matcher: Any, vocabulary: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size

    def start(
        self,
        end_token_ids: Collection[int] = (),
        min_tokens: int = 0,
        token_ids: Sequence[int] = (),
    ) -> GrammarState:
        """The state before the first token, or after `token_ids`: of the output alone, so that
        it can be made again wherever the tokens are known.

        Args:
            end_token_ids: special tokens that end this request's document, beside EOS.
            min_tokens: see GrammarState.
        """
        ends = {*self._vocabulary.eos_tokens, *end_token_ids}
        state = GrammarState(self._matcher.deep_copy(), ends, self._vocab_size, min_tokens)
        for token_id in token_ids:
            state.advance(token_id)
        return state

    def accepts(self, text: str) -> bool:
        """Whether this text is a whole document."""
        matcher = self._matcher.deep_copy()
        token_ids = self._vocabulary.greedy_tokenize(text)
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids)) and bool(
            matcher.is_accepting()
        )


class GrammarCompiler:
    """Compiles forms for one tokenizer and keeps the last MAX_CACHED of them.

    Any thread may ask: a server compiles beside the engine's thread, which then finds it done.
    The first form also reads the vocabulary, a quarter of a second for 50,000 tokens.

    Args:
        vocab_size: entries of a row of logits; ids beyond the tokenizer's are never allowed.
    """

    def __init__(self, tokenizer: GrammarTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: Any = None
        self._compiled: OrderedDict[StructuredOutputsParams, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()  # of the dictionary; no thread waits for another's compiling
        self.num_compilations = 0

    def compile(self, form: StructuredOutputsParams) -> CompiledGrammar:
        """The grammar of a form, compiled when it is first asked for.

        Raises InvalidRequestError, with the reason, for a form that is malformed, that nothing
        can meet or that asks for what is not supported, and where llguidance is missing.
        """
        with self._lock:
            if form in self._compiled:
                self._compiled.move_to_end(form)
                return self._compiled[form]
        grammar = self._compile(form)
        with self._lock:
            self._compiled[form] = grammar
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return grammar

    def compile_for(self, params: SamplingParams) -> CompiledGrammar | None:
        """The grammar that a request needs, or None.

        Raises InvalidRequestError also for a stop token that a document may have as text: it
        would end the document in its middle.
        """
        if params.structured_outputs is None:
            return None
        grammar = self.compile(params.structured_outputs)
        for token_id in params.stop_token_ids:
            if not self._vocabulary.is_special_token(token_id):
                raise InvalidRequestError(
                    f"stop_token_ids names token {token_id}, which may be part of the document "
                    f"that structured_outputs asks for: name special tokens only, or leave it out"
                )
        return grammar

    def _compile(self, form: StructuredOutputsParams) -> CompiledGrammar:
        llguidance = import_llguidance()
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary(llguidance)
        self.num_compilations += 1
        matcher_class = llguidance.LLMatcher
        if form.regex is not None:
            source = matcher_class.grammar_from_regex(to_engine(form.regex))
        elif form.choice is not None:
            source = matcher_class.grammar_from_regex(alternatives(form.choice))
        else:
            source = _json_grammar(matcher_class, form)
        matcher = matcher_class(self._vocabulary, source, log_level=0)
        if matcher.is_error():
            raise InvalidRequestError(_reason(form, matcher.get_error()))
        compiled = CompiledGrammar(matcher, self._vocabulary, self._vocab_size)
        if compiled.start().error is not None:
            raise InvalidRequestError(_reason(form, "no document meets it"))
        return compiled

    def _read_vocabulary(self, llguidance: Any) -> Any:
        eos = list(self._tokenizer.eos_token_ids)
        if not eos:
            raise InvalidRequestError(
                "structured_outputs needs an end-of-sequence token, and this model names none"
            )
        try:
            return llguidance.LLTokenizer(
                self._tokenizer.backend.to_str(), n_vocab=self._vocab_size, eos_token=eos
            )
        except ValueError as error:
            raise InvalidRequestError(
                f"structured_outputs cannot work with this model's tokenizer: {error}"
            ) from error


def import_llguidance() -> Any:
    """Raises InvalidRequestError where it is not installed."""
    try:
        import llguidance
    except ImportError as error:
        raise InvalidRequestError(
            "structured_outputs needs the package llguidance, which is not installed here: "
            f"run pip install llguidance ({error})"
        ) from error
    return llguidance


def _json_grammar(matcher_class: Any, form: StructuredOutputsParams) -> str:
    schema = {"type": "object"} if form.json is None else prepare(form.json)
    options: dict[str, object] = {"lenient": False, "coerce_one_of": False}
    if form.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = WHITESPACE
    text = json.dumps(schema, ensure_ascii=False)
    try:
        source: str = matcher_class.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:  # its reader of JSON has limits of its own, as on depth
        raise InvalidRequestError(_reason(form, str(error))) from error
    # The engine has the first word: what is malformed must not get as far as the second check.
    is_sound = not matcher_class.validate_grammar(source)
    if is_sound and not has_finite_document(schema):
        raise InvalidRequestError(_reason(form, "its recursion never ends"))
    return source


def _reason(form: StructuredOutputsParams, error: str) -> str:
    """One line: what the engine says, without the copy of the grammar that follows it."""
    kind = "json" if form.json is not None else "regex" if form.regex is not None else "form"
    given = form.json if form.json is not None else form.regex or ""
    lines = [line.strip() for line in error.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    cause = causes[0] if causes else lines[0]
    if cause.startswith("panic"):
        cause = f"the grammar engine has a fault there ({cause}): write it in another way"
    return f"structured_outputs: {kind} {given:.80} cannot be used: {cause}"
