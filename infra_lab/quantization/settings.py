"""What a quantization run is asked to do, checked before anything is read. Torch-free.

Answers "which knobs does which method have?": one table says, for every method, which bits and
options it knows and which checkpoint formats can hold what it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.quantization.modules import input_sizes

DEFAULT_SEQUENCE = 512
PER_ROW = -1  # as --group: one scale for a whole row
GGUF_GROUP = 32
FP8_BLOCK = 128
_PREFERRED_GROUPS = (128, 64, 32)
_CALIBRATION = frozenset({"num_sequences", "sequence_length", "calibration"})


@dataclass(frozen=True, slots=True)
class Method:
    """Attributes:
    bits: of a weight, the default first.
    formats: that can hold it, the default first; none where no file format here has its numbers.
    options: the settings beside bits and format that it knows, but those of calibration.
    symmetric: the default.
    activation_bits: the default; None leaves activations alone.
    grouped: whether groups of columns have a scale by default.
    fixed_group: the only number of columns with one scale that it knows.
    calibrated: whether it looks at a text.
    """

    bits: tuple[int, ...]
    formats: tuple[str, ...]
    options: frozenset[str] = frozenset()
    symmetric: bool = False
    activation_bits: int | None = None
    grouped: bool = True
    fixed_group: int | None = None
    calibrated: bool = False

    @property
    def known(self) -> frozenset[str]:
        """What a run may be given; anything else would be accepted and do nothing."""
        text = _CALIBRATION if self.calibrated else frozenset()
        return frozenset({"bits", "format"}) | self.options | text


@dataclass(frozen=True, slots=True)
class Format:
    """What a checkpoint format can say.

    Attributes:
        bits: of a weight.
        g_idx: whether groups may be of columns that do not lie together.
        activation_bits: to which layers may round their inputs.
        group_size: the only one, or None for any.
        ragged: whether the last group of a row may be shorter.
    """

    bits: tuple[int, ...]
    g_idx: bool = False
    activation_bits: tuple[int, ...] = ()
    group_size: int | None = None
    ragged: bool = False


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "gptq": Format((2, 3, 4, 8), g_idx=True),
        "awq": Format((4,)),
        "compressed-tensors": Format((4, 8), g_idx=True, activation_bits=(8,)),
        "bitsandbytes": Format((4, 8), activation_bits=(8,)),
        "fp8": Format((8,), group_size=FP8_BLOCK, ragged=True),
        "gguf": Format((4, 8), group_size=GGUF_GROUP),
    }
)

_INTEGER_OPTIONS = frozenset({"group_size", "symmetric", "activation_bits"})
_INTEGER_FORMATS = ("gptq", "compressed-tensors", "awq", "gguf")
_FOLDERS = ("gptq", "compressed-tensors", "awq")  # a rotated head is no longer the embedding
_FOUR_FIRST = (4, 2, 3, 5, 6, 7, 8)

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "rtn": Method(
            _FOUR_FIRST,
            _INTEGER_FORMATS,
            _INTEGER_OPTIONS | {"clip"},
        ),
        "gptq": Method(
            _FOUR_FIRST,
            _INTEGER_FORMATS,
            _INTEGER_OPTIONS | {"act_order", "static_groups", "damping", "clip"},
            calibrated=True,
        ),
        "awq": Method(
            _FOUR_FIRST,
            ("awq", "compressed-tensors", "gptq"),
            _INTEGER_OPTIONS,
            calibrated=True,
        ),
        "smoothquant": Method(
            (8, 2, 3, 4, 5, 6, 7),
            ("compressed-tensors",),
            _INTEGER_OPTIONS | {"alpha"},
            symmetric=True,
            activation_bits=8,
            grouped=False,
            calibrated=True,
        ),
        "rotation": Method(
            _FOUR_FIRST,
            _FOLDERS,
            _INTEGER_OPTIONS | {"seed"},
        ),
        "quip": Method(
            _FOUR_FIRST,
            _FOLDERS,
            _INTEGER_OPTIONS | {"damping", "seed"},
            calibrated=True,
        ),
        "nf4": Method(
            (4,),
            ("bitsandbytes",),
            fixed_group=64,
        ),
        "mxfp4": Method(
            (4,),
            ("compressed-tensors",),
            fixed_group=32,
        ),
        "fp8": Method(
            (8,),
            ("compressed-tensors", "fp8"),
            activation_bits=8,
            grouped=False,
        ),
        "llm_int8": Method(
            (8,),
            ("bitsandbytes",),
            frozenset({"outlier_threshold"}),
            symmetric=True,
            activation_bits=8,
            grouped=False,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class QuantizationSettings:
    """Everything that decides what comes out, so that two runs with the same are the same.

    Attributes:
        group_size: consecutive columns with one scale; None: one a row.
        symmetric: grids with zero in the middle, or with a zero point of their own.
        activation_bits: of each token's input, rounded when it comes; None: not at all.
        act_order: GPTQ takes columns of large inputs first.
        static_groups: and its groups are of neighbouring columns all the same.
        damping: part of the mean of the Hessian's diagonal that is added to it.
        clip: shrink ranges to where the rounding costs least.
        alpha: SmoothQuant's share of the outliers that moves into the weights; "auto" finds the
            best of each input.
        outlier_threshold: LLM.int8()'s, in units of the activation.
        seed: of random rotations.
        num_sequences, sequence_length: of the calibration text.
    """

    method: str
    bits: int
    format: str | None
    group_size: int | None = None
    symmetric: bool = False
    activation_bits: int | None = None
    act_order: bool = True
    static_groups: bool = True
    damping: float = 0.01
    clip: bool = False
    alpha: float | Literal["auto"] = "auto"
    outlier_threshold: float = 6.0
    seed: int = 0
    num_sequences: int = 30
    sequence_length: int = DEFAULT_SEQUENCE

    @property
    def has_g_idx(self) -> bool:
        """Whether groups are of columns that do not lie together."""
        reordered = self.method == "gptq" and self.act_order and not self.static_groups
        return reordered and self.group_size is not None

    @property
    def is_calibrated(self) -> bool:
        return METHODS[self.method].calibrated

    def described(self) -> dict[str, Any]:
        """What matters of it, JSON-ready: no calibration of a method that has none."""
        always = {"method", "group_size", "symmetric", "activation_bits"}
        kept = always | METHODS[self.method].known
        return {name: value for name, value in asdict(self).items() if name in kept}


def choose_settings(
    method_name: str, config: ModelConfig, given: Mapping[str, Any]
) -> QuantizationSettings:
    """Settings from what was asked for, by the names of QuantizationSettings, and the method's own
    defaults for what was not (None).

    `group_size` PER_ROW asks for one scale a row; not given it is the largest of 128, 64 and 32
    that divides every layer's inputs. Raises UsageError that says what the method knows instead.
    """
    method = _method(method_name)
    wanted = {name: value for name, value in given.items() if value is not None}
    refuse_unknown_options(method_name, wanted)
    bits = wanted.pop("bits", method.bits[0])
    if bits not in method.bits:
        known = ", ".join(map(str, sorted(method.bits)))
        raise UsageError(f"{method_name} has weights of {known} bits, not {bits}")
    format_name = wanted.pop("format", None)
    own = _format(format_name)
    wanted["group_size"] = _group_size(wanted.get("group_size"), method, own, config)
    wanted.setdefault("symmetric", method.symmetric)
    if own is None or method.activation_bits in own.activation_bits:
        wanted.setdefault("activation_bits", method.activation_bits)
    wanted.setdefault("sequence_length", min(DEFAULT_SEQUENCE, config.max_position_embeddings))
    _check_numbers(wanted)
    settings = QuantizationSettings(method=method_name, bits=bits, format=format_name, **wanted)
    if format_name is not None:
        require_format(settings)
        return settings
    suited = (name for name in method.formats if _why_unable(settings, name) is None)
    return replace(settings, format=next(suited, None))


def require_format(settings: QuantizationSettings) -> None:
    """Raises UsageError unless the settings' format can hold what they make."""
    if settings.format is not None:
        reason = _why_unable(settings, settings.format)
        if reason is not None:
            raise UsageError(reason)
        return
    formats = METHODS[settings.method].formats
    reasons = "; ".join(str(_why_unable(settings, name)) for name in formats)
    raise UsageError(
        f"no format here keeps {settings.method} of {settings.bits} bits so "
        f"({reasons or 'none keeps this method'}): `quantize compare` measures it all the same"
    )


