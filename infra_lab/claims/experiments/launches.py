"""How many kernels a decoder layer launches: torch's operations and our Triton kernels, counted.

A decode step of a tiny Llama with two layers less one with one is a layer, with nothing of the
embedding, the head or the tables. Torch's operations pass its dispatcher, where views (which launch
nothing) and allocations are left out; Triton's launches are told by the interpreter that runs them
on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra_lab.config import DEFAULT_BLOCK_SIZE

if TYPE_CHECKING:
    import torch

    from infra_lab.models.config import ModelConfig
    from infra_lab.models.decoder import DecoderForCausalLM

_PROMPT = 24
# What our configuration and transformers' have by the same names.
_SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
# They make or name memory and launch nothing, though the dispatcher calls them no views.
_NO_LAUNCH = frozenset(
    {"empty", "empty_strided", "empty_like", "new_empty", "_unsafe_view", "detach", "lift_fresh"}
)
# How an interpreted launch gets its arguments into NumPy and back; the fused layers use neither.
_INTERPRETERS_OWN = ("copy_", "set_")


@dataclass
class Launches:
    """Operations by name: torch's, and Triton kernels'."""

    torch: Counter[str] = field(default_factory=Counter)
    triton: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.torch.total() + self.triton.total()

    def less(self, other: Launches) -> Launches:
        """What is here and not there."""
        return Launches(self.torch - other.torch, self.triton - other.triton)


@contextmanager
def counted_operations(found: Launches) -> Iterator[None]:
    """Adds every operation of torch that would launch a kernel on a GPU."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            if not func.is_view and name not in _NO_LAUNCH:
                found.torch[name] += 1
            return func(*args, **(kwargs or {}))

    with Counting():  # type: ignore[no-untyped-call]
        yield


def one_layer(step: Callable[[int], Launches]) -> Launches:
    """A step with two layers less one with one."""
    return step(2).less(step(1))


def reference_step(num_layers: int, attention: str) -> Launches:
    """A decode step of transformers' Llama, as its authors wrote it: `attention` is "eager" or
    "sdpa"."""
    import inspect

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = tiny_config(num_layers)
    config = LlamaConfig(
        **{name: getattr(ours, name) for name in _SHAPE}, attn_implementation=attention
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    # Renamed in transformers 5.20 or so; the old name warns there.
    is_new = "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    name = "cache" if is_new else "past_key_values"
    found = Launches()
    with torch.no_grad():
        cached = model(torch.arange(_PROMPT)[None], use_cache=True)[name]
        with counted_operations(found):
            model(torch.tensor([[1]]), use_cache=True, **{name: cached})
    return found


def our_torch_step(num_layers: int) -> Launches:
    """The engine's layers in plain torch: q, k, v and gate, up in one product each."""
    found = Launches()
    step = _decode_step(num_layers, triton=False)
    with counted_operations(found):
        step()
    return found


def our_fused_step(num_layers: int) -> Launches | None:
    """The engine's layers with its Triton kernels; None where they cannot be interpreted."""
    try:
        from kernels.testing.interpreter import use_faithful_interpreter
        from kernels.testing.observer import LaunchObserver
    except ImportError:
        return None
    found = Launches()

    class Watching(LaunchObserver):
        def begin_launch(self, kernel: str, grid: Any, arguments: Any) -> None:
            found.triton[kernel] += 1

    with use_faithful_interpreter(Watching()):
        step = _decode_step(num_layers, triton=True)
        with counted_operations(found):
            step()
    for name in _INTERPRETERS_OWN:
        del found.torch[name]
    return found


def _decode_step(num_layers: int, triton: bool) -> Callable[[], object]:
    """What decodes one token after _PROMPT cached ones; in bf16, for which no layer has a native
    CPU kernel."""
    import numpy as np
    import torch

    from infra_lab.attention.backend import AttentionBackend, AttentionMetadata
    from infra_lab.attention.torch_backend import TorchAttentionBackend
    from infra_lab.attention.triton_backend import TritonAttentionBackend
    from infra_lab.worker.kv_cache import allocate_kv_cache

    model, cpu = _tiny_model(num_layers), torch.device("cpu")
    backend_class: type[AttentionBackend[Any]] = (
        TritonAttentionBackend if triton else TorchAttentionBackend
    )
    backend = backend_class(model.attention_shape, DEFAULT_BLOCK_SIZE, model.dtype, cpu)  # type: ignore[call-arg]
    num_blocks = 1 + -(-(_PROMPT + 1) // DEFAULT_BLOCK_SIZE)
    caches = allocate_kv_cache(model.config, num_blocks, DEFAULT_BLOCK_SIZE, model.dtype, cpu)
    table = np.arange(1, num_blocks)[None]
    slot = (
        table[0, _PROMPT // DEFAULT_BLOCK_SIZE] * DEFAULT_BLOCK_SIZE + _PROMPT % DEFAULT_BLOCK_SIZE
    )
    metadata = AttentionMetadata(np.array([0, 1]), np.array([_PROMPT + 1]), table, np.array([slot]))
    plan = backend.plan(metadata)
    token, position = torch.tensor([1]), torch.tensor([_PROMPT])
    return lambda: model.forward(token, position, backend, caches, plan)


def tiny_config(num_layers: int) -> ModelConfig:
    """Llama's proportions, as small as kernels take them."""
    from infra_lab.models.config import ModelConfig

    return ModelConfig(
        architecture="llama",
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        dtype="bfloat16",
    )


def _tiny_model(num_layers: int) -> DecoderForCausalLM:
    import torch

    from infra_lab.models.registry import model_class
    from infra_lab.models.weights import Weights

    config = tiny_config(num_layers)
    weights = Weights(RandomCheckpoint(config), torch.bfloat16, torch.device("cpu"))
    return model_class("llama")(config, weights)


class RandomCheckpoint:
    """Implements `Checkpoint`: a model of that shape, of which only the shape matters."""

    def __init__(self, config: ModelConfig) -> None:
        from infra_lab.models.shapes import parameter_shapes

        self.path = Path("random")
        self.config = config
        self._shapes = parameter_shapes(config)

    def names(self) -> list[str]:
        return list(self._shapes)

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        import torch

        numbers = torch.full(self._shapes[name], 0.01, dtype=dtype)
        return numbers if out is None else out.copy_(numbers)

    def quantized(self, name: str) -> None:
        """No matrix is kept in codes."""

    def activation_format(self, name: str) -> None:
        """No layer rounds its input."""
