"""Models of few bits: to the bit what their dequantized weights compute, from packed layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from infra_lab.attention.backend import AttentionMetadata
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.embedding import Embedding, TiedEmbedding
from infra_lab.layers.int8_linear import Int8Linear
from infra_lab.layers.linear import DenseLinear, PackedLinear
from infra_lab.layers.quantized_input import QuantizedInput, rounded_input
from infra_lab.layers.quantized_linear import QuantizedLinear
from infra_lab.layers.side_by_side import SideBySide
from infra_lab.layers.triton_linear import W4A16Linear, W8A8Linear
from infra_lab.models import weights as weights_module
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.registry import model_class
from infra_lab.models.shapes import parameter_shapes
from infra_lab.models.weights import Weights
from infra_lab.native import int8, library
from infra_lab.worker.kv_cache import allocate_kv_cache
from infra_lab.worker.replayed_layers import ReplayedLayers
from tests.layers.quantized_weights import quantized_weight

pytestmark = pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")

CPU = torch.device("cpu")


@dataclass
class MemoryCheckpoint:
    """Matrices in codes or not, under their names; what is not named is drawn."""

    config: ModelConfig
    codes: Mapping[str, QuantizedWeight]
    activations: Mapping[str, ActivationFormat]
    path: Path = Path("memory")

    def names(self) -> list[str]:
        return list(parameter_shapes(self.config))

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if name in self.codes:
            stored = self.codes[name].dequantize()
        else:
            generator = torch.Generator().manual_seed(len(name))
            stored = torch.randn(parameter_shapes(self.config)[name], generator=generator) / 10
        return stored.to(dtype) if out is None else out.copy_(stored)

    def quantized(self, name: str) -> QuantizedWeight | None:
        return self.codes.get(name)

    def activation_format(self, name: str) -> ActivationFormat | None:
        return self.activations.get(name)


Made = Callable[..., MemoryCheckpoint]


@pytest.fixture
def make(tiny: Any) -> Made:
    """kinds: by the end of a layer's name, (table, group size, shift) of its codes."""

    def made(
        kinds: Mapping[str, tuple[str, int, str]],
        activations: Mapping[str, ActivationFormat] | None = None,
        **changes: Any,
    ) -> MemoryCheckpoint:
        config = tiny.config("llama", **changes)
        codes, formats = {}, {}
        for name, shape in parameter_shapes(config).items():
            module = name.removesuffix(".weight").rpartition(".")[2]
            if module in kinds:
                table, group_size, shift = kinds[module]
                codes[name] = quantized_weight(
                    table, shape[0], shape[1], group_size, shift, seed=len(name)
                )
            if activations and module in activations:
                formats[name] = activations[module]
        return MemoryCheckpoint(config, codes, formats)

    return made


def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> DecoderForCausalLM:
    return model_class(checkpoint.config.architecture)(
        checkpoint.config, Weights(checkpoint, dtype, CPU)
    )


@pytest.fixture
def load_dense(monkeypatch: pytest.MonkeyPatch) -> Callable[[Checkpoint], DecoderForCausalLM]:
    def loaded(checkpoint: Checkpoint) -> DecoderForCausalLM:
        with monkeypatch.context() as patch:
            patch.setattr(weights_module, "runs_packed", lambda *_: False)
            return load(checkpoint)

    return loaded


@torch.inference_mode()
def logits(model: DecoderForCausalLM, replayed: bool = False) -> torch.Tensor:
    """Of a prompt of five tokens and the two steps after it."""
    backend = NativeAttentionBackend(model.attention_shape, 4)
    caches = allocate_kv_cache(model.config, 8, 4, torch.float32, CPU)
    replays = ReplayedLayers(model, backend, caches)
    rows, done = [], 0
    for token_ids in ([1, 5, 9, 95, 2], [7], [7]):
        positions = np.arange(done, done + len(token_ids))
        done += len(token_ids)
        metadata = AttentionMetadata(
            query_start_loc=np.array([0, len(token_ids)]),
            seq_lens=np.array([done]),
            block_tables=np.array([[1, 2]]),
            slot_mapping=positions + 4,
        )
        step = (torch.tensor(token_ids), torch.from_numpy(positions))
        plan = backend.plan(metadata)
        if replayed:
            assert replays.can_serve(len(token_ids))
            hidden = replays.forward(*step, plan)
        else:
            hidden = model.forward(*step, backend, caches, plan)
        rows.append(model.logits(hidden))
    return torch.cat(rows)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_gguf_file_of_few_bits_runs_packed_and_computes_the_same(
    tiny: Any, tmp_path: Path, load_dense: Any, architecture: str, kind: str
) -> None:
    config = tiny.config(architecture, tie_word_embeddings=kind == "Q8_0")
    quantization = GGMLQuantizationType[kind]
    path = tiny.gguf(tmp_path / "x.gguf", config, tiny.weights(config), quantization)
    checkpoint = open_checkpoint(path)
    packed = load(checkpoint)
    assert isinstance(packed.layers[0].attention.qkv, QuantizedLinear)
    assert isinstance(packed.layers[0].mlp.down, QuantizedLinear)
    assert isinstance(packed.head, QuantizedLinear)
    assert isinstance(packed.embed, TiedEmbedding)
    assert torch.equal(logits(packed), logits(load_dense(checkpoint)))


