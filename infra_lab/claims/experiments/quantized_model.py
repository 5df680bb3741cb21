"""The default model, quantized in memory, and what it then makes of a text.

Serves the experiments about weights and activations: one text, one reference, many settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra_lab.claims.experiments.needs import default_model

if TYPE_CHECKING:
    import torch

    from infra_lab.models.checkpoint import Checkpoint
    from infra_lab.quantization.evaluate import TextQuality


class QualityBench:
    """Attributes: checkpoint and model: the default one; windows: of tokens that are judged, from
    the book's later chapters; base: what the model as it is makes of them; reference: its words."""

    def __init__(self, window: int, num_windows: int) -> None:
        from infra_lab.models.loader import open_checkpoint
        from infra_lab.models.tokenizer import load_tokenizer
        from infra_lab.quantization.corpus import calibration_text, evaluation_text
        from infra_lab.quantization.evaluate import ReferenceText, TextModel
        from infra_lab.quantization.likelihood import text_windows

        self.checkpoint = open_checkpoint(default_model())
        tokenizer = load_tokenizer(self.checkpoint)
        judged = tokenizer.encode(evaluation_text())[: window * num_windows]
        self._calibration = tokenizer.encode(calibration_text())
        self._window = window
        self.windows = text_windows(judged, window)
        self.model = TextModel.load(self.checkpoint, window)
        self.reference = ReferenceText(self.model, self.windows)
        self.base = self.reference.likelihood()

    def sequences(self, count: int, length: int) -> torch.Tensor:
        """int64 [count, length] of the book's earlier chapters."""
        import torch

        tokens = self._calibration[: count * length]
        return torch.tensor(tokens).view(count, length)

    def judge(self, checkpoint: Checkpoint) -> TextQuality:
        """What a model of the same tokenizer makes of the text, beside the default model."""
        from infra_lab.quantization.evaluate import TextModel, evaluate

        return evaluate(TextModel.load(checkpoint, self._window), self.windows, self.reference)

    def quantized(
        self,
        method: str,
        source: Checkpoint | None = None,
        sequences: torch.Tensor | None = None,
        **settings: Any,
    ) -> TextQuality:
        """The default model, or `source`, quantized by a method of `infra-lab quantize`."""
        from infra_lab.quantization.quantize import quantize_model
        from infra_lab.quantization.settings import choose_settings

        base = self.checkpoint if source is None else source
        chosen = choose_settings(method, base.config, settings)
        return self.judge(quantize_model(base, chosen, sequences))
