"""Puts an engine together from a model's name and a config: the one place that knows all parts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from infra_lab.attention.backend import AttentionBackend, AttentionShape
from infra_lab.attention.channel_keys_backend import ChannelKeysBackend
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.attention.torch_backend import TorchAttentionBackend
from infra_lab.attention.triton_backend import TritonAttentionBackend
from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.cache.swap_space import SwapSpace
from infra_lab.config import EngineConfig
from infra_lab.engine.build_speculation import build_speculation, load_draft_model
from infra_lab.engine.engine_core import EngineCore
from infra_lab.engine.event_log import EngineStarted, EventLog
from infra_lab.engine.input_processor import InputProcessor
from infra_lab.engine.lora_registry import LoRARegistry
from infra_lab.engine.output_processor import OutputProcessor
from infra_lab.engine.scheduler import Scheduler
from infra_lab.engine.swap_cost import SwapCost
from infra_lab.errors import UsageError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.registry import model_class
from infra_lab.models.tokenizer import Tokenizer
from infra_lab.models.weights import Weights
from infra_lab.native.library import NativeUnavailableError
from infra_lab.native.memory import keep_freed_memory
from infra_lab.sampling.grammar import GrammarCompiler
from infra_lab.worker.host_kv_cache import HostKVCache
from infra_lab.worker.kv_cache import kv_cache_format
from infra_lab.worker.model_runner import ModelRunner

DEFAULT_KV_CACHE_BYTES = 1 << 30
GIB = 1 << 30


def build_engine(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer | None,
    config: EngineConfig,
    event_log: EventLog | None = None,
    on_tensor: Callable[[str], None] | None = None,
    draft_checkpoint: Checkpoint | None = None,
) -> EngineCore:
    """Loads the weights and allocates the cache.

    Args:
        tokenizer: None for an engine that takes and gives token ids only.
        on_tensor: told the name of each tensor as it is read, for a progress bar.
        draft_checkpoint: of the draft model that `config.speculative` names, if it names one.

    Raises:
        ModelLoadError: the checkpoint is damaged or unsupported.
        UsageError: the config asks for what this machine or model does not have.
    """
    model_config = checkpoint.config
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, model_config, device)
    max_model_len = choose_max_model_len(config, model_config)
    if device.type == "cpu":
        keep_freed_memory()
    model = model_class(model_config.architecture)(
        model_config, Weights(checkpoint, dtype, device, on_read=on_tensor), max_model_len
    )
    draft_model = load_draft_model(config, model, draft_checkpoint, max_model_len)
    draft_config = None if draft_model is None else draft_model.config
    num_blocks = choose_num_blocks(config, model_config, max_model_len, dtype, device, draft_config)
    backend = choose_attention_backend(
        config.attention,
        model.attention_shape,
        config.block_size,
        dtype,
        device,
        config.kv_cache_dtype,
        config.sparse_kv,
    )

    def choose_draft_backend(shape: AttentionShape) -> AttentionBackend[Any]:
        """A draft model keeps its keys and values as they are."""
        return choose_attention_backend(config.attention, shape, config.block_size, dtype, device)

    grammars = None
    if tokenizer is not None:
        grammars = GrammarCompiler(tokenizer, model_config.vocab_size)
    # Block 0 is the null block: it pads block tables and belongs to no request.
    pool_bytes = num_blocks * _pool_block_bytes(config, model_config, dtype, draft_config)
    num_host_blocks = choose_num_host_blocks(
        config, model_config, dtype, pool_bytes if device.type == "cpu" else 0
    )
    runner = ModelRunner(
        model,
        backend,
        num_blocks + 1,
        config.block_size,
        config.pretouch_kv_cache,
        grammars,
        config.max_lora_rank,
        num_host_blocks=num_host_blocks + 1 if num_host_blocks else 0,
        kv_cache_dtype=config.kv_cache_dtype,
        sparse_kv=config.sparse_kv,
    )
    kv_cache = KVCacheManager(num_blocks + 1, config.block_size, config.enable_prefix_caching)
    swap_space = SwapSpace(num_host_blocks + 1, kv_cache) if num_host_blocks else None
    engine = EngineCore(
        config=config,
        scheduler=Scheduler(
            config,
            kv_cache,
            max_model_len,
            swap_space=swap_space,
            swap_cost=choose_swap_cost(config, runner.host_cache),
        ),
        executor=runner,
        input_processor=InputProcessor(
            tokenizer, model_config.vocab_size, max_model_len, grammars, config.speculative
        ),
        output_processor=OutputProcessor(tokenizer),
        # The tokenizer's, which are the checkpoint's, or its own where the checkpoint names none.
        eos_token_ids=tokenizer.eos_token_ids if tokenizer else model_config.eos_token_ids,
        event_log=event_log,
        lora=LoRARegistry(runner.adapters, config.max_loras),
        speculation=build_speculation(
            config, model, draft_model, kv_cache, max_model_len, choose_draft_backend
        ),
    )
    if engine.event_log.enabled:
        engine.event_log.append(_started(engine, checkpoint.path, num_blocks, max_model_len))
    return engine


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError('device "cuda" was asked for, but torch sees no GPU: use device "cpu"')
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UsageError(f'device must be "auto", "cpu" or "cuda", not {name!r}')
    return torch.device(name)


def choose_dtype(name: str, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    """ "auto" is fp32 on a CPU, where half precision is rarely faster, else the checkpoint's."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else model_config.dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def choose_attention_backend(
    name: str,
    shape: AttentionShape,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    kv_cache_dtype: str = "auto",
    sparse_kv: bool = False,
) -> AttentionBackend[Any]:
    """As named; "auto" is Triton on a GPU, the C kernel for fp32 on a CPU where it compiles, and
    torch everywhere else, each where it knows the cache's format."""
    unable = _why_unable(kv_cache_dtype, sparse_kv)
    if name in unable:
        raise UsageError(f"attention {name!r} {unable[name]}: use attention 'torch' or 'auto'")
    if name == "auto":
        name = "torch"
        if device.type == "cuda" and find_spec("triton") and "triton" not in unable:
            name = "triton"
        elif NativeAttentionBackend.supports(dtype, device) and "native" not in unable:
            name = "native"
    if name == "triton":
        return TritonAttentionBackend(shape, block_size, dtype, device)
    if name == "native":
        if device.type != "cpu" or dtype != torch.float32:
            raise UsageError(
                f"attention 'native' computes fp32 on the CPU, not {str(dtype)[6:]} on "
                f"{device.type}: use attention 'auto'"
            )
        try:
            return NativeAttentionBackend(shape, block_size)
        except NativeUnavailableError as reason:
            raise UsageError(f"attention 'native' is not to be had here: {reason}") from None
    if kv_cache_dtype == "int8_per_channel_keys":
        return ChannelKeysBackend(shape, block_size, dtype, device)
    return TorchAttentionBackend(shape, block_size, dtype, device)


