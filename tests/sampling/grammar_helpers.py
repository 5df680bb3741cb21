"""A small byte-level vocabulary, and a walk that takes any token that a grammar allows."""

from __future__ import annotations

import random

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from infra_lab.models.tokenizer import Tokenizer
from infra_lab.sampling.grammar_state import GrammarState

EOS, END_OF_TURN = 0, 1
MERGED = ('{"', '":', '",', '"}', "},", "ab", "abc", " a", " {", "12", "true", "null", "],[", "\n ")
CLOSERS = frozenset('"}]')


def byte_level_tokenizer(eos_token_ids: tuple[int, ...] = (EOS,)) -> Tokenizer:
    """Two special tokens, every byte, and some tokens of several bytes."""
    encode = dict(zip(range(256), visible_bytes(), strict=True))
    tokens = ["<eos>", "<end>", *encode.values()]
    merges = []
    for text in MERGED:
        known = "".join(encode[byte] for byte in text.encode())
        left = ""
        for char in known:
            if left and left + char not in tokens:
                tokens.append(left + char)
                merges.append((left, char))
            left += char
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(t, special=True, normalized=False) for t in tokens[:2]])
    return Tokenizer(backend, eos_token_ids=eos_token_ids)


def ascii_tokenizer(num_tokens: int, eos_token_id: int) -> Tokenizer:
    """One token for each of the printable ASCII characters from "!" on, behind `eos_token_id + 1`
    special ones."""
    special = [f"<{index}>" for index in range(eos_token_id + 1)]
    texts = [chr(0x21 + index) for index in range(num_tokens - len(special))]
    vocabulary = {text: index for index, text in enumerate([*special, *texts])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return Tokenizer(backend, eos_token_ids=[eos_token_id])


def visible_bytes() -> list[str]:
    """GPT-2's printable stand-in for every byte, in the order of the bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    stand_in = {byte: chr(byte) for byte in plain}
    stand_in |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def walk(
    state: GrammarState, tokenizer: Tokenizer, chance: random.Random, most: int = 300
) -> str | None:
    """The text of a document chosen by chance among all that there are, the shorter ones
    likelier; None if it is not whole after `most` tokens."""
    for _ in range(most):
        allowed = state.allowed().nonzero()[0].tolist()
        if EOS in allowed and (len(allowed) == 1 or chance.random() < 0.4):
            state.advance(EOS)
            assert state.has_ended
            return tokenizer.decode(state.token_ids)
        allowed = [token_id for token_id in allowed if token_id != EOS]
        closing = [one for one in allowed if tokenizer.decode([one]) in CLOSERS]
        state.advance(chance.choice(closing if closing and chance.random() < 0.3 else allowed))
    return None
