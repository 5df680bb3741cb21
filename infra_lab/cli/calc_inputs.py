"""What the words of `infra-lab calc` stand for: a model, a GPU, a number format, checked once.

A model is a name of the calculators' table, a folder, a .gguf file or a hub id (whose config alone
is read), or a shape given in numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra_lab.calculators.hardware import DEVICES, Device, custom_device, device
from infra_lab.calculators.model_table import MODELS, model
from infra_lab.calculators.models import Model, custom_model
from infra_lab.cli.options import count_option
from infra_lab.errors import ModelNotFoundError, UsageError
from infra_lab.paths import default_cache_dir

if TYPE_CHECKING:
    from infra_lab.models.config import ModelConfig

THIS_MACHINE = "this-machine"

ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A name from `infra-lab calc models`, a folder, a .gguf file, a hub id.",
    ),
]
Layers = Annotated[int | None, count_option("Instead of MODEL: layers.")]
Heads = Annotated[int | None, count_option("Instead of MODEL: query heads; default: KV heads.")]
KVHeads = Annotated[int | None, count_option("Instead of MODEL: KV heads.", "--kv-heads")]
HeadDim = Annotated[int | None, count_option("Instead of MODEL: numbers in one head.")]
GPU = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help=f"A name from `infra-lab calc gpus`, or {THIS_MACHINE}, which is then measured.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help="fp32, bf16, fp8, int8, int4-g128, int4-g128-z4, nf4, mxfp4, nvfp4, q4_1...",
    ),
]
Cache = Annotated[
    str,
    typer.Option(
        metavar="FORMAT", help="bf16, fp8, int8-token-head, int4-token-head, int8-engine."
    ),
]
Operands = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE", help="What the products multiply; default: bf16, or fp32 for fp32 weights."
    ),
]
Efficiency = Annotated[float, typer.Option(metavar="X", help="Share of the peak that is reached.")]


def at_least_zero(text: str) -> Any:
    """An option for a number of tokens that may be 0."""
    return count_option(text, minimum=0)


def wanted_model(
    name: str | None,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    cache_dir: Path | None = None,
) -> Model:
    """The model of a command line: by name, or by numbers, never both."""
    numbers = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    given = [option for option, value in {**numbers, "--heads": heads}.items() if value is not None]
    if name is not None:
        if given:
            raise UsageError(f"give a model or numbers, not both: leave {name!r} or {given[0]} out")
        return _named(name, cache_dir)
    if not given:
        raise UsageError(
            "no model: give a name from `infra-lab calc models`, a folder, a .gguf file, or "
            "--layers, --kv-heads and --head-dim"
        )
    if layers is None or kv_heads is None or head_dim is None:
        missing = [option for option, value in numbers.items() if value is None]
        raise UsageError(f"a model in numbers needs {' and '.join(missing)} as well")
    return custom_model(layers, heads or kv_heads, kv_heads, head_dim)


def _named(name: str, cache_dir: Path | None) -> Model:
    try:
        return model(name)
    except UsageError as unknown:
        from infra_lab.models.loader import read_config
        from infra_lab.models.store import ModelStore

        try:
            path = ModelStore(cache_dir or default_cache_dir()).resolve_config(name)
        except ModelNotFoundError:
            if "/" in name or "\\" in name or name.endswith(".gguf"):
                raise
            raise unknown from None
        return shape_of(read_config(path), name)


def shape_of(config: ModelConfig, name: str) -> Model:
    """The calculators' shape of a config that the engine reads."""
    return Model(
        name=name,
        title=name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_context=config.max_position_embeddings,
        tied_embeddings=config.tie_word_embeddings,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias and config.architecture == "llama",
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        source="its own config",
    )


def wanted_device(name: str) -> Device:
    """A GPU of the table, or this machine's processor, measured for some seconds."""
    if name.strip().lower() != THIS_MACHINE:
        return device(name)
    from infra_lab.cli.doctor import buffer_bytes
    from infra_lab.cli.machine import last_level_cache_bytes, read_memory
    from infra_lab.cli.terminal import make_console
    from infra_lab.cli.torch_probe import probe

    memory = read_memory()
    with make_console(stderr=True).status("measuring memory and matrix products"):
        found = probe(buffer_bytes(memory, last_level_cache_bytes()))
    if isinstance(found, str):
        raise UsageError(f"this machine cannot be measured: {found}; try `infra-lab doctor`")
    peaks = {kind: found[f"{kind}_gflop_per_s"] * 1e9 for kind in ("fp32", "bf16")}
    return custom_device(
        THIS_MACHINE, peaks, found["read_gb_per_s"] * 1e9, memory.total, "measured just now"
    )


def known_devices() -> list[Device]:
    return list(DEVICES.values())


def known_models() -> list[Model]:
    return list(MODELS.values())
