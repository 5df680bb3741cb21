"""A Hugging Face folder's config and tokenizer as the metadata of a GGUF file.

Answers "what does a GGUF file know that a safetensors file does not?": everything that config.json
and tokenizer.json say, under llama.cpp's names. Which of llama.cpp's rules for cutting text a
tokenizer follows is found by trying: the one that cuts a text full of traps as the folder does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gguf.constants import GGUFValueType, TokenType
from tokenizers import Tokenizer as Backend

from infra_lab.errors import UsageError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.pretokenizers import PRE_TOKENIZERS
from infra_lab.models.tokenizer import Tokenizer, load_tokenizer

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_CANDIDATES = ("smollm", "gpt-2", "llama-bpe", "qwen2", "tekken")
_END_KINDS = ("eos", "eot", "eom")  # of sequence, of turn, of message
# Digits, contractions, cases, blank lines, indents, scripts and marks: where the rules differ.
_PROBE = (
    "Hello  World's it'LL 1234567 3.14 x=10\n\n\n   - item\r\n\tdef f(a_b):  # Été naïve\n"
    " \u4f60\u597d\uff0c\u4e16\u754c\uff01 \u0663\u0664 camelCase HTTPServer /path/to\u00a0it... "
    "'re we'Ve \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600\U0001f600  end \n "
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One key's value with its type and, of a list, that of its items."""

    value: Any
    kind: GGUFValueType
    items: GGUFValueType | None = None


def gguf_architecture(config: ModelConfig) -> str:
    """What llama.cpp calls it: a Mistral model is a llama there."""
    return _ARCHITECTURES[config.architecture]


def folder_metadata(source: Checkpoint) -> dict[str, Entry]:
    """All keys but general.architecture, file_type and quantization_version.

    Raises UsageError when the tokenizer is of a kind that is not written, ModelLoadError when it
    cannot be read.
    """
    tokenizer = load_tokenizer(source)
    return {
        "general.name": Entry(source.path.name, GGUFValueType.STRING),
        **_model(source.config),
        **_vocabulary(source, tokenizer),
        **_special(source, tokenizer),
    }


def _model(config: ModelConfig) -> dict[str, Entry]:
    counts = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    numbers = {
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_theta,
    }
    if config.sliding_window is not None:
        counts["attention.sliding_window"] = config.sliding_window
    found = {key: Entry(value, GGUFValueType.UINT32) for key, value in counts.items()}
    scaling = config.rope_scaling
    if scaling.kind == "linear":
        numbers["rope.scaling.factor"] = scaling.factor
        found["rope.scaling.type"] = Entry("linear", GGUFValueType.STRING)
    if scaling.kind == "llama3":
        found["rope.scaling.original_context_length"] = Entry(
            scaling.original_max_position_embeddings, GGUFValueType.UINT32
        )
    found |= {key: Entry(value, GGUFValueType.FLOAT32) for key, value in numbers.items()}
    return {f"{gguf_architecture(config)}.{key}": entry for key, entry in found.items()}


def _vocabulary(source: Checkpoint, tokenizer: Tokenizer) -> dict[str, Entry]:
    state = json.loads(tokenizer.backend.to_str())
    model, added = state["model"], tokenizer.backend.get_added_tokens_decoder()
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise UsageError(
            f"{source.path}: its tokenizer is no byte-level BPE, the only kind that is written to "
            "GGUF files; write a folder instead"
        )
    size = max(source.config.vocab_size, tokenizer.vocab_size)
    tokens = [f"[PAD{index}]" for index in range(size)]
    kinds = [int(TokenType.UNUSED)] * size
    for token, index in model["vocab"].items():
        tokens[index], kinds[index] = token, int(TokenType.NORMAL)
    for index, whole in added.items():
        kind = TokenType.CONTROL if whole.special else TokenType.USER_DEFINED
        tokens[index], kinds[index] = whole.content, int(kind)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    string, array = GGUFValueType.STRING, GGUFValueType.ARRAY
    return {
        "tokenizer.ggml.model": Entry("gpt2", string),
        "tokenizer.ggml.pre": Entry(_pre_tokenizer(source, state), string),
        "tokenizer.ggml.tokens": Entry(tokens, array, string),
        "tokenizer.ggml.token_type": Entry(kinds, array, GGUFValueType.INT32),
        "tokenizer.ggml.merges": Entry(merges, array, string),
    }


def _pre_tokenizer(source: Checkpoint, state: dict[str, Any]) -> str:
    """llama.cpp's name of the rule that cuts as this tokenizer does."""
    wanted = Backend.from_str(json.dumps(state)).encode(_PROBE, add_special_tokens=False).ids
    for name in _CANDIDATES:
        rule = PRE_TOKENIZERS[name]
        state["model"]["ignore_merges"] = rule.whole_words_first
        candidate = Backend.from_str(json.dumps(state | {"normalizer": None}))
        candidate.pre_tokenizer = rule.build()
        if candidate.encode(_PROBE, add_special_tokens=False).ids == wanted:
            return name
    raise UsageError(
        f"{source.path}: its tokenizer cuts text by none of the rules that GGUF files name here "
        f"({', '.join(_CANDIDATES)}); write a folder instead"
    )


def _special(source: Checkpoint, tokenizer: Tokenizer) -> dict[str, Entry]:
    config, flag, count = source.config, GGUFValueType.BOOL, GGUFValueType.UINT32
    ends = tokenizer.eos_token_ids
    if len(ends) > len(_END_KINDS):
        raise UsageError(
            f"{source.path}: generation ends at {len(ends)} different tokens; a GGUF file has "
            f"names for {len(_END_KINDS)}"
        )
    found = {
        f"tokenizer.ggml.{kind}_token_id": Entry(token_id, count)
        for kind, token_id in zip(_END_KINDS, ends, strict=False)
    }
    named = {
        name: tokenizer.backend.token_to_id(token)
        for name, token in tokenizer.special_tokens.items()
    }
    bos = named.get("bos_token", config.bos_token_id)
    others = {"bos": bos, "unknown": named.get("unk_token"), "padding": named.get("pad_token")}
    for kind, token_id in others.items():
        if token_id is not None:
            found[f"tokenizer.ggml.{kind}_token_id"] = Entry(token_id, count)
    around = tokenizer.encode("a")
    inside = tokenizer.encode("a", add_special_tokens=False)
    adds_bos, adds_eos = around[0] != inside[0], around[-1] != inside[-1]
    if around != [bos] * adds_bos + inside + list(ends[:1]) * adds_eos:
        raise UsageError(
            f"{source.path}: its tokenizer puts more around a text than one BOS and one EOS, which "
            "is all that a GGUF file can ask for; write a folder instead"
        )
    found["tokenizer.ggml.add_bos_token"] = Entry(adds_bos, flag)
    found["tokenizer.ggml.add_eos_token"] = Entry(adds_eos, flag)
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = Entry(tokenizer.chat_template, GGUFValueType.STRING)
    return found