def _why_unable(kv_cache_dtype: str, sparse_kv: bool) -> dict[str, str]:
    """The backends that do not know such a cache, with the reason."""
    if sparse_kv:
        reason = "keeps every token, and sparse_kv lets requests have a budget"
        return {"native": reason, "triton": reason}
    unable = {}
    if kv_cache_dtype != "auto":
        unable["native"] = f"keeps keys and values in fp32, not in kv_cache_dtype {kv_cache_dtype}"
    if kv_cache_dtype == "int8_per_channel_keys":
        unable["triton"] = "has a scale for each token and head, and none for each channel"
    return unable


def choose_max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    limit = model_config.max_position_embeddings
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise UsageError(
            f"max_model_len {config.max_model_len} exceeds the model's context of {limit} tokens: "
            f"give at most {limit}"
        )
    return config.max_model_len


def choose_num_blocks(
    config: EngineConfig,
    model_config: ModelConfig,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    draft_config: ModelConfig | None = None,
) -> int:
    """Usable blocks: as configured, else a share of free memory, and never more than
    max_num_seqs requests of max_model_len could use. A draft model's keys and values, in blocks
    of the same ids, come out of the same memory."""
    block_bytes = _pool_block_bytes(config, model_config, dtype, draft_config)
    available = _available_bytes(device)
    if config.num_blocks is not None:
        num_blocks = config.num_blocks
    elif config.kv_cache_bytes is not None:
        num_blocks = config.kv_cache_bytes // block_bytes
        if num_blocks == 0:
            raise UsageError(
                f"kv_cache_bytes {config.kv_cache_bytes:,} holds no block: one block of "
                f"{config.block_size} tokens takes {block_bytes:,} bytes in this model"
            )
    else:
        share = min(DEFAULT_KV_CACHE_BYTES, available // 4)
        if device.type == "cuda":
            share = int(available * 0.85)
        useful = config.max_num_seqs * -(-max_model_len // config.block_size)
        num_blocks = max(1, min(share // block_bytes, useful))
    if num_blocks * block_bytes > available:
        raise UsageError(
            f"a KV pool of {num_blocks} blocks needs {num_blocks * block_bytes / GIB:.2f} GiB, "
            f"but {available / GIB:.2f} GiB are free: lower num_blocks or kv_cache_bytes"
        )
    return num_blocks


def _pool_block_bytes(
    config: EngineConfig,
    model_config: ModelConfig,
    dtype: torch.dtype,
    draft_config: ModelConfig | None,
) -> int:
    block_bytes = _block_bytes(config, model_config, dtype)
    if draft_config is not None:
        block_bytes += config.block_size * draft_config.kv_bytes_per_token(dtype.itemsize)
    return block_bytes


def _block_bytes(config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype) -> int:
    layout = kv_cache_format(
        model_config, config.block_size, dtype, config.kv_cache_dtype, config.sparse_kv
    )
    return layout.block_bytes * model_config.num_hidden_layers


def choose_num_host_blocks(
    config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype, spoken_for: int = 0
) -> int:
    """Usable blocks of the swap space; 0 is none. spoken_for: bytes of host memory that are free
    now and that the KV pool is about to take, as it does where the device is the host."""
    block_bytes = _block_bytes(config, model_config, dtype)
    num_blocks, given = config.swap_space_bytes // block_bytes, config.swap_space_bytes
    if given and num_blocks == 0:
        raise UsageError(
            f"swap_space_bytes {given:,} holds no block: one block of {config.block_size} tokens "
            f"takes {block_bytes:,} bytes in this model"
        )
    available = max(0, psutil.virtual_memory().available - spoken_for)
    if given > available:
        beside = " that the KV pool leaves" if spoken_for else ""
        raise UsageError(
            f"a swap space of {given / GIB:.2f} GiB does not fit into the "
            f"{available / GIB:.2f} GiB of free host memory{beside}: lower swap_space_bytes"
        )
    return num_blocks


def choose_swap_cost(config: EngineConfig, host_cache: HostKVCache | None) -> SwapCost | None:
    """None where there is nothing to choose between."""
    if host_cache is None:
        return None
    bytes_per_s = config.swap_bytes_per_s
    if bytes_per_s is None and config.preemption_mode == "auto":
        bytes_per_s = host_cache.measure_bytes_per_s()
    return SwapCost(
        bytes_per_block=host_cache.bytes_per_block,
        bytes_per_s=bytes_per_s or math.inf,
        tokens_per_s=config.recompute_tokens_per_s,
        mode=config.preemption_mode,
    )


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _started(engine: EngineCore, path: Path, num_blocks: int, max_model_len: int) -> EngineStarted:
    config = engine.config
    return EngineStarted(
        time_s=time.monotonic(),
        model=path.name,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
    )
