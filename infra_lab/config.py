"""The settings of an engine, checked once at construction.

Answers "which knobs does a serving engine have, and what does each trade?".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra_lab.errors import UsageError
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative_config import SpeculativeConfig

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTION_BACKENDS = ("auto", "native", "torch", "triton")
KV_CACHE_DTYPES = ("auto", "int8_per_token_head", "fp8_per_token_head", "int8_per_channel_keys")
TOKENS_PER_KEY_GROUP = 16  # whose keys share a scale in each channel; aligned to position 0
SCHEDULING_POLICIES = ("fcfs", "sjf", "priority", "static")
PREEMPTION_MODES = ("auto", "swap", "recompute")
AGING_POLICIES = ("sjf", "priority")
DEFAULT_BLOCK_SIZE = 16  # as vLLM's

# From a prompt's token ids and its parameters to the output tokens to expect.
OutputLengthPredictor = Callable[[Sequence[int], SamplingParams], float]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What can be set about an engine.

    Attributes:
        block_size: tokens in one KV-cache block.
        num_blocks: usable blocks in the pool; None derives it from `kv_cache_bytes`.
        kv_cache_bytes: memory for the pool; None lets the engine choose a default.
        pretouch_kv_cache: whether a pool on a CPU is written at start-up: its memory is held from
            then on and no step waits for it. Else memory comes as blocks are first used.
        max_num_seqs: requests that may run in one step.
        max_num_batched_tokens: tokens that one step may compute (the token budget).
        long_prefill_token_threshold: most prompt tokens of one request in one step; 0 is no cap.
        enable_chunked_prefill: whether a prompt may be split over steps.
        max_model_len: longest prompt + output; None takes the model's own limit.
        enable_prefix_caching: whether full blocks are kept and found by their hash.
        dtype: element type of weights and KV cache; "auto" is fp32 on a CPU and the
            checkpoint's own type on a GPU.
        kv_cache_dtype: "auto" keeps keys and values in `dtype`. Codes of one byte otherwise, with
            a scale for each token and head ("int8_per_token_head", "fp8_per_token_head": e4m3),
            or, for keys, for each channel of 16 tokens ("int8_per_channel_keys": a block also
            has room for one such group as it is, so that large blocks save more).
        sparse_kv: whether a request may have a `kv_budget` (see SamplingParams): 8 bytes more for
            each token and KV head.
        device: "auto", "cpu" or "cuda".
        attention: "native" (C, fp32 on a CPU), "torch" (anywhere), "triton" (a GPU); "auto" is
            the first of triton, native and torch that serves the device and dtype.
        max_loras: LoRA adapters that may be in memory at a time.
        max_lora_rank: largest rank that one of them may have.
        seed: seeds requests that bring no seed of their own; None draws from the system.
        scheduling_policy: "fcfs"; "sjf", the shortest job first; "priority", the lowest number
            first, which preempts; "static", batch by batch. See engine.policies.
        aging_steps: steps of waiting that make up for one level of priority, or for one token of
            a job's length; 0 lets the low ones starve. None is the policy's own choice.
        output_length_predictor: what "sjf" goes by in place of max_tokens.
        swap_space_bytes: host memory for blocks of preempted requests and idle conversations; 0 is
            none.
        preemption_mode: "swap" and "recompute" a preempted request, or "auto", which takes what is
            expected to be faster; without room in the swap space it is recomputed. See
            engine.swap_cost.
        swap_bytes_per_s: what "auto" reckons with; None measures it at start-up.
        recompute_tokens_per_s: what "auto" reckons with; None measures it while running.
        speculative: who drafts tokens to be verified in the next step; None drafts none.
    """

    block_size: int = DEFAULT_BLOCK_SIZE
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    pretouch_kv_cache: bool = False
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    sparse_kv: bool = False
    device: str = "auto"
    attention: str = "auto"
    max_loras: int = 8
    max_lora_rank: int = 64
    seed: int | None = None
    scheduling_policy: str = "fcfs"
    aging_steps: int | None = None
    output_length_predictor: OutputLengthPredictor | None = None
    swap_space_bytes: int = 0
    preemption_mode: str = "auto"
    swap_bytes_per_s: float | None = None
    recompute_tokens_per_s: float | None = None
    speculative: SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_lora_rank"):
            _require_at_least(name, getattr(self, name), 1)
        for name in ("num_blocks", "kv_cache_bytes", "max_model_len"):
            if getattr(self, name) is not None:
                _require_at_least(name, getattr(self, name), 1)
        _require_at_least("max_loras", self.max_loras, 0)
        _require_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise UsageError(
                "num_blocks and kv_cache_bytes both size the KV pool: give one of them"
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.attention not in ATTENTION_BACKENDS:
            raise UsageError(
                f"attention must be one of {', '.join(ATTENTION_BACKENDS)}, not {self.attention!r}"
            )
        self._check_policy()
        self._check_swap()
        self._check_kv_cache_dtype()
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise UsageError(
                f"max_num_seqs ({self.max_num_seqs}) must not exceed max_num_batched_tokens "
                f"({self.max_num_batched_tokens}): every running request needs one of its tokens"
            )
        self._check_speculative()

    def _check_speculative(self) -> None:
        given = self.speculative
        if given is None:
            return
        if not isinstance(given, SpeculativeConfig):
            raise UsageError(
                f"speculative must be a SpeculativeConfig or None, not {given!r}: "
                f'give SpeculativeConfig("ngram"), for one'
            )
        if given.num_speculative_tokens >= self.max_num_batched_tokens:
            raise UsageError(
                f"num_speculative_tokens ({given.num_speculative_tokens}) and the token before "
                f"them do not fit a step of max_num_batched_tokens "
                f"({self.max_num_batched_tokens}): lower the one or raise the other"
            )

    def _check_policy(self) -> None:
        policy = self.scheduling_policy
        if policy not in SCHEDULING_POLICIES:
            raise UsageError(
                f"scheduling_policy must be one of {', '.join(SCHEDULING_POLICIES)}, not {policy!r}"
            )
        if self.aging_steps is not None:
            _require_at_least("aging_steps", self.aging_steps, 0)
            if policy not in AGING_POLICIES:
                raise UsageError(
                    f"aging_steps means nothing to scheduling_policy {policy!r}, which keeps the "
                    f"order of arrival: leave it out, or choose {' or '.join(AGING_POLICIES)}"
                )
        if self.output_length_predictor is None:
            return
        if policy != "sjf":
            raise UsageError(
                f"output_length_predictor is of no use to scheduling_policy {policy!r}: leave it "
                f'out, or choose "sjf"'
            )
        if not callable(self.output_length_predictor):
            raise UsageError(
                f"output_length_predictor must be a function of a prompt's token ids and its "
                f"SamplingParams, not {self.output_length_predictor!r}"
            )

    def _check_swap(self) -> None:
        _require_at_least("swap_space_bytes", self.swap_space_bytes, 0)
        if self.preemption_mode not in PREEMPTION_MODES:
            raise UsageError(
                f"preemption_mode must be one of {', '.join(PREEMPTION_MODES)}, not "
                f"{self.preemption_mode!r}"
            )
        if self.preemption_mode == "swap" and self.swap_space_bytes == 0:
            raise UsageError(
                'preemption_mode "swap" needs somewhere to swap to: set swap_space_bytes'
            )
        for name in ("swap_bytes_per_s", "recompute_tokens_per_s"):
            speed = getattr(self, name)
            if speed is None:
                continue
            if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not speed > 0:
                raise UsageError(f"{name} must be a number above 0, not {speed!r}")
            if self.preemption_mode != "auto" or self.swap_space_bytes == 0:
                raise UsageError(
                    f'{name} is only reckoned with under preemption_mode "auto" with a '
                    f"swap_space_bytes above 0: leave it out, or set these"
                )

    def _check_kv_cache_dtype(self) -> None:
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise UsageError(
                f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, not "
                f"{self.kv_cache_dtype!r}"
            )
        if self.kv_cache_dtype != "int8_per_channel_keys":
            return
        if self.block_size % TOKENS_PER_KEY_GROUP:
            raise UsageError(
                f"kv_cache_dtype 'int8_per_channel_keys' quantizes keys in groups of "
                f"{TOKENS_PER_KEY_GROUP} tokens, and a block of {self.block_size} does not hold "
                f"whole groups: make block_size a multiple of {TOKENS_PER_KEY_GROUP}"
            )
        if self.sparse_kv:
            raise UsageError(
                "sparse_kv drops tokens one by one and kv_cache_dtype 'int8_per_channel_keys' "
                "keeps their keys in groups: use a kv_cache_dtype 'per_token_head' or 'auto'"
            )


def _require_at_least(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{name} must be an integer of at least {minimum}, not {value!r}")
