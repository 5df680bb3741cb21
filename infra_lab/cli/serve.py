"""`infra-lab serve`: a model behind OpenAI's HTTP API."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra_lab.cli.options import (
    AttentionName,
    BlockSize,
    CacheDir,
    Command,
    Device,
    DraftLayers,
    DraftModel,
    Dtype,
    Events,
    KVCacheDtype,
    KVCacheMB,
    MaxNumSeqs,
    Model,
    NumSpeculativeTokens,
    Speculative,
    count_option,
    new_app,
)
from infra_lab.cli.session import EngineOptions, load_llm, open_event_log, speculative_config
from infra_lab.cli.terminal import make_console
from infra_lab.errors import UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from infra_lab.engine.event_log import EventLog
    from infra_lab.engine.llm import LLM
    from infra_lab.server.settings import ServerSettings

app = new_app()
KEY_VARIABLE = "INFRA_LAB_API_KEY"


@app.command(
    cls=Command,
    epilog="Example: infra-lab serve --model smollm2-135m --port 8000; then, in another terminal: "
    "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
    '-d \'{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hello!"}]}\'',
)
def serve(
    model: Model = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen; 0.0.0.0: on every address.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="0 takes any that is free.")
    ] = 8000,
    served_model_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What requests call the model; default: as --model."),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR", help="A LoRA adapter that requests may name as their model."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"Keys that open the door, one a line; or set {KEY_VARIABLE}."
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Web pages from there may call; *: from anywhere."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which the server may be called."),
    ] = None,
    max_queue: Annotated[
        int, count_option("Prompts that may wait; more get 429.", minimum=0)
    ] = 256,
    max_requests_per_client: Annotated[
        int | None, count_option("Prompts that one client may have under way; default: no limit.")
    ] = None,
    max_body_kb: Annotated[int, count_option("Longest body of a request, in KiB.")] = 2048,
    request_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds that an answer may take.")
    ] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds that answers get at shut-down.")
    ] = 30.0,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Let the log show what is asked.")
    ] = False,
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="mean or last: serve embeddings; default: if the model's folder says how.",
        ),
    ] = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: Annotated[
        int | None,
        count_option(
            "Tokens that one step may compute: more is longer gaps; default: 128 on a CPU, "
            "512 on a GPU."
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, count_option("Most tokens of prompt and answer; default: the model's context.")
    ] = None,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    attention: AttentionName = "auto",
    kv_cache_dtype: KVCacheDtype = "auto",
    kv_cache_mb: KVCacheMB = None,
    speculative: Speculative = None,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = None,
    draft_layers: DraftLayers = None,
    events: Events = None,
    cache_dir: CacheDir = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients expect it.

    Ctrl-C or SIGTERM ends it: running answers are finished first.
    """
    from infra_lab.models.pooling import pooling_of
    from infra_lab.models.store import resolve
    from infra_lab.server.loading import load_for_serving, serving_config
    from infra_lab.server.logs import configure_logging
    from infra_lab.server.runner import listen, serve
    from infra_lab.server.settings import LOOPBACK_HOSTS, ServerSettings

    if log_level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level must be debug, info, warning or error, not {log_level!r}")
    is_local = host in LOOPBACK_HOSTS
    settings = ServerSettings(
        model_name=served_model_name or model,
        api_keys=_api_keys(api_key_file),
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=allowed_hosts(host, allowed_host or []),
        max_body_bytes=max_body_kb * 1024,
        max_queue=max_queue,
        max_requests_per_client=max_requests_per_client,
        request_timeout_s=request_timeout,
        drain_timeout_s=drain_timeout,
        log_prompts=log_prompts,
        pooling=pooling,
    )
    adapters = _adapters(lora or [], settings.model_name)
    drafting = speculative_config(speculative, num_speculative_tokens, draft_model, draft_layers)
    options = EngineOptions(
        model, cache_dir, dtype, device, kv_cache_mb, attention, None, kv_cache_dtype, drafting
    )
    sizes = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "block_size": block_size,
    }
    sock = listen(host, port)
    try:
        if pooling is None:
            settings = replace(settings, pooling=pooling_of(resolve(model, cache_dir)))
        with open_event_log(events) as log:
            given = {name: size for name, size in sizes.items() if size is not None}
            config = serving_config(device, given)
            llm = load_for_serving(lambda: _load(options, log, config, adapters))
            _announce(llm, settings, host, sock.getsockname()[1], list(adapters), is_local)
            configure_logging(log_level)
            serve(llm, settings, sock)
    finally:
        sock.close()


def _load(
    options: EngineOptions, log: EventLog, config: dict[str, Any], adapters: dict[str, Path]
) -> LLM:
    llm = load_llm(options, log, **config)
    for name, path in adapters.items():
        llm.load_lora(name, path)
    return llm


def _api_keys(path: Path | None) -> tuple[str, ...]:
    """Not an option: what stands on a command line is seen by every user of the machine."""
    keys = [key] if (key := os.environ.get(KEY_VARIABLE, "")) else []
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {path}: cannot be read: {error}") from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise UsageError(f"--api-key-file {path}: has no key in it: write one on each line")
        keys += found
    return tuple(keys)


def allowed_hosts(host: str, given: list[str]) -> tuple[str, ...] | None:
    """Names that a Host header may have: on loopback only its own and those given, or a web page
    could reach the server under a name of its own (DNS rebinding); None is any."""
    from infra_lab.server.settings import LOOPBACK_HOSTS

    own = LOOPBACK_HOSTS if host in LOOPBACK_HOSTS else ()
    return (*own, *given) or None


def _adapters(given: list[str], model_name: str) -> dict[str, Path]:
    adapters: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--lora takes NAME=DIR, not {one!r}")
        if name in adapters or name == model_name:
            raise UsageError(f"--lora {one}: the name {name!r} is taken: give each its own")
        adapters[name] = Path(path)
    return adapters


def _announce(
    llm: LLM,
    settings: ServerSettings,
    host: str,
    port: int,
    adapters: list[str],
    is_local: bool,
) -> None:
    """What somebody who has just started the server wants to know."""
    engine = llm.engine
    num_blocks, block_size = engine.scheduler.stats(), engine.config.block_size
    total = num_blocks.blocks_used + num_blocks.blocks_cached + num_blocks.blocks_free
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{port}"
    door = f"{len(settings.api_keys)} API key(s)" if settings.api_keys else "no API key"
    rows = {
        "model": ", ".join([settings.model_name, *adapters]),
        "context": f"{engine.scheduler.max_model_len:,} tokens",
        "KV cache": f"{total:,} blocks of {block_size} tokens",
        "batch": f"up to {engine.config.max_num_seqs} running, {settings.max_queue} waiting",
        "embeddings": f"{settings.pooling} pooling" if settings.pooling else "off; see --pooling",
        "door": f"{door}; CORS {', '.join(settings.cors_origins) or 'off'}",
        "API": f"{url}/v1   (schema: /openapi.json, metrics: /metrics)",
    }
    console = make_console()
    for name, text in rows.items():
        console.print(f"{name:<12}{text}", markup=False)
    if not is_local and not settings.api_keys:
        console.print(
            f"warning: anyone who reaches {host} may use this server: set {KEY_VARIABLE}, or give "
            f"--api-key-file",
            markup=False,
        )
    console.print("serving; Ctrl-C ends it", markup=False)
