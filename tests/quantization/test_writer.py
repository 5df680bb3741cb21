"""Written folders: what was given is what is read, by us; whole, or not there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from infra_lab.errors import UsageError
from infra_lab.formats.awq import AWQFormat
from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
    PackQuantizedFormat,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.quantization.writer import write_folder
from tests.formats.quantized_weights import same
from tests.quantization.conftest import ForAll

NORM = "model.layers.0.input_layernorm.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
FORMATS: list[tuple[WeightFormat, ActivationFormat | None]] = [
    (GPTQFormat(4, 32), None),
    (GPTQFormat(3, None, symmetric=False, act_order=True, version=2), None),
    (AWQFormat(32), None),
    (PackQuantizedFormat(4, 32), ActivationFormat(bits=4)),
    (IntQuantizedFormat(), ActivationFormat()),
    (FloatQuantizedFormat(), ActivationFormat(kind="fp8")),
    (MXFP4Format(), None),
    (FourBitFormat(block_size=32), None),
    (RowInt8Format(), ActivationFormat(outlier_threshold=6.0)),
    (FP8BlockFormat(), None),
]


@pytest.mark.parametrize(("weight_format", "activation"), FORMATS, ids=repr)
def test_what_was_given_is_what_is_read(
    weight_format: WeightFormat,
    activation: ActivationFormat | None,
    tiny_llama: HFCheckpoint,
    weights_for: ForAll,
    tmp_path: Path,
) -> None:
    weights = weights_for(tiny_llama, weight_format)
    dense = {NORM: torch.full((64,), 0.25)}
    out = tmp_path / "out"
    write_folder(tiny_llama, out, weights, weight_format, activation=activation, dense=dense)
    written = HFCheckpoint(out)
    assert written.names() == tiny_llama.names()
    for name in written.names():
        found = written.quantized(name)
        assert written.activation_format(name) == (activation if name in weights else None)
        if name in weights:
            assert found is not None
            assert same(found, weight_format.as_stored(weights[name]))
        else:
            expected = dense.get(name, tiny_llama.tensor(name, torch.float32)).half()
            assert torch.equal(written.tensor(name, torch.float16), expected)


def test_the_config_is_the_sources_with_what_is_new(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GPTQFormat(4, 32)
    out = tmp_path / "out"
    weights = weights_for(tiny_llama, weight_format)
    write_folder(tiny_llama, out, weights, weight_format, dtype=torch.bfloat16)
    before = json.loads((tiny_llama.path / "config.json").read_text())
    after = json.loads((out / "config.json").read_text())
    quantization = after.pop("quantization_config")
    assert after == before | {"torch_dtype": "bfloat16"}
    assert quantization["quant_method"] == "gptq"
    assert HFCheckpoint(out).config.dtype == "bfloat16"


def test_a_quantized_folder_is_quantized_anew(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    first, second = GPTQFormat(4, 32), AWQFormat(32)
    write_folder(tiny_llama, tmp_path / "a", weights_for(tiny_llama, first), first)
    source = HFCheckpoint(tmp_path / "a")
    write_folder(source, tmp_path / "b", weights_for(source, second), second)
    found = HFCheckpoint(tmp_path / "b").format
    assert found is not None
    assert found.method == "awq"


def test_shards_are_indexed_and_read(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = PackQuantizedFormat(4, 32, symmetric=False)
    weights = weights_for(tiny_llama, weight_format)
    write_folder(tiny_llama, tmp_path / "one", weights, weight_format)
    write_folder(tiny_llama, tmp_path / "many", weights, weight_format, max_shard_bytes=9000)
    files = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    count = len(files)
    assert count > 3
    assert files == [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    one, many = HFCheckpoint(tmp_path / "one"), HFCheckpoint(tmp_path / "many")
    for name in one.names():
        assert torch.equal(one.tensor(name, torch.float32), many.tensor(name, torch.float32))


def test_a_tied_head_may_get_weights_of_its_own(
    tiny: Any, weights_for: ForAll, tmp_path: Path
) -> None:
    """A rotation that the embedding takes and the head does not."""
    config = tiny.config("llama", num_hidden_layers=1, tie_word_embeddings=True)
    source = HFCheckpoint(tiny.hf(tmp_path / "source", config, tiny.weights(config)))
    weight_format, head = GPTQFormat(4, 32), torch.randn(96, 64).half()
    weights = weights_for(source, weight_format)
    out = tmp_path / "out"
    write_folder(source, out, weights, weight_format, dense={"lm_head.weight": head})
    written = HFCheckpoint(out)
    assert not written.config.tie_word_embeddings
    assert torch.equal(written.tensor("lm_head.weight", torch.float16), head)


def test_the_tokenizer_and_the_generation_config_come_along(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tiny_llama.path / name).write_text(json.dumps({"eos_token_id": 7, "name": name}))
    (tiny_llama.path / "notes.txt").write_text("not a part of the model")
    weight_format = GPTQFormat(4, 32)
    out = tmp_path / "out"
    write_folder(tiny_llama, out, weights_for(tiny_llama, weight_format), weight_format)
    assert (out / "tokenizer.json").read_text() == (tiny_llama.path / "tokenizer.json").read_text()
    assert HFCheckpoint(out).config.eos_token_ids == (2, 7)
    assert not (out / "notes.txt").exists()


class Failing(Mapping[str, QuantizedWeight]):
    """Weights that are computed one by one, until something stops it."""

    def __init__(self, weights: dict[str, QuantizedWeight], error: BaseException) -> None:
        self._weights, self._error, self.asked = weights, error, 0

    def __getitem__(self, name: str) -> QuantizedWeight:
        self.asked += 1
        if self.asked == 5:
            raise self._error
        return self._weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left"), ValueError()])
def test_an_interruption_leaves_nothing(
    error: BaseException, tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GPTQFormat(4, 32)
    weights = Failing(weights_for(tiny_llama, weight_format), error)
    place = tmp_path / "place"
    with pytest.raises(type(error)):
        write_folder(tiny_llama, place / "out", weights, weight_format, max_shard_bytes=4000)
    assert weights.asked == 5
    assert list(place.iterdir()) == []


def test_each_weight_is_asked_for_once(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GPTQFormat(4, 32)
    weights = Failing(weights_for(tiny_llama, weight_format), ValueError())
    weights.asked = 100
    write_folder(tiny_llama, tmp_path / "out", weights, weight_format)
    assert weights.asked == 100 + len(weights)


def test_what_is_there_is_never_overwritten(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GPTQFormat(4, 32)
    weights = weights_for(tiny_llama, weight_format)
    with pytest.raises(UsageError, match="is there already: give another name"):
        write_folder(tiny_llama, tiny_llama.path, weights, weight_format)


def test_refusals_name_what_is_wrong(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GPTQFormat(4, 32)
    weights = weights_for(tiny_llama, weight_format)
    too_large = {NORM: torch.full((64,), 1e5)}
    nan = {NORM: torch.full((64,), float("nan"))}
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (weights | {"model.x.weight": weights[Q_PROJ]}, {}, r"'model\.x\.weight' is no parameter"),
        (weights, {"dense": {Q_PROJ: torch.zeros(64, 64)}}, "both quantized and as it is"),
        (weights, {"dense": too_large}, "1e[+]05 in it, which is too large for float16: choose"),
        (weights, {"dense": nan}, r"input_layernorm\.weight' has numbers in it that are not fin"),
        (weights, {"activation": ActivationFormat()}, "cannot say what layers do"),
        ({n: w for n, w in weights.items() if n != Q_PROJ}, {}, r"every linear .*q_proj\.weight"),
        (
            weights | {"model.embed_tokens.weight": weights[Q_PROJ]},
            {},
            "a folder keeps its embedding as it is",
        ),
        (
            weights | {Q_PROJ: weights_for(tiny_llama, GPTQFormat(8, 32))[Q_PROJ]},
            {},
            r"q_proj\.weight' cannot be written: GPTQ int4.* 8 bits",
        ),
    ]
    for index, (given, settings, message) in enumerate(refused):
        out = tmp_path / str(index)
        with pytest.raises(UsageError, match=message):
            write_folder(tiny_llama, out, given, weight_format, **settings)
        assert not out.exists()


def test_layers_that_stay_as_they_are_are_listed(
    tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = PackQuantizedFormat(4, 32)
    weights = weights_for(tiny_llama, weight_format)
    del weights[Q_PROJ]
    write_folder(tiny_llama, tmp_path / "out", weights, weight_format)
    written = HFCheckpoint(tmp_path / "out")
    assert written.quantized(Q_PROJ) is None
    assert written.format is not None
    assert written.format.ignored == ("model.layers.0.self_attn.q_proj", "lm_head")


@pytest.mark.model
def test_the_default_model_becomes_a_folder(
    smollm2_path: Path, weights_for: ForAll, tmp_path: Path
) -> None:
    """From a GGUF file: its config and its tokenizer, in Hugging Face's files."""
    from infra_lab.models.tokenizer import load_tokenizer

    source, weight_format = GGUFCheckpoint(smollm2_path), GPTQFormat(4, 64)
    weights = weights_for(source, weight_format)
    write_folder(source, tmp_path / "out", weights, weight_format)
    written = HFCheckpoint(tmp_path / "out")
    found = written.quantized("model.layers.29.mlp.down_proj.weight")
    assert found is not None
    expected = weight_format.as_stored(weights["model.layers.29.mlp.down_proj.weight"])
    assert same(found, expected)
    ours, theirs = load_tokenizer(source), load_tokenizer(written)
    text = "Quantization keeps 4 of 32 bits."
    assert theirs.encode(text) == ours.encode(text)
    assert theirs.chat_template == ours.chat_template
