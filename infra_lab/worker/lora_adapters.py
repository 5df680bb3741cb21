"""The LoRA adapters in a worker's memory, and which of a step's rows each is for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from infra_lab.layers.linear import make_linear
from infra_lab.layers.lora import AdapterRows, LoRALinear, LowRankProduct, StepAdapters
from infra_lab.models.decoder import DecoderForCausalLM, DecoderLayer
from infra_lab.models.peft_adapter import LowRank, read_adapter


class LoRAAdapters:
    """Puts adapters of a rank up to `max_rank` into a model's layers. A model that never gets one
    stays as it is."""

    def __init__(self, model: DecoderForCausalLM, max_rank: int) -> None:
        self._model = model
        self._max_rank = max_rank
        self._step = StepAdapters()
        self._layers: list[dict[str, LoRALinear]] = []

    def load(self, path: Path) -> str:
        """Reads a PEFT folder and makes its adapter ready, under the digest that it returns.

        Raises like `read_adapter`, and then nothing has changed.
        """
        adapter = read_adapter(path, self._model.config, self._max_rank)
        if not self._layers:
            last = self._model.layers[-1]
            self._layers = [self._wrap(layer, layer is last) for layer in self._model.layers]
        for linears, products in zip(self._layers, adapter.layers, strict=True):
            for name, low_rank in products.items():
                linears[name].products[adapter.digest] = self._product(low_rank)
        return adapter.digest

    def unload(self, digest: str) -> None:
        """Frees its memory; no later step may need it."""
        for linears in self._layers:
            for linear in linears.values():
                linear.products.pop(digest, None)

    def begin_step(
        self, adapter_ids: Sequence[str | None], query_lens: Sequence[int], wanted_rows: np.ndarray
    ) -> bool:
        """Tells the layers who is in the step; returns whether any adapter is.

        Args:
            adapter_ids: of each request in the step, in the order of its rows.
            query_lens: how many rows each has.
            wanted_rows: ascending, those that come out of the last layer.
        """
        self._step.all_rows, self._step.wanted_rows = [], []
        present = sorted({one for one in adapter_ids if one is not None})
        if present:
            owners = np.repeat(np.array([one or "" for one in adapter_ids]), query_lens)
            self._step.all_rows = self._grouped(owners, present)
            self._step.wanted_rows = self._grouped(owners[wanted_rows], present)
        return bool(present)

    def end_step(self) -> None:
        """Tells the layers that nobody is in a step: what else uses them, as a draft model made of
        some of them does, gets what the base model gives."""
        self._step.all_rows, self._step.wanted_rows = [], []

    def _grouped(self, owners: np.ndarray, adapter_ids: Sequence[str]) -> list[AdapterRows]:
        groups = []
        for adapter_id in adapter_ids:
            rows = (owners == adapter_id).nonzero()[0]
            indices = None if len(rows) == len(owners) else torch.from_numpy(rows)
            if indices is not None:
                indices = indices.to(self._model.device)
            groups.append(AdapterRows(adapter_id, indices))
        return groups

    def _wrap(self, layer: DecoderLayer, is_last: bool) -> dict[str, LoRALinear]:
        def wrapped(linear: object, takes_wanted_rows: bool) -> LoRALinear:
            return LoRALinear(linear, self._step, takes_wanted_rows)  # type: ignore[arg-type]

        attention, mlp = layer.attention, layer.mlp
        attention.qkv = qkv = wrapped(attention.qkv, False)
        attention.output = output = wrapped(attention.output, is_last)
        mlp.gate_up = gate_up = wrapped(mlp.gate_up, is_last)
        mlp.down = down = wrapped(mlp.down, is_last)
        return {"qkv": qkv, "output": output, "gate_up": gate_up, "down": down}

    def _product(self, low_rank: LowRank) -> LowRankProduct:
        """In the form of the model's own layers: where their kernel gives a row the same bits
        whatever the batch, so does the adapter's product."""
        model = self._model
        shrink, expand = (
            make_linear(matrix.to(model.dtype), device=model.device)
            for matrix in (low_rank.shrink, low_rank.expand)
        )
        return LowRankProduct(shrink, expand)
