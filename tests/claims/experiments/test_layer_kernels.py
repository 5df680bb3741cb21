"""Which operations count as launches, and how many a layer has."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from infra_lab.claims.experiments import launches
from infra_lab.claims.experiments.launches import Launches, counted_operations


def counted(operation: object) -> dict[str, int]:
    found = Launches()
    with counted_operations(found):
        operation()  # type: ignore[operator]
    return dict(found.torch)


def test_views_and_allocations_launch_nothing() -> None:
    x = torch.ones(4, 6)
    assert counted(lambda: x.view(6, 4).T[1:].unsqueeze(0).expand(3, 3, 6)) == {}
    assert counted(lambda: torch.empty(3)) == {}
    assert counted(lambda: x.chunk(2, dim=-1)) == {}


def test_products_and_elementwise_operations_launch_one_each() -> None:
    x = torch.ones(4, 4)
    assert counted(lambda: (x @ x + 1).mul_(2)) == {"mm": 1, "add": 1, "mul_": 1}
    assert counted(lambda: x.reshape(2, 8)) == {}
    assert counted(lambda: x.T.reshape(16)) == {"clone": 1}


def test_a_layer_is_what_the_second_one_adds() -> None:
    def step(num_layers: int) -> Launches:
        return Launches(Counter(mm=2 * num_layers, embedding=1), Counter(norm=num_layers))

    found = launches.one_layer(step)
    assert found.total == 3
    assert dict(found.torch) == {"mm": 2}


def test_the_engines_layer_has_four_products_and_transformers_seven() -> None:
    ours = launches.one_layer(launches.our_torch_step)
    theirs = launches.one_layer(lambda count: launches.reference_step(count, "sdpa"))
    assert ours.torch["mm"] == 4
    assert theirs.torch["mm"] == 7
    assert ours.total < theirs.total


def test_the_fused_layer_is_four_products_and_five_kernels() -> None:
    pytest.importorskip("kernels.testing.interpreter")
    two, one = launches.our_fused_step(2), launches.our_fused_step(1)
    assert two is not None
    assert one is not None
    layer = two.less(one)
    assert dict(layer.torch) == {"mm": 4}
    assert dict(layer.triton) == {
        "rms_norm_kernel": 2,
        "fused_qkv_kernel": 1,
        "paged_attention_kernel": 1,
        "swiglu_kernel": 1,
    }
