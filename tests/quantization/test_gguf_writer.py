"""Written GGUF files, read by us and by the official package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from infra_lab.errors import UsageError
from infra_lab.formats.gguf_blocks import WRITABLE, GGUFFormat
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint, gguf_name, hugging_face_name
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.quantization.gguf_writer import write_gguf
from tests.formats.quantized_weights import same, weight_for
from tests.quantization.conftest import ForAll

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.layers.0.input_layernorm.weight"


@pytest.fixture(params=["llama", "qwen2", "qwen3"])
def source(request: pytest.FixtureRequest, tiny: Any, tmp_path: Path) -> GGUFCheckpoint:
    """With a tokenizer, of which some keys are lists and one list is empty."""
    config = tiny.config(request.param)

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{index}" for index in range(96)])
        writer.add_token_types([1] * 96)
        writer.add_file_type(0)
        writer.add_bool("tokenizer.ggml.add_bos_token", True)

    return GGUFCheckpoint(
        tiny.gguf(tmp_path / "source.gguf", config, tiny.weights(config), add=add)
    )


@pytest.mark.parametrize("kind", WRITABLE)
def test_what_was_given_is_what_is_read(
    kind: str, source: GGUFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    """Every matrix, q and k in their order again; vectors as they were."""
    weight_format = GGUFFormat(kind)
    weights = weights_for(source, weight_format)
    weights[EMBEDDING] = weight_for(weight_format, 96, 64)
    dense = {NORM: torch.full((64,), 1 / 3)}
    out = tmp_path / "out.gguf"
    write_gguf(source, out, weights, weight_format, dense=dense)
    written = GGUFCheckpoint(out)
    assert written.names() == source.names()
    assert written.config.architecture == source.config.architecture
    for name in written.names():
        found = written.quantized(name)
        numbers = written.tensor(name, torch.float32)
        if name in weights:
            assert found is not None
            assert same(found, weight_format.as_stored(weights[name])), name
            assert torch.equal(numbers, found.dequantize())
            continue
        assert found is None
        expected = dense.get(name, source.tensor(name, torch.float32))
        assert torch.equal(numbers, expected.half().float() if expected.ndim > 1 else expected)


def test_the_official_package_reads_the_same_bits(
    source: GGUFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GGUFFormat("Q4_1")
    weights = weights_for(source, weight_format)
    out = tmp_path / "out.gguf"
    write_gguf(source, out, weights, weight_format)
    tensors = {hugging_face_name(tensor.name): tensor for tensor in GGUFReader(out).tensors}
    assert set(tensors) == set(source.names())
    for name, weight in weights.items():
        tensor = tensors[name]
        assert tensor.tensor_type is GGMLQuantizationType.Q4_1
        theirs = np.ascontiguousarray(quants.dequantize(tensor.data, tensor.tensor_type))
        exact = weight_format.as_stored(weight).dequantize()
        if source.config.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = 4 if "q_proj" in name else 2
            exact = exact.view(heads, 2, -1, 64).transpose(1, 2).reshape(exact.shape)
        assert torch.equal(torch.from_numpy(theirs), exact), name


def test_metadata_keeps_its_types_and_says_what_is_new(
    source: GGUFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GGUFFormat("Q8_0")
    out = tmp_path / "out.gguf"
    write_gguf(source, out, weights_for(source, weight_format), weight_format)
    before, after = source.header, GGUFCheckpoint(out).header
    new = {"general.file_type": 7, "general.quantization_version": 2}
    assert after.metadata == before.metadata | new
    for key, types in before.value_types.items():
        assert after.value_types[key] == types
    fields = GGUFReader(out).fields
    assert fields["general.file_type"].contents() == 7
    assert fields["tokenizer.ggml.tokens"].contents()[95] == "t95"


def test_a_vector_of_rope_factors_is_copied(tiny: Any, weights_for: ForAll, tmp_path: Path) -> None:
    config = tiny.config("llama")
    path = tiny.gguf(
        tmp_path / "source.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32)),
    )
    source, weight_format = GGUFCheckpoint(path), GGUFFormat("Q4_0")
    out = tmp_path / "out.gguf"
    write_gguf(source, out, weights_for(source, weight_format), weight_format)
    assert GGUFCheckpoint(out).header.tensors["rope_freqs.weight"].shape == (8,)


def test_names_have_their_way_back(source: GGUFCheckpoint) -> None:
    for name in source.names():
        assert hugging_face_name(gguf_name(name)) == name


def test_an_interruption_leaves_nothing(
    source: GGUFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GGUFFormat("Q4_0")

    def stop(name: str) -> None:
        if name == NORM:
            raise KeyboardInterrupt

    place = tmp_path / "place"
    with pytest.raises(KeyboardInterrupt):
        write_gguf(
            source,
            place / "out.gguf",
            weights_for(source, weight_format),
            weight_format,
            on_write=stop,
        )
    assert list(place.iterdir()) == []


def test_refusals_name_what_is_wrong(
    source: GGUFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format, name = GGUFFormat("Q4_0"), "model.layers.1.mlp.up_proj.weight"
    weights = weights_for(source, weight_format)
    out = tmp_path / "out.gguf"
    wrong = weights | {name: weight_for(GGUFFormat("Q8_0"), 96, 64)}
    with pytest.raises(UsageError, match=r"up_proj\.weight' cannot be written: GGUF Q4_0 keeps"):
        write_gguf(source, out, wrong, weight_format)
    with pytest.raises(UsageError, match=r"float16 or float32, not torch\.bfloat16"):
        write_gguf(source, out, weights, weight_format, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="is there already"):
        write_gguf(source, source.path, weights, weight_format)
    assert not out.exists()


def test_a_folder_has_no_metadata_to_take(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GGUFFormat("Q4_0")
    weights = weights_for(tiny_llama, weight_format)
    with pytest.raises(UsageError, match="a GGUF file is written from a GGUF file"):
        write_gguf(tiny_llama, tmp_path / "out.gguf", weights, weight_format)


@pytest.mark.model
def test_the_default_models_own_codes_survive_the_way_through(
    smollm2_path: Path, tmp_path: Path
) -> None:
    """Read, written and read again: the blocks of one layer and of the embedding, byte by byte."""
    source, weight_format = GGUFCheckpoint(smollm2_path), GGUFFormat("Q4_1")
    found = {name: source.quantized(name) for name in source.names()}
    weights = {name: weight for name, weight in found.items() if weight and weight.bits == 4}
    write_gguf(source, tmp_path / "out.gguf", weights, weight_format)
    before, after = read_bytes(source), read_bytes(GGUFCheckpoint(tmp_path / "out.gguf"))
    q4_1 = [name for name, (kind, _) in before.items() if kind == "Q4_1"]
    assert len(q4_1) > 200
    assert [name for name in q4_1 if before[name] != after[name]] == []


def read_bytes(checkpoint: GGUFCheckpoint) -> dict[str, tuple[str, bytes]]:
    data = checkpoint.path.read_bytes()
    return {
        name: (info.quantization.name, data[info.offset_bytes :][: info.num_bytes])
        for name, info in checkpoint.header.tensors.items()
    }
