"""Which launches fit which GPU."""

from __future__ import annotations

import pytest
import torch

from kernels.devices import device_of, kind_of, warp_size
from kernels.testing.architectures import ARCHITECTURES


@pytest.mark.parametrize(
    ("capability", "kind"),
    [
        ((8, 0), "sm_80"), ((8, 6), "sm_89"), ((8, 7), "sm_89"), ((8, 9), "sm_89"),
        ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((10, 3), "sm_100"), ((12, 0), "sm_89"),
    ],
)  # fmt: skip
def test_every_compute_capability_has_a_kind_that_the_gate_compiles_for(
    capability: tuple[int, int], kind: str
) -> None:
    assert kind_of(capability) == kind
    assert kind in ARCHITECTURES


def test_an_interpreted_launch_is_one_of_a_kind_too() -> None:
    assert device_of(torch.zeros(1)).arch in ARCHITECTURES


def test_warps_have_the_threads_that_the_gate_reckons_with() -> None:
    assert all(warp_size(name) == kind.warp_size for name, kind in ARCHITECTURES.items())