def test_a_step_of_packed_layers_is_replayed(make: Made, load_dense: Any) -> None:
    kinds = {"qkv"[i] + "_proj": ("uint4", 32, "offsets") for i in range(3)}
    checkpoint = make(kinds | {"o_proj": ("nf4", 64, "none"), "down_proj": ("int8", 96, "none")})
    model = load(checkpoint)
    expected = logits(load_dense(checkpoint))
    assert torch.equal(logits(model, replayed=True), expected)
    assert torch.equal(logits(model), expected)


def test_projections_kept_in_different_ways_lie_side_by_side(make: Made, load_dense: Any) -> None:
    """As in a GGUF mixture: q and k fit, v does not, and of gate and up one has no codes."""
    kinds = {
        "q_proj": ("uint4", 32, "offsets"),
        "k_proj": ("uint4", 32, "offsets"),
        "v_proj": ("int8", 16, "none"),
        "up_proj": ("mxfp4", 32, "none"),
    }
    checkpoint = make(kinds)
    model = load(checkpoint)
    qkv, gate_up = model.layers[0].attention.qkv, model.layers[0].mlp.gate_up
    assert isinstance(qkv, SideBySide)
    assert [part.out_features for part in qkv.parts] == [96, 32]
    assert isinstance(gate_up, SideBySide)
    assert [type(part) for part in gate_up.parts] == [PackedLinear, QuantizedLinear]
    expected = logits(load_dense(checkpoint))
    assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model, replayed=True), expected)
    indices = torch.tensor([127, 0, 96, 95, 0])
    whole = torch.cat(
        [checkpoint.codes[f"model.layers.0.self_attn.{m}_proj.weight"].dequantize() for m in "qkv"]
    )
    assert torch.equal(qkv.rows(indices), whole[indices])


def test_a_shared_bias_is_added_beside_and_packed(make: Made, load_dense: Any) -> None:
    checkpoint = make({"q_proj": ("nf4", 32, "none"), "v_proj": ("int8", 64, "none")})
    checkpoint.config = replace(checkpoint.config, architecture="qwen2", attention_bias=True)
    model = load(checkpoint)
    assert isinstance(model.layers[0].attention.qkv, SideBySide)
    assert torch.equal(logits(model), logits(load_dense(checkpoint)))


def test_other_types_get_the_dequantized_layer(make: Made) -> None:
    checkpoint = make({"o_proj": ("nf4", 32, "none"), "embed_tokens": ("int8", 64, "none")})
    model = load(checkpoint, torch.bfloat16)
    output = model.layers[0].attention.output
    assert isinstance(output, DenseLinear)
    dense = checkpoint.codes["model.layers.0.self_attn.o_proj.weight"].dequantize()
    assert torch.equal(output.weight.T, dense.bfloat16())
    assert isinstance(model.embed, Embedding)


def test_a_layer_that_rounds_its_input_does_so_before_the_fused_product(
    make: Made, load_dense: Any
) -> None:
    activation = ActivationFormat(bits=4)
    names = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    kinds = dict.fromkeys(names, ("int4", 32, "none"))
    checkpoint = make(kinds, dict.fromkeys(names, activation))
    model = load(checkpoint)
    qkv = model.layers[0].attention.qkv
    assert isinstance(qkv, QuantizedInput)
    assert isinstance(qkv.base, QuantizedLinear)
    x = torch.randn(3, 64)
    assert torch.equal(qkv(x), qkv.base(rounded_input(x, activation)))
    assert torch.equal(logits(model), logits(load_dense(checkpoint)))
    assert torch.equal(logits(model, replayed=True), logits(model))


