"""How the tokens of one request are chosen, and when it stops.

Torch-free and validated at construction, so that a bad value is refused for that request
alone before it reaches a batch. Answers "what does each sampling parameter do, which values
make sense, and which combinations contradict each other?". What depends on a model's
vocabulary or context length is checked in `engine.input_processor`.
"""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from infra_lab.errors import InvalidRequestError
from infra_lab.structured_outputs import StructuredOutputsParams

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
MAX_BEAM_WIDTH = 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Every parameter is honoured or refused; none is silently ignored.

    Numbers are normalised (`temperature=0` becomes 0.0, `top_k=-1` becomes 0, `stop="a"`
    becomes `("a",)`), so two equal requests compare equal. Filters apply in the order
    logit_bias, penalties, temperature, min_p, top_k, top_p.

    Attributes:
        n: samples to draw from one prompt, at least 1. Sample i is seeded with `seed + i`.
        best_of: draw this many samples, at least n, and give back the n whose mean log-probability
            per token is highest, best first, when all have ended; None is n.
        temperature: divides the logits, at least 0. Below 1 sharpens the distribution, above 1
            flattens it; 0 is greedy: always the likeliest token.
        top_k: keep only the k likeliest tokens; 0 (or -1) keeps all.
        top_p: keep the smallest set of likeliest tokens whose probabilities reach top_p,
            in (0, 1]; 1 keeps all.
        min_p: drop tokens less likely than min_p times the likeliest one, in [0, 1]; 0 drops none.
        repetition_penalty: for tokens of prompt and output, divides positive logits and
            multiplies negative ones, above 0; 1 changes nothing.
        presence_penalty: subtracted once from the logit of each token already in the output,
            in [-2, 2].
        frequency_penalty: subtracted once per occurrence in the output, in [-2, 2].
        logit_bias: token id to a number in [-100, 100] that is added to its logit.
        seed: 0 to 2**63 - 1 (what a signed 64-bit integer holds); the same seed gives the same
            tokens whoever shares the batch. None lets the engine draw one.
        max_tokens: most output tokens, at least 1; None is as many as the context holds.
        min_tokens: output tokens before which neither EOS, a stop token id nor a stop string
            may end the request, 0 to max_tokens.
        stop: strings that end the output: a string or a sequence of non-empty strings.
        stop_token_ids: token ids that end the output.
        include_stop_str_in_output: whether the text keeps what stopped it.
        ignore_eos: whether to go on after an end-of-sequence token.
        logprobs: report this many likeliest tokens per output token, 0 to 20; 0 reports only the
            chosen token's log-probability, None nothing.
        prompt_logprobs: the same for the prompt's tokens.
        skip_special_tokens: whether special tokens are left out of the text.
        structured_outputs: the form that the answer must have. Tokens that would break it are
            left out before temperature and filters; `logprobs` still tell the model's own
            distribution. The document comes first where something else would cut or spoil it:
            it may end before min_tokens if it cannot go on, and a stop string ends it only
            where it is whole. Only max_tokens cuts it, with finish_reason "length".
        kv_budget: most tokens whose keys and values are kept in each KV head, at least 1: the
            newest half, and of the older ones those that received most attention (H2O; see
            attention.heavy_hitters). None keeps all. For engines with `sparse_kv`; the request
            takes no part in prefix caching.
        num_speculative_tokens: most tokens drafted for this request in one step: 0 drafts none,
            None is the engine's own number. More than that is refused.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    kv_budget: int | None = None
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        self._normalise_integers()
        self._normalise_numbers()
        self._normalise_collections()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                _refuse(name, value, "true or false", "give a bool")
        form: object = self.structured_outputs
        if form is not None and not isinstance(form, StructuredOutputsParams):
            wanted = "a StructuredOutputsParams"
            todo = "StructuredOutputsParams(json=schema) makes one"
            _refuse("structured_outputs", form, wanted, todo)
        self._refuse_contradictions()

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> SamplingParams:
        """Builds parameters from a mapping such as a decoded JSON object.

        Keys of `logit_bias` may be strings of digits, as JSON has no integer keys. An unknown
        name raises InvalidRequestError with the nearest known one.
        """
        if not isinstance(parameters, Mapping):
            raise InvalidRequestError(
                f"sampling parameters must be a mapping of names to values, "
                f"not {type(parameters).__name__}"
            )
        known = [field.name for field in fields(cls)]
        for name in parameters:
            if name not in known:
                raise InvalidRequestError(_unknown_parameter(name, known), str(name))
        values = dict(parameters)
        bias = values.get("logit_bias")
        if isinstance(bias, Mapping):
            values["logit_bias"] = {_integer_from_json_key(key): bias[key] for key in bias}
        if isinstance(form := values.get("structured_outputs"), Mapping):
            values["structured_outputs"] = StructuredOutputsParams.from_dict(form)
        return cls(**values)

    @property
    def num_samples(self) -> int:
        """How many are drawn; `n` are given back."""
        return self.n if self.best_of is None else self.best_of

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def _normalise_integers(self) -> None:
        self._set("n", _integer("n", self.n, 1))
        if self.best_of is not None:
            self._set("best_of", _integer("best_of", self.best_of, 1))
        if self.top_k == -1 and not isinstance(self.top_k, bool):
            self._set("top_k", 0)
        self._set("top_k", _integer("top_k", self.top_k, 0, todo="give 0 to keep every token"))
        self._set("min_tokens", _integer("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None:
            todo = "leave it at None for as many as the context holds"
            self._set("max_tokens", _integer("max_tokens", self.max_tokens, 1, todo=todo))
        if self.seed is not None:
            todo = "leave it at None for a random one"
            self._set("seed", _integer("seed", self.seed, 0, MAX_SEED, todo=todo))
        if self.kv_budget is not None:
            todo = "leave it at None to keep every token"
            self._set("kv_budget", _integer("kv_budget", self.kv_budget, 1, todo=todo))
        if self.num_speculative_tokens is not None:
            name, todo = "num_speculative_tokens", "leave it at None for the engine's own number"
            self._set(name, _integer(name, self.num_speculative_tokens, 0, todo=todo))
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                todo = "leave it at None for no log-probabilities"
                self._set(name, _integer(name, value, 0, MAX_LOGPROBS, todo=todo))

    def _normalise_numbers(self) -> None:
        todo = "give 0 for greedy decoding or 1 for the model's own distribution"
        self._set("temperature", _number("temperature", self.temperature, 0, todo=todo))
        todo = "give 1 to keep every token"
        self._set("top_p", _number("top_p", self.top_p, 0, 1, above=True, todo=todo))
        todo = "give 0 to keep every token"
        self._set("min_p", _number("min_p", self.min_p, 0, 1, todo=todo))
        name, todo = "repetition_penalty", "give 1 for no penalty"
        self._set(name, _number(name, self.repetition_penalty, 0, above=True, todo=todo))
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            self._set(name, _number(name, value, -2, 2, todo="give 0 for no penalty"))

    def _normalise_collections(self) -> None:
        self._set("stop", _stop_strings(self.stop))
        ids: object = () if self.stop_token_ids is None else self.stop_token_ids
        if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Collection):
            _refuse("stop_token_ids", ids, "a list of token ids", "give e.g. [2]")
        self._set("stop_token_ids", tuple(_integer("stop_token_ids", item, 0) for item in ids))
        given: object = self.logit_bias
        if given is None:
            return
        if not isinstance(given, Mapping):
            wanted = "a mapping of token ids to numbers"
            _refuse("logit_bias", given, wanted, "give e.g. {42: -100}")
        todo = "use -100 to forbid a token and 100 to all but force it"
        bias = {
            _integer("logit_bias key", key, 0): _number(
                f"logit_bias[{key}]", value, -100, 100, todo=todo
            )
            for key, value in given.items()
        }
        self._set("logit_bias", bias or None)

    def _refuse_contradictions(self) -> None:
        """The one place for values that are each allowed but make no sense together."""
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequestError(
                f"best_of={self.best_of} is less than n={self.n}: raise best_of or lower n",
                "best_of",
            )
        if self.num_samples > 1 and self.is_greedy:
            name, count = "n" if self.best_of is None else "best_of", self.num_samples
            raise InvalidRequestError(
                f"{name}={count} with temperature=0 would give {count} equal samples: greedy "
                f"decoding is deterministic; give {name}=1, or a temperature above 0",
                name,
            )
        if self.structured_outputs is not None and self.ignore_eos:
            raise InvalidRequestError(
                "ignore_eos with structured_outputs contradicts itself: after the end of the "
                "document nothing may follow; leave ignore_eos out",
                "ignore_eos",
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}: "
                f"lower min_tokens or raise max_tokens",
                "min_tokens",
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Beam search: deterministic, so none of what shapes a random choice belongs here.

    Attributes:
        beam_width: continuations kept after every token, 1 to 64.
        n: of those that are finished, how many to give back, best first; None is all.
        max_tokens: most output tokens of each, at least 1.
        length_penalty: a score is the summed log-probability over (output tokens) to this power:
            above 0 favours long outputs, below 0 short ones.
        early_stopping: True stops as soon as beam_width continuations have ended; False when the
            likeliest unfinished one, at its present length, cannot beat the worst of them;
            "never" when it could not even at max_tokens.
        ignore_eos: whether to go on after an end-of-sequence token.
        skip_special_tokens: whether special tokens are left out of the text.
    """

    beam_width: int = 4
    n: int | None = None
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        width = _integer("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        object.__setattr__(self, "beam_width", width)
        n = width if self.n is None else _integer("n", self.n, 1, width, todo="raise beam_width")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "max_tokens", _integer("max_tokens", self.max_tokens, 1))
        penalty = _number("length_penalty", self.length_penalty, -100, 100, todo="give e.g. 1")
        object.__setattr__(self, "length_penalty", penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            _refuse("early_stopping", self.early_stopping, 'true, false or "never"', "give one")
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "true or false", "give a bool")

    def as_sampling_params(self) -> SamplingParams:
        """What the outputs' shape is by: how many, how long, with log-probabilities."""
        return SamplingParams(
            n=self.n or 1,
            max_tokens=self.max_tokens,
            logprobs=0,
            skip_special_tokens=self.skip_special_tokens,
        )

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> BeamSearchParams:
        """Builds parameters from a mapping such as a decoded JSON object.

        One of random sampling is refused by name, and so is an unknown one.
        """
        known = [field.name for field in fields(cls)]
        sampling = {field.name for field in fields(SamplingParams)}
        for name in parameters:
            if name in sampling and name not in known:
                raise InvalidRequestError(
                    f"beam search takes no {name}: it follows the likeliest continuations; leave "
                    f"{name} out, or sample without beam_width"
                )
            if name not in known:
                raise InvalidRequestError(_unknown_parameter(name, known))
        return cls(**parameters)


def _refuse(name: str, value: object, wanted: str, todo: str) -> NoReturn:
    given = repr(value)
    if len(given) > 80:
        given = f"{given[:77]}..."
    param = re.split(r"\W", name, maxsplit=1)[0]  # "logit_bias[42]" is about logit_bias
    raise InvalidRequestError(f"{name} must be {wanted}, not {given}; {todo}", param)


def _integer(
    name: str,
    value: object,
    low: int,
    high: int | None = None,
    *,
    todo: str = "give a whole number in that range",
) -> int:
    wanted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool):
        _refuse(name, value, wanted, todo)
    try:
        # operator.index also takes NumPy's integers, and no float or string.
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _refuse(name, value, wanted, todo)
    if number < low or (high is not None and number > high):
        _refuse(name, value, wanted, todo)
    return number


