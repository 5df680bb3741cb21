"""Written GGUF files, read by us and by the official package."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from infra_lab.errors import UsageError
from infra_lab.formats.gguf_blocks import WRITABLE, GGUFFormat
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.models.config import RopeScaling
from infra_lab.models.gguf_checkpoint import (
    GGUFCheckpoint,
    gguf_name,
    half_rotation_order,
    hugging_face_name,
    interleaved_heads,
)
from infra_lab.models.gguf_config import llama3_factors
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.models.hf_export import save_tokenizer
from infra_lab.models.pretokenizers import PRE_TOKENIZERS
from infra_lab.models.tokenizer import load_tokenizer
from infra_lab.quantization.gguf_metadata import _PROBE, folder_metadata
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
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    factors = np.array(llama3_factors(scaling, 16, config.rope_theta), np.float32)
    path = tiny.gguf(
        tmp_path / "source.gguf",
        config,
        tiny.weights(config),
        add=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    source, weight_format = GGUFCheckpoint(path), GGUFFormat("Q4_0")
    out = tmp_path / "out.gguf"
    write_gguf(source, out, weights_for(source, weight_format), weight_format)
    written = GGUFCheckpoint(out)
    assert written.config.rope_scaling == source.config.rope_scaling == scaling
    info = written.header.tensors["rope_freqs.weight"]
    found = np.fromfile(out, np.float32, 8, offset=info.offset_bytes)
    assert found.tolist() == factors.tolist()


def test_names_have_their_way_back(source: GGUFCheckpoint) -> None:
    for name in source.names():
        assert hugging_face_name(gguf_name(name)) == name


def test_an_interruption_leaves_nothing(
    source: GGUFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    weight_format = GGUFFormat("Q4_0")

    class Stops(dict[str, QuantizedWeight]):
        def __getitem__(self, name: str) -> QuantizedWeight:
            if name == "model.layers.1.mlp.up_proj.weight":
                raise KeyboardInterrupt
            return super().__getitem__(name)

    place, weights = tmp_path / "place", Stops(weights_for(source, weight_format))
    with pytest.raises(KeyboardInterrupt):
        write_gguf(source, place / "out.gguf", weights, weight_format)
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


def trained_tokenizer(rule: str, special: list[str]) -> Tokenizer:
    """A byte-level BPE of 90 tokens or so, which cuts text as GGUF's `rule` says."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=PRE_TOKENIZERS[rule].whole_words_first))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[rule].build()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_PROBE * 3, "It's 12345 times 678\n\n\nit'Ll do. "], trainer)
    return tokenizer


LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize(
    ("family", "rule", "settings"),
    [
        ("llama", "smollm", {"rope_scaling": LLAMA3}),
        ("llama", "llama-bpe", {"rope_scaling": RopeScaling("linear", 2.0), "mlp_bias": True}),
        ("mistral", "tekken", {"sliding_window": 32}),
        ("qwen2", "qwen2", {"tie_word_embeddings": True}),
        ("qwen3", "gpt-2", {"eos_token_ids": (2, 1)}),
    ],
)
def test_a_folder_becomes_a_file_with_its_config_and_its_tokenizer(
    family: str,
    rule: str,
    settings: dict[str, Any],
    tiny: Any,
    weights_for: ForAll,
    tmp_path: Path,
) -> None:
    config = tiny.config(family, vocab_size=336, **settings)
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": scaling.kind}
    if scaling.kind == "linear":
        rope["factor"] = scaling.factor
    if scaling.kind == "llama3":
        rope |= {key: value for key, value in asdict(scaling).items() if key != "kind"}
    folder = tiny.hf(
        tmp_path / "source",
        config,
        tiny.weights(config),
        rope_scaling=rope,
        mlp_bias=config.mlp_bias,
    )
    original = trained_tokenizer(rule, ["<|end|>", "<s>", "</s>"])
    original.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=original, bos_token="<s>", eos_token="</s>", chat_template="{{ messages }}"
    ).save_pretrained(folder)
    source, weight_format = HFCheckpoint(folder), GGUFFormat("Q8_0")
    weights = weights_for(source, weight_format)
    out = tmp_path / "out.gguf"
    write_gguf(source, out, weights, weight_format, dtype=torch.float32)
    written = GGUFCheckpoint(out)
    architecture = "llama" if family == "mistral" else family
    expected = replace(source.config, architecture=architecture, dtype="bfloat16", bos_token_id=1)
    assert written.config == expected
    for name in source.names():
        exact = source.tensor(name, torch.float32)
        if name in weights:
            exact = weight_format.as_stored(weights[name]).dequantize()
        assert torch.equal(written.tensor(name, torch.float32), exact), name
    ours, theirs = load_tokenizer(written), load_tokenizer(source)
    for text in (_PROBE, "it's 12 o'clock\n\nnow</s><|end|>", ""):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.chat_template == theirs.chat_template


@pytest.mark.parametrize("rule", ["words", "sentencepiece"])
def test_a_tokenizer_that_gguf_has_no_name_for_is_refused(
    rule: str, tiny_llama: HFCheckpoint, weights_for: ForAll, tmp_path: Path
) -> None:
    tokenizer = trained_tokenizer("gpt-2", ["<s>"])
    message = "cuts text by none of the rules"
    if rule == "words":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split("e", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        )
    else:
        tokenizer.model = models.BPE(
            vocab={"<unk>": 0}, merges=[], byte_fallback=True, unk_token="<unk>"
        )
        message = "no byte-level BPE"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tiny_llama.path)
    weight_format, out = GGUFFormat("Q4_0"), tmp_path / "out.gguf"
    with pytest.raises(UsageError, match=message):
        write_gguf(tiny_llama, out, weights_for(tiny_llama, weight_format), weight_format)
    assert not out.exists()


@pytest.mark.model
def test_the_default_model_comes_back_from_a_folder(smollm2_path: Path, tmp_path: Path) -> None:
    """GGUF to folder to GGUF: the same config and the same tokens."""
    source = GGUFCheckpoint(smollm2_path)
    save_tokenizer(smollm2_path, tmp_path)
    entries = folder_metadata(FolderOf(tmp_path, source.config))
    before = source.header.metadata
    for key, entry in entries.items():
        if key not in ("general.name", "tokenizer.ggml.token_type", "tokenizer.chat_template"):
            assert before.get(key, entry.value) == pytest.approx(entry.value), key
    assert entries["tokenizer.ggml.pre"].value == "smollm"
    assert entries["tokenizer.ggml.merges"].value == before["tokenizer.ggml.merges"]


@dataclass
class FolderOf:
    """As much of a checkpoint as metadata is made from."""

    path: Path
    config: Any


@pytest.mark.model
def test_the_default_models_own_blocks_are_written_as_they_were(smollm2_path: Path) -> None:
    source, weight_format = GGUFCheckpoint(smollm2_path), GGUFFormat("Q4_1")
    data = np.memmap(smollm2_path, np.uint8, "r")
    for name in (
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.11.self_attn.k_proj.weight",
        "model.layers.29.mlp.down_proj.weight",
    ):
        weight = source.quantized(name)
        info = source.header.tensors[gguf_name(name)]
        assert weight is not None
        assert info.quantization is GGMLQuantizationType.Q4_1
        rows = weight_format.write(weight)
        heads = interleaved_heads(source.config, name)
        if heads is not None:
            rows = rows[torch.from_numpy(half_rotation_order(len(rows), heads)).argsort()]
        stored = data[info.offset_bytes : info.offset_bytes + info.num_bytes]
        assert np.array_equal(rows.flatten().numpy(), stored), name
