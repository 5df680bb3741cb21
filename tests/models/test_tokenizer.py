from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from infra_lab.errors import InvalidRequestError, ModelLoadError
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.tokenizer import Tokenizer, load_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SPECIAL = ["<s>", "</s>"]


def make_backend() -> Backend:
    """Bytes as tokens, BOS in front."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(SPECIAL + letters)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return backend


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(
        make_backend(),
        chat_template=TEMPLATE,
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        eos_token_ids=(1,),
    )


@pytest.fixture
def folder(tiny: Any, tmp_path: Path) -> Path:
    """A Hugging Face folder with tokenizer files beside the weights."""
    config = tiny.config("llama", vocab_size=258, eos_token_ids=(1,), bos_token_id=0)
    tiny.hf(tmp_path, config, tiny.weights(config))
    make_backend().save(str(tmp_path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=30))
def test_text_survives_the_round_trip(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(st.characters(categories=["Cs", "L"]), max_size=30))
def test_half_a_surrogate_pair_is_refused_with_its_place(text: str, tokenizer: Tokenizer) -> None:
    place = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
    if place is None:
        tokenizer.encode(text)
        return
    with pytest.raises(InvalidRequestError, match=f"at character {place}, which is no text"):
        tokenizer.encode(text)


def test_special_tokens_are_added_and_dropped_on_request(tokenizer: Tokenizer) -> None:
    with_bos = tokenizer.encode("hi")
    assert with_bos == [0, *tokenizer.encode("hi", add_special_tokens=False)]
    assert tokenizer.decode(with_bos, skip_special_tokens=False) == "<s>hi"
    assert tokenizer.all_special_ids == {0, 1}
    assert tokenizer.vocab_size == 258


def test_a_chat_becomes_the_text_of_its_template_with_one_bos(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    ids = tokenizer.apply_chat_template(messages)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>[user]hi[assistant]"
    closed = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert tokenizer.decode(closed, skip_special_tokens=False) == "<s>[user]hi"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one"),
        ("hi", "at least one"),
        ({"role": "user", "content": "hi"}, "at least one"),
        (["hi"], r"messages\[0\] must have a role and content"),
        (
            [{"role": "user", "content": "a"}, {"role": "user"}],
            r"\[1\] needs a text 'content'",
        ),
        ([{"content": "a"}], r"messages\[0\] needs a text 'role'"),
        ([{"role": "user", "content": None}], "'content', not None"),
        ([{"role": "user", "content": "a\ud800"}], r"messages\[0\]\['content'\] has half a surr"),
        ([{"role": "\udfff", "content": "a"}], r"messages\[0\]\['role'\] has half a surrogate"),
        ([{"role": "tool", "content": "a"}], "refuses the messages: only user and assistant"),
    ],
)
def test_malformed_messages_are_refused_by_position(
    messages: Any, message: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        tokenizer.apply_chat_template(messages)


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        Tokenizer(make_backend()).apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_folder_brings_its_tokenizer_without_the_network(
    folder: Path, tokenizer: Tokenizer, no_network: None
) -> None:
    loaded = load_tokenizer(open_checkpoint(folder))
    messages = [{"role": "user", "content": "hé 12"}]
    assert loaded.encode("hé 12") == tokenizer.encode("hé 12")
    assert loaded.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)
    assert (loaded.eos_token_ids, loaded.all_special_ids) == ((1,), {0, 1})


def test_a_folder_without_end_tokens_in_its_config_takes_the_tokenizers(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text()) | {"eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(settings))
    assert load_tokenizer(open_checkpoint(folder)).eos_token_ids == (1,)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_missing_or_damaged_tokenizer_is_refused(
    content: str | None, folder: Path, no_network: None
) -> None:
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match="tokenizer"):
        load_tokenizer(open_checkpoint(folder))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_path))


@pytest.mark.model
def test_the_default_model_keeps_digits_apart_and_chat_marks_whole(smollm2: Tokenizer) -> None:
    digits = smollm2.encode("12345")
    assert [smollm2.decode([index]) for index in digits] == list("12345")
    assert smollm2.encode("<|im_start|><|im_end|><|endoftext|>") == [1, 2, 0]
    assert len(smollm2.encode("\n\n1")) == 2
    assert smollm2.all_special_ids == set(range(17))
    assert smollm2.eos_token_ids == (2,)


@pytest.mark.model
def test_the_default_model_renders_a_chat(smollm2: Tokenizer) -> None:
    ids = smollm2.apply_chat_template([{"role": "user", "content": "hi"}])
    assert smollm2.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.model
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cc", "Cn", "Co", "Cs"]), max_size=60))
def test_any_text_survives_the_default_models_tokens(text: str, smollm2: Tokenizer) -> None:
    # Six control bytes and the lead bytes of unassigned planes are not in its vocabulary at all.
    assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


@pytest.mark.slow
@pytest.mark.model
def test_the_default_models_ids_are_those_of_transformers_once_digits_are_cut(
    smollm2: Tokenizer, smollm2_path: Path
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, local_files_only=True
    )
    backend = theirs.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    repository = Path(__file__).parents[2]
    for file in sorted((repository / "infra_lab").rglob("*.py")):
        text = file.read_text()
        assert smollm2.encode(text) == backend.encode(text).ids
    messages = [{"role": "user", "content": "1. hi\n\n2. you"}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert smollm2.render_chat(messages) == rendered
