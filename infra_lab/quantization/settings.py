"""What a quantization run is asked to do, checked before anything is read. Torch-free.

Answers "which knobs does which method have?": one table says, for every method, which bits and
options it knows and which checkpoint formats can hold what it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.quantization.modules import input_sizes

DEFAULT_SEQUENCE = 512
PER_ROW = -1  # as --group: one scale for a whole row
GGUF_GROUP = 32
FP8_BLOCK = 128
_PREFERRED_GROUPS = (128, 64, 32)
_INTEGER_BITS = (2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Method:
    """Attributes:
    summary: one line for people.
    bits: of a weight, the default first.
    formats: that can hold it, the default first; none where no file format here has its numbers.
    options: the settings beside bits, format and seed that it knows.
    symmetric: the default.
    activation_bits: the default; None leaves activations alone.
    grouped: whether groups of columns have a scale by default.
    fixed_group: the only number of columns with one scale that it knows.
    calibrated: whether it looks at a text.
    """

    summary: str
    bits: tuple[int, ...]
    formats: tuple[str, ...]
    options: frozenset[str] = frozenset()
    symmetric: bool = False
    activation_bits: int | None = None
    grouped: bool = True
    fixed_group: int | None = None
    calibrated: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """What a checkpoint format can say.

    Attributes:
        bits: of a weight.
        act_order: whether groups may be of columns that do not lie together.
        activation_bits: to which layers may round their inputs.
        group_size: the only one, or None for any.
    """

    bits: tuple[int, ...]
    act_order: bool = False
    activation_bits: tuple[int, ...] = ()
    group_size: int | None = None


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "gptq": Format((2, 3, 4, 8), act_order=True),
        "awq": Format((4,)),
        "compressed-tensors": Format((4, 8), act_order=True, activation_bits=(8,)),
        "bitsandbytes": Format((4, 8), activation_bits=(8,)),
        "fp8": Format((8,), activation_bits=(8,)),
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
            "round to nearest: no calibration, the baseline",
            _FOUR_FIRST,
            _INTEGER_FORMATS,
            _INTEGER_OPTIONS | {"clip"},
        ),
        "gptq": Method(
            "column by column, later columns make up for each error",
            _FOUR_FIRST,
            _INTEGER_FORMATS,
            _INTEGER_OPTIONS | {"act_order", "damping", "clip"},
            calibrated=True,
        ),
        "awq": Method(
            "columns of large inputs are scaled up before rounding",
            _FOUR_FIRST,
            ("awq", "compressed-tensors", "gptq"),
            _INTEGER_OPTIONS,
            calibrated=True,
        ),
        "smoothquant": Method(
            "outliers move from activations into weights, then both are rounded",
            (8, 2, 3, 4, 5, 6, 7),
            ("compressed-tensors",),
            _INTEGER_OPTIONS | {"alpha"},
            symmetric=True,
            activation_bits=8,
            grouped=False,
            calibrated=True,
        ),
        "rotation": Method(
            "the residual stream is rotated, which spreads outliers, then rounded to nearest",
            _FOUR_FIRST,
            _FOLDERS,
            _INTEGER_OPTIONS,
        ),
        "quip": Method(
            "the same rotation, then LDLQ, which feeds errors back",
            _FOUR_FIRST,
            _FOLDERS,
            _INTEGER_OPTIONS | {"damping"},
            calibrated=True,
        ),
        "nf4": Method(
            "the 16 quantiles of a normal distribution, a scale for 64 of them",
            (4,),
            ("bitsandbytes",),
            fixed_group=64,
        ),
        "mxfp4": Method(
            "e2m1 floats, a power of two for 32 of them",
            (4,),
            ("compressed-tensors",),
            fixed_group=32,
        ),
        "fp8": Method(
            "e4m3 floats, a scale a row; activations likewise",
            (8,),
            ("compressed-tensors", "fp8"),
            activation_bits=8,
            grouped=False,
        ),
        "llm_int8": Method(
            "int8, columns of outlying activations in full precision",
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
        damping: part of the mean of the Hessian's diagonal that is added to it.
        clip: shrink ranges to where the rounding costs least.
        alpha: SmoothQuant's share of the outliers that moves into the weights.
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
    act_order: bool = False
    damping: float = 0.01
    clip: bool = False
    alpha: float = 0.5
    outlier_threshold: float = 6.0
    seed: int = 0
    num_sequences: int = 30
    sequence_length: int = DEFAULT_SEQUENCE

    @property
    def is_calibrated(self) -> bool:
        return METHODS[self.method].calibrated

    def described(self) -> dict[str, Any]:
        """What matters of it, JSON-ready: no calibration of a method that has none."""
        method = METHODS[self.method]
        values = asdict(self)
        always = {"method", "bits", "format", "group_size", "symmetric", "activation_bits"}
        sampled = {"num_sequences", "sequence_length"} if method.calibrated else set()
        seeded = {"seed"} if self.method in ("rotation", "quip") else set()
        kept = always | sampled | seeded | method.options
        return {name: value for name, value in values.items() if name in kept}


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
    _refuse_foreign_options(method_name, method, wanted)
    bits = wanted.pop("bits", method.bits[0])
    if bits not in method.bits:
        known = ", ".join(map(str, sorted(method.bits)))
        raise UsageError(f"{method_name} has weights of {known} bits, not {bits}")
    format_name = wanted.pop("format", None)
    if format_name is not None and format_name not in FORMATS:
        raise UsageError(f"no format {format_name!r}: there are {', '.join(FORMATS)}")
    if format_name == "gguf":
        wanted.setdefault("group_size", GGUF_GROUP)
    wanted["group_size"] = _group_size(wanted.get("group_size"), method, config)
    wanted.setdefault("symmetric", method.symmetric)
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
    if settings.act_order and not own.act_order:
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


def _refuse_foreign_options(name: str, method: Method, given: Mapping[str, Any]) -> None:
    own = {"bits", "format", "seed", "num_sequences", "sequence_length"} | method.options
    for option in given:
        if option not in own:
            known = ", ".join(sorted(one.replace("_", "-") for one in method.options))
            raise UsageError(
                f"{name} has no {option.replace('_', '-')}: beside bits it knows "
                f"{known or 'no settings'}"
            )


def _group_size(given: int | None, method: Method, config: ModelConfig) -> int | None:
    """Raises UsageError for one that does not divide every layer's inputs."""
    sizes = input_sizes(config)
    fitting = [
        size
        for size in _PREFERRED_GROUPS
        if all(in_features % size == 0 for in_features in sizes.values())
    ]
    given = method.fixed_group if given is None else given
    if given is None:
        return next(iter(fitting), None) if method.grouped else None
    if given == PER_ROW:
        return None
    if given < 1:
        raise UsageError(f"a group has at least 1 column, or is {PER_ROW} for a row, not {given}")
    for module, in_features in sizes.items():
        if in_features % given:
            suited = " or ".join(map(str, [*fitting, f"{PER_ROW} (a row)"]))
            raise UsageError(
                f"a group of {given} does not divide the {in_features} inputs of {module} in this "
                f"model: give {suited}"
            )
    return given


def _check_numbers(given: Mapping[str, Any]) -> None:
    activation_bits = given["activation_bits"]
    if activation_bits not in (None, 4, 8):
        raise UsageError(f"activations have 4 or 8 bits, not {activation_bits}")
    for name in ("alpha", "damping"):
        if name in given and not 0 <= given[name] <= 1:
            raise UsageError(f"{name} is a share from 0 to 1, not {given[name]}")
    for name in ("num_sequences", "sequence_length"):
        if given.get(name, 1) < 1:
            raise UsageError(f"{name.replace('_', ' ')} must be at least 1, not {given[name]}")
    if not given.get("outlier_threshold", 1) > 0:
        raise UsageError(f"outlier threshold must be above 0, not {given['outlier_threshold']}")
