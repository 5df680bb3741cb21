"""Tiny models on disk, and random weights for all of their linear layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infra_lab.formats.gguf_blocks import GGUFFormat
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.models.shapes import parameter_shapes
from tests.formats.quantized_weights import weight_for
from tests.models.conftest import hf_settings, make_config, make_weights, write_gguf, write_hf

ForAll = Callable[[Checkpoint, WeightFormat | GGUFFormat], dict[str, QuantizedWeight]]


@pytest.fixture(scope="session")
def tiny() -> Any:
    """As in tests/models: test folders are not packages."""

    class Tiny:
        config = staticmethod(make_config)
        weights = staticmethod(make_weights)
        gguf = staticmethod(write_gguf)
        hf = staticmethod(write_hf)
        hf_settings = staticmethod(hf_settings)

    return Tiny


@pytest.fixture
def tiny_llama(tmp_path: Path) -> HFCheckpoint:
    config = make_config("llama", num_hidden_layers=1)
    return HFCheckpoint(write_hf(tmp_path / "source", config, make_weights(config)))


@pytest.fixture
def weights_for() -> ForAll:
    """A weight for every linear layer of the decoder, in the codes of a format, with scales of
    some hundredths so that logits stay small."""

    def make(
        source: Checkpoint, weight_format: WeightFormat | GGUFFormat
    ) -> dict[str, QuantizedWeight]:
        found = {}
        for name, shape in parameter_shapes(source.config).items():
            if "_proj.weight" in name:
                weight = weight_for(weight_format, *shape, seed=len(found))
                largest = weight.values.nan_to_num().abs().max()
                if torch.all(weight.scales.log2().frac() != 0):
                    weight.scales.mul_(8 / largest)
                found[name] = weight
        return found

    return make
