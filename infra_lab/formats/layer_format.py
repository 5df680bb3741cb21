"""How one linear layer is quantized: its weight, and what it does to its input."""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.formats.weight_format import StoredTensor, WeightFormat

INPUT_SCALE = "input_scale"
_ONE_NUMBER = StoredTensor(((1,), (), (1, 1)), ("F64", "F32", "BF16", "F16"))


@dataclass(frozen=True, slots=True)
class LayerFormat:
    """Attributes:
    weight: the layout of its matrix.
    activation: what happens to its input first; None for nothing.
    fixed_input_scale: the scale of the input lies beside the weight, as `input_scale`.
    """

    weight: WeightFormat
    activation: ActivationFormat | None = None
    fixed_input_scale: bool = False

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        """All that the layer has in its file, by the names that follow the module's."""
        found = self.weight.tensors(out_features, in_features)
        return found | {INPUT_SCALE: _ONE_NUMBER} if self.fixed_input_scale else found

    @property
    def label(self) -> str:
        """For people: "GPTQ int4, groups of 128", with "int8 inputs" where there are some."""
        if self.activation is None:
            return self.weight.label
        kind = "fp8" if self.activation.kind == "fp8" else f"int{self.activation.bits}"
        return f"{self.weight.label}, {kind} inputs"