def _why_unable(settings: QuantizationSettings, name: str) -> str | None:
    """Why a format cannot hold what the settings make, or None."""
    own, formats = FORMATS[name], METHODS[settings.method].formats
    if name not in formats:
        suited = ", ".join(formats) or "no format here"
        return f"{settings.method} is kept as {suited}, not as {name}"
    if settings.bits not in own.bits:
        return f"{name} keeps {' or '.join(map(str, own.bits))} bits, not {settings.bits}"
    if settings.has_g_idx and not own.g_idx:
        return f"{name} keeps groups of neighbouring columns, and act-order makes others"
    if settings.activation_bits is not None and settings.activation_bits not in own.activation_bits:
        return f"{name} cannot say that inputs are rounded to {settings.activation_bits} bits"
    if own.group_size not in (None, settings.group_size):
        return f"{name} has groups of {own.group_size}, not of {settings.group_size or 'a row'}"
    if name == "gguf" and settings.bits == 8 and not settings.symmetric:
        return "gguf keeps 8 bits symmetric only"
    return None


def _method(name: str) -> Method:
    if name not in METHODS:
        raise UsageError(f"no method {name!r}: there are {', '.join(METHODS)}")
    return METHODS[name]


def _format(name: str | None) -> Format | None:
    if name is not None and name not in FORMATS:
        raise UsageError(f"no format {name!r}: there are {', '.join(FORMATS)}")
    return None if name is None else FORMATS[name]


