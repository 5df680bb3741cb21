"""What every wrapper asks of its tensors before a kernel sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from triton import knobs
from triton.runtime.jit import JITFunction

from kernels.errors import KernelInputError

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_GRID_X, MAX_GRID_Y = 2**31 - 1, 65535


def is_interpreting() -> bool:
    """Whether a launch now would be interpreted on the CPU instead of compiled."""
    return bool(knobs.runtime.interpret) or hasattr(JITFunction.run, "interpreter")


def require_runnable(kernel: str, **tensors: torch.Tensor) -> None:
    """All on one device, and on the one that a launch now would run on."""
    devices = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise KernelInputError(f"{kernel}: all tensors must be on one device, not {listed}")
    name, device = next(iter(devices.items()))
    if device.type not in ("cuda", "cpu") or (device.type == "cpu" and not is_interpreting()):
        raise KernelInputError(
            f"{kernel}: {name} is on {device}, a Triton kernel needs a GPU: move it to 'cuda', "
            "or run within kernels.testing.interpreter.use_faithful_interpreter()"
        )
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        raise KernelInputError(
            f"{kernel}: {name} is on {device}, a Triton kernel runs on the current GPU, "
            f"cuda:{torch.cuda.current_device()}: call it within torch.cuda.device({device.index})"
        )


def require_dtype(
    kernel: str, name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]
) -> None:
    if tensor.dtype not in allowed:
        wanted = " or ".join(_short(dtype) for dtype in allowed)
        raise KernelInputError(f"{kernel}: {name} is {_short(tensor.dtype)}, wanted {wanted}")


def require_result_dtype(kernel: str, dtype: torch.dtype) -> None:
    """`dtype` is one that a kernel can round its result to."""
    if dtype not in FLOATS:
        raise KernelInputError(f"{kernel}: dtype {dtype}, wanted float16, bfloat16 or float32")


def require_dimensions(kernel: str, name: str, tensor: torch.Tensor, wanted: str) -> None:
    """As many dimensions as `wanted` names: "[num_tokens, num_heads, head_dim]"."""
    if tensor.dim() != wanted.count(",") + 1:
        raise KernelInputError(f"{kernel}: {name} has shape {tuple(tensor.shape)}, wanted {wanted}")


def require_shape(kernel: str, name: str, tensor: torch.Tensor, wanted: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(wanted):
        raise KernelInputError(
            f"{kernel}: {name} has shape {tuple(tensor.shape)}, wanted {tuple(wanted)}"
        )


def require_adjacent(kernel: str, name: str, tensor: torch.Tensor, what: str = "row") -> None:
    """The elements of the last dimension lie side by side; other strides are free.

    what: the word for that dimension, a "row" or a "head".
    """
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelInputError(
            f"{kernel}: the elements of a {what} of {name} must be adjacent, its last stride is "
            f"{tensor.stride(-1)}: call .contiguous()"
        )


def as_rows(kernel: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """[..., columns] as [rows, columns] on the same memory, the elements of a row adjacent."""
    if tensor.dim() == 0:
        raise KernelInputError(f"{kernel}: {name} is a scalar, wanted at least one dimension")
    require_adjacent(kernel, name, tensor)
    columns = tensor.shape[-1]
    try:
        return tensor.view(tensor[..., 0].numel() if columns else 0, columns)
    except RuntimeError:
        raise KernelInputError(
            f"{kernel}: the rows of {name} (shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()}) do not lie at one distance: call .contiguous()"
        ) from None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