@pytest.mark.skipif(not library.is_available() or not int8.multiplies_int8(), reason="no VNNI here")
def test_int8_weights_and_tokens_are_multiplied_as_integers(make: Made, load_dense: Any) -> None:
    names = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    kinds = dict.fromkeys(names, ("int8", 96, "none"))
    checkpoint = make(kinds, dict.fromkeys(names, ActivationFormat()))
    model = load(checkpoint)
    assert isinstance(model.layers[0].attention.qkv, Int8Linear)
    assert isinstance(model.layers[0].mlp.down, Int8Linear)
    assert torch.equal(logits(model, replayed=True), logits(model))
    # A sum that is rounded elsewhere may take an input of the next layer to the code beside.
    torch.testing.assert_close(logits(model), logits(load_dense(checkpoint)), atol=2e-2, rtol=0)


def test_projections_that_round_their_input_differently_stay_apart(
    make: Made, load_dense: Any
) -> None:
    kinds = dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("int8", 16, "none"))
    formats = {"q_proj": ActivationFormat(), "k_proj": ActivationFormat(bits=4)}
    checkpoint = make(kinds, formats)
    model = load(checkpoint)
    qkv = model.layers[0].attention.qkv
    assert isinstance(qkv, SideBySide)
    assert [type(part) for part in qkv.parts] == [QuantizedInput, QuantizedInput, QuantizedLinear]
    assert torch.equal(logits(model), logits(load_dense(checkpoint)))


def test_an_activation_format_that_no_layer_computes_is_refused(make: Made) -> None:
    checkpoint = make({}, {"o_proj": ActivationFormat(bits=4, kind="fp8")})
    with pytest.raises(UsageError, match="fp8 have 8 bits"):
        load(checkpoint)


def test_a_gpu_runs_the_layouts_that_its_kernels_take_and_dequantizes_the_rest(make: Made) -> None:
    """Interpreted: on the CPU, in the types of a GPU."""
    interpreter = pytest.importorskip("kernels.testing.interpreter")
    int8 = ("int8", 96, "none")
    kinds = dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("int4", 32, "none"))
    kinds |= {"gate_proj": int8, "up_proj": int8, "o_proj": ("nf4", 64, "none")}
    activations = {"gate_proj": ActivationFormat(), "up_proj": ActivationFormat()}
    checkpoint = make(kinds, activations)
    heard: list[str] = []
    with interpreter.use_faithful_interpreter():
        weights = Weights(checkpoint, torch.bfloat16, CPU, on_read=heard.append)
        model = model_class("llama")(checkpoint.config, weights)
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    assert isinstance(attention.qkv, W4A16Linear)
    assert attention.qkv.out_features == 128
    assert isinstance(mlp.gate_up, W8A8Linear)
    assert isinstance(attention.output, DenseLinear)
    assert isinstance(mlp.down, DenseLinear)
    assert sorted(heard) == sorted(checkpoint.names())


def test_the_progress_bar_hears_of_every_tensor_once(make: Made) -> None:
    checkpoint = make({"q_proj": ("nf4", 32, "none"), "embed_tokens": ("int8", 64, "none")})
    heard: list[str] = []
    weights = Weights(checkpoint, torch.float32, CPU, on_read=heard.append)
    model_class("llama")(checkpoint.config, weights)
    assert sorted(heard) == sorted(checkpoint.names())


@pytest.mark.model
def test_the_default_model_runs_packed_and_computes_the_same(
    smollm2_path: Path, load_dense: Any
) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    packed = load(checkpoint)
    linears = [packed.head]
    for layer in packed.layers:
        linears += [layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down]
    assert all(isinstance(one, QuantizedLinear) for one in linears)
    assert torch.equal(logits(packed, replayed=True), logits(load_dense(checkpoint)))
    # 106.2 million weights of 4 bits and 28.3 of 8, each 32 with a scale, those of 4 bits with a
    # minimum too, both fp16 as in the file: a sixth of the 538 MB that fp32 takes.
    codes = 106_168_320 // 2 + 28_311_552
    scales = (2 if library.load_library().reads_halves() else 4) * (
        (2 * 106_168_320 + 28_311_552) // 32
    )
    assert sum(one.matrix.num_bytes for one in linears) == pytest.approx(codes + scales, abs=1e5)