def _number(
    name: str,
    value: object,
    low: float,
    high: float = math.inf,
    *,
    above: bool = False,
    todo: str,
) -> float:
    """A finite number in [low, high], or in (low, high] when `above`."""
    floor = f"above {low}" if above else f"at least {low}"
    wanted = f"a finite number {floor}" + ("" if high == math.inf else f" and at most {high}")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        _refuse(name, value, wanted, todo)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number > high or number < low or (above and number == low):
        _refuse(name, value, wanted, todo)
    return number


def _stop_strings(stop: object) -> tuple[str, ...]:
    wanted = "a non-empty string or a list of non-empty strings"
    todo = 'give e.g. ["\\n\\n"], or [] for none'
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else stop
    if isinstance(strings, (bytes, Mapping)) or not isinstance(strings, Collection):
        _refuse("stop", stop, wanted, todo)
    for item in strings:
        if not isinstance(item, str) or not item:
            _refuse("stop", stop, wanted, todo)
    return tuple(strings)


def _integer_from_json_key(key: object) -> object:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key


def _unknown_parameter(name: object, known: list[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    if near:
        return f"unknown sampling parameter {name!r}: did you mean {near[0]!r}?"
    return f"unknown sampling parameter {name!r}: known are {', '.join(sorted(known))}"