def refuse_unknown_options(method_name: str, given: Mapping[str, Any]) -> None:
    """Raises UsageError for a setting with a value that the method would not look at."""
    method = _method(method_name)
    for option, value in given.items():
        if value is not None and option not in method.known:
            known = ", ".join(sorted(map(_spelled, method.known - {"bits", "format"})))
            raise UsageError(
                f"{method_name} has no {_spelled(option)}: beside bits it knows "
                f"{known or 'no settings'}"
            )


def _spelled(option: str) -> str:
    """As the command spells it."""
    return {"num_sequences": "samples"}.get(option, option.replace("_", "-"))


def _group_size(
    given: int | None, method: Method, own: Format | None, config: ModelConfig
) -> int | None:
    """Raises UsageError for one that does not divide every layer's inputs."""
    sizes = input_sizes(config)
    fitting = [
        size
        for size in _PREFERRED_GROUPS
        if all(in_features % size == 0 for in_features in sizes.values())
    ]
    if given is None and own is not None:
        given = own.group_size
    if given is None:
        given = method.fixed_group
    if given is None:
        return next(iter(fitting), None) if method.grouped else None
    if given == PER_ROW:
        return None
    if given < 1:
        raise UsageError(f"a group has at least 1 column, or is {PER_ROW} for a row, not {given}")
    for module, in_features in sizes.items():
        if in_features % given and not (own is not None and own.ragged):
            suited = " or ".join(map(str, [*fitting, f"{PER_ROW} (a row)"]))
            raise UsageError(
                f"a group of {given} does not divide the {in_features} inputs of {module} in this "
                f"model: give {suited}"
            )
    return given


def _check_numbers(given: Mapping[str, Any]) -> None:
    activation_bits = given.get("activation_bits")
    if activation_bits not in (None, 4, 8):
        raise UsageError(f"activations have 4 or 8 bits, not {activation_bits}")
    for name in ("alpha", "damping"):
        if given.get(name, "auto") != "auto" and not 0 <= given[name] <= 1:
            raise UsageError(f"{name} is a share from 0 to 1, not {given[name]}")
    for name in ("num_sequences", "sequence_length"):
        if given.get(name, 1) < 1:
            raise UsageError(f"{name.replace('_', ' ')} must be at least 1, not {given[name]}")
    if not given.get("outlier_threshold", 1) > 0:
        raise UsageError(f"outlier threshold must be above 0, not {given['outlier_threshold']}")
