"""`infra-lab models`: get, list, verify and describe models.

`info` answers "how much KV cache does one token of this model take?" from the model's own
config, without loading a weight.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from infra_lab.cli.options import AsJson, CacheDir, Command, ModelArgument, new_app
from infra_lab.cli.terminal import human_bytes, print_json, print_table, pull_progress
from infra_lab.errors import ModelLoadError
from infra_lab.models.catalog import KnownModel
from infra_lab.models.store import FileState, ModelStore
from infra_lab.paths import default_cache_dir

app = new_app(
    help="Get, list and describe models.", epilog="Example: infra-lab models pull smollm2-135m"
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `infra-lab models list`.")]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `models info` says; field names are those of its JSON."""

    name: str
    path: str
    format: str
    stored_as: str
    bits_per_parameter: float
    licence: str | None
    size_bytes: int
    architecture: str
    parameters: int
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool
    context: int
    eos_token_ids: list[int]
    kv_bytes_per_token_fp32: int
    kv_bytes_per_token_bf16: int


@app.command(cls=Command, epilog="Example: infra-lab models pull smollm2-135m")
def pull(
    name: Name,
    cache_dir: CacheDir = None,
    quiet_if_present: Annotated[
        bool, typer.Option("--quiet-if-present", help="Say nothing if there is nothing to do.")
    ] = False,
) -> None:
    """Fetch a model, verify it and keep it; mend a damaged one."""
    store = _store(cache_dir)
    model = store.known(name)
    state = store.state(model, read=True)
    if state is FileState.PRESENT:
        if not quiet_if_present:
            typer.echo(f"{name} is there and intact: {store.path(model)}")
        return
    if state is not FileState.MISSING:
        typer.echo(f"the cached file is damaged ({state.value}): fetching it again", err=True)
    with pull_progress() as report:
        path = store.pull(name, report)
    typer.echo(f"{name} is ready: {path}")


@app.command(cls=Command, epilog="Example: infra-lab models verify smollm2-135m")
def verify(
    name: Name,
    cache_dir: CacheDir = None,
) -> None:
    """Read a pulled model whole and compare its SHA-256."""
    store = _store(cache_dir)
    model = store.known(name)
    state = store.state(model, read=True)
    if state is not FileState.PRESENT:
        raise ModelLoadError(
            f"{store.path(model)} is {state.value}: run `infra-lab models pull {name}`"
        )
    typer.echo(f"{name} is intact: {store.path(model)}")


@app.command("list", cls=Command, epilog="Example: infra-lab models list --json")
def list_models(cache_dir: CacheDir = None, json: AsJson = False) -> None:
    """Show the models that infra-lab knows by name, and which are here."""
    store = _store(cache_dir)
    rows = [_row(store, model) for model in store.catalog.values()]
    if json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("name", "format", "size", "licence", "state", "where", box=None, pad_edge=False)
    table.columns[-1].overflow = "fold"
    for row in rows:
        size = human_bytes(row["size_bytes"])
        table.add_row(row["name"], row["format"], size, row["licence"], row["state"], row["path"])
    print_table(table)
    typer.echo("A folder, a .gguf file or a Hugging Face hub id (org/name) works as well.")


@app.command(cls=Command, epilog="Example: infra-lab models info smollm2-135m")
def info(
    model: ModelArgument,
    cache_dir: CacheDir = None,
    json: AsJson = False,
) -> None:
    """Describe a model: shape, parameters, KV bytes per token, context."""
    store = _store(cache_dir)
    facts = describe(model, store.resolve(model), store.catalog.get(model))
    if json:
        print_json(asdict(facts))
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for label, value in _lines(facts):
        table.add_row(label, value)
    print_table(table)


def describe(name: str, path: Path, known: KnownModel | None) -> ModelInfo:
    """The facts of the model at `path`; raises ModelLoadError when it cannot be read."""
    from infra_lab.models.loader import read_config
    from infra_lab.models.parameters import num_parameters
    from infra_lab.models.storage import storage

    config = read_config(path)
    stored = storage(path, config)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return ModelInfo(
        name=name,
        path=str(path),
        format=known.format if known else ("GGUF" if path.is_file() else "safetensors"),
        stored_as=stored.stored_as,
        bits_per_parameter=round(stored.bits_per_parameter, 3),
        licence=known.licence if known else None,
        size_bytes=sum(file.stat().st_size for file in files),
        architecture=config.architecture,
        parameters=num_parameters(config),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        attention_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        tied_embeddings=config.tie_word_embeddings,
        context=config.max_position_embeddings,
        eos_token_ids=list(config.eos_token_ids),
        kv_bytes_per_token_fp32=config.kv_bytes_per_token(4),
        kv_bytes_per_token_bf16=config.kv_bytes_per_token(2),
    )


def _lines(facts: ModelInfo) -> list[tuple[str, str]]:
    heads = f"{facts.attention_heads} query, {facts.kv_heads} KV, head_dim {facts.head_dim}"
    tied = "tied" if facts.tied_embeddings else "untied"
    full_context = facts.kv_bytes_per_token_fp32 * facts.context
    return [
        ("name", facts.name),
        ("architecture", facts.architecture),
        ("parameters", f"{facts.parameters:,} ({tied} embeddings)"),
        ("layers", str(facts.layers)),
        ("hidden size", str(facts.hidden_size)),
        ("heads", heads),
        ("vocabulary", f"{facts.vocab_size:,}"),
        ("context", f"{facts.context:,} tokens"),
        ("EOS ids", ", ".join(map(str, facts.eos_token_ids)) or "none"),
        (
            "KV per token",
            f"{facts.kv_bytes_per_token_fp32:,} bytes in fp32, "
            f"{facts.kv_bytes_per_token_bf16:,} in bf16",
        ),
        ("KV, full context", f"{human_bytes(full_context)} in fp32"),
        ("format", facts.format),
        ("stored as", f"{facts.stored_as}; {facts.bits_per_parameter:.2f} bits a parameter"),
        ("size", human_bytes(facts.size_bytes)),
        ("licence", facts.licence or "see the model's own page"),
        ("file", facts.path),
    ]


def _row(store: ModelStore, model: KnownModel) -> dict[str, Any]:
    state = store.state(model)
    return {
        "name": model.name,
        "title": model.title,
        "format": model.format,
        "size_bytes": model.size,
        "licence": model.licence,
        "state": "pulled" if state is FileState.PRESENT else state.value,
        "path": str(store.path(model)),
    }


def _store(cache_dir: Path | None) -> ModelStore:
    return ModelStore(cache_dir or default_cache_dir())
