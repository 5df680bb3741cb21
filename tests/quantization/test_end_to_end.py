"""Every method in every format that keeps it, from a model on disk to answers of the engine.

The judge is transformers: its model, with the weights that the written one says it has, and
linear layers that round their inputs as it says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from infra_lab.engine.llm import LLM
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.pretokenizers import PRE_TOKENIZERS
from infra_lab.quantization.run import quantize_to_folder
from infra_lab.quantization.settings import METHODS, QuantizationSettings, choose_settings
from infra_lab.quantization.targets import activation_format
from infra_lab.sampling_params import SamplingParams
from tests.quantization.tiny_models import TEXT, quantized_inputs, tiny_model, token_ids

TOKENS = token_ids(24, seed=3)
WRITTEN = [(name, target) for name, method in METHODS.items() for target in method.formats]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    tiny_model(folder, num_hidden_layers=2, intermediate_size=128)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS["smollm"].build()  # a rule that GGUF has a name for
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def settings_for(source: Path, method: str, target: str, **given: Any) -> QuantizationSettings:
    config = open_checkpoint(source).config
    if METHODS[method].calibrated:
        given |= {"num_sequences": 4, "sequence_length": 24}
    return choose_settings(method, config, given | {"format": target})


def expected_logprobs(source: Path, written: Checkpoint) -> torch.Tensor:
    """fp32 [len(TOKENS) - 1]: what transformers thinks of each token after the first."""
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(written.tensor(name, torch.float32))
        quantized_inputs(model, written)
        logits = model(torch.tensor([TOKENS])).logits[0, :-1]
    return logits.log_softmax(-1)[range(len(TOKENS) - 1), TOKENS[1:]]


def engine_logprobs(path: Path) -> torch.Tensor:
    llm = LLM(path, dtype="float32", num_blocks=16, max_num_seqs=1)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([TOKENS], params)
    assert output.prompt_logprobs is not None
    return torch.tensor([one.logprob for one in output.prompt_logprobs if one is not None])


def require_the_same(settings: QuantizationSettings, source: Path, out: Path) -> None:
    written = open_checkpoint(out)
    name = "model.layers.1.mlp.up_proj.weight"
    weight = written.quantized(name)
    assert weight is not None
    assert weight.bits == settings.bits
    assert torch.equal(weight.dequantize(), written.tensor(name, torch.float32))
    assert written.activation_format(name) == activation_format(settings)
    expected, found = expected_logprobs(source, written), engine_logprobs(out)
    # A number at the middle between two codes may go either way with the last bit of a sum.
    tolerance = 1e-3 if settings.activation_bits is None else 0.05
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("method", "target"), WRITTEN)
def test_the_engine_says_of_a_written_model_what_its_dequantized_weights_say(
    source: Path, tmp_path: Path, method: str, target: str
) -> None:
    settings = settings_for(source, method, target)
    out = tmp_path / ("out.gguf" if target == "gguf" else "out")
    quantize_to_folder(source, out, settings, TEXT)
    require_the_same(settings, source, out)


@pytest.mark.parametrize(
    ("method", "target", "given"),
    [
        ("gptq", "gptq", {"bits": 2}),
        ("gptq", "gptq", {"bits": 3, "symmetric": True}),
        ("gptq", "gptq", {"static_groups": False}),
        ("gptq", "compressed-tensors", {"static_groups": False, "group_size": 32}),
        ("rtn", "compressed-tensors", {"bits": 8, "activation_bits": 8, "group_size": -1}),
        ("rtn", "gguf", {"bits": 8, "symmetric": True}),
        ("rtn", "gguf", {"symmetric": True}),
        ("awq", "awq", {"symmetric": True}),
        ("llm_int8", "bitsandbytes", {"outlier_threshold": 1.0}),
    ],
)
def test_and_so_with_other_settings(
    source: Path, tmp_path: Path, method: str, target: str, given: dict[str, Any]
) -> None:
    settings = settings_for(source, method, target, **given)
    out = tmp_path / ("out.gguf" if target == "gguf" else "out")
    quantize_to_folder(source, out, settings, TEXT)
    require_the_same(settings, source, out)


def test_zero_points_of_gptq_are_written_as_they_are(source: Path, tmp_path: Path) -> None:
    """The first version stores them less 1, and what its readers make of a 0 differs."""
    for symmetric, layout in ((True, "gptq"), (False, "gptq_v2")):
        out = tmp_path / layout
        settings = settings_for(source, "rtn", "gptq", symmetric=symmetric)
        quantize_to_folder(source, out, settings, TEXT)
        config = AutoConfig.from_pretrained(out).quantization_config
        assert config["checkpoint_format"] == layout
