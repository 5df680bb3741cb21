"""The settings of speculative decoding, checked once at construction. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.errors import UsageError

METHODS = ("ngram", "draft_model")
MAX_SPECULATIVE_TOKENS = 32
DEFAULT_NUM_SPECULATIVE_TOKENS = 4
# With shorter n-grams more is found and less of it is right; longer ones are rarely found.
DEFAULT_LOOKUP_MIN, DEFAULT_LOOKUP_MAX = 2, 4


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Who drafts, how many tokens, from what.

    Attributes:
        method: "ngram" (prompt look-up: copies what followed the same tokens before) or
            "draft_model" (a cheaper model over the same vocabulary).
        num_speculative_tokens: most tokens drafted for one request and step, 1 to 32.
        prompt_lookup_min, prompt_lookup_max: of "ngram", the lengths of the suffix looked up,
            longest first; None is 2 and 4.
        draft_model: of "draft_model", a model by name, folder, file or hub id.
        draft_layers: of "draft_model" in the place of `draft_model`, how many of the target's own
            first layers draft, its final norm and head after them; weights are shared.
        adaptive: whether fewer tokens, or none, are drafted for a request while its drafts are
            rejected too often to pay for themselves.
    """

    method: str
    num_speculative_tokens: int = DEFAULT_NUM_SPECULATIVE_TOKENS
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    draft_model: str | None = None
    draft_layers: int | None = None
    adaptive: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(
                f"the method of speculation must be one of {', '.join(METHODS)}, "
                f"not {self.method!r}"
            )
        k = self.num_speculative_tokens
        if not _is_integer(k) or not 1 <= k <= MAX_SPECULATIVE_TOKENS:
            raise UsageError(
                f"num_speculative_tokens must be an integer from 1 to {MAX_SPECULATIVE_TOKENS}, "
                f"not {k!r}: to draft nothing, leave speculation off"
            )
        if not isinstance(self.adaptive, bool):
            raise UsageError(f"adaptive must be true or false, not {self.adaptive!r}")
        if self.method == "ngram":
            self._check_ngram()
        else:
            self._check_draft_model()

    @property
    def lookup_lengths(self) -> tuple[int, int]:
        """Shortest and longest n-gram of prompt look-up."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None:
            low = DEFAULT_LOOKUP_MIN if high is None else min(DEFAULT_LOOKUP_MIN, high)
        return low, max(DEFAULT_LOOKUP_MAX, low) if high is None else high

    def _check_ngram(self) -> None:
        for name in ("draft_model", "draft_layers"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{name} belongs to method 'draft_model': 'ngram' drafts without a model"
                )
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if value is not None and (not _is_integer(value) or value < 1):
                raise UsageError(f"{name} must be an integer of at least 1, not {value!r}")
        low, high = self.lookup_lengths
        if low > high:
            raise UsageError(
                f"prompt_lookup_min ({low}) must not exceed prompt_lookup_max ({high})"
            )

    def _check_draft_model(self) -> None:
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{name} belongs to method 'ngram': a draft model looks nothing up"
                )
        if (self.draft_model is None) == (self.draft_layers is None):
            raise UsageError(
                "method 'draft_model' needs either draft_model (another model of the same "
                "vocabulary) or draft_layers (the first layers of the model itself): give one"
            )
        if self.draft_layers is not None and (
            not _is_integer(self.draft_layers) or self.draft_layers < 1
        ):
            raise UsageError(
                f"draft_layers must be an integer of at least 1, not {self.draft_layers!r}"
            )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
