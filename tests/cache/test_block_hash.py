"""Block hashes: the chain, its domains, and an encoding in which no two inputs meet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra_lab.cache.block_hash import PrefixChain, hash_block, same_content

extra_keys = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2).map(tuple)
hash_inputs = st.tuples(
    st.binary(max_size=9), st.lists(st.integers(0, 2**40), max_size=3).map(tuple), extra_keys
)


@given(hash_inputs, hash_inputs)
def test_no_two_different_blocks_are_encoded_alike(left, right) -> None:
    def encode(parent, tokens, keys):
        return hash_block(parent, tokens, keys, hash_function=lambda data: data)

    assert (encode(*left) == encode(*right)) == (left == right)


def test_token_ids_are_hashed_in_full_width() -> None:
    small, large = range(65, 81), range(321, 337)
    assert [t & 0xFF for t in small] == [t & 0xFF for t in large]
    assert hash_block(b"", list(small)) != hash_block(b"", list(large))


def test_a_salt_and_an_adapter_of_one_name_are_different_keys() -> None:
    assert hash_block(b"", [1], (("salt", "x"),)) != hash_block(b"", [1], (("adapter", "x"),))


def test_a_chain_hashes_each_block_once() -> None:
    calls = []

    def counting_hash(data: bytes) -> bytes:
        calls.append(data)
        return bytes([len(calls)])

    chain = PrefixChain(2, hash_function=counting_hash)
    tokens = [1, 2, 3, 4]
    chain.key(1, tokens)
    tokens += [5, 6]
    chain.key(2, tokens)
    chain.key(0, tokens)
    assert len(calls) == 3


def test_a_block_is_another_block_after_another_prefix() -> None:
    first, second = PrefixChain(2), PrefixChain(2)
    assert first.key(1, [1, 2, 9, 9]).block_hash != second.key(1, [3, 4, 9, 9]).block_hash


@given(st.lists(st.integers(0, 1), max_size=6), st.lists(st.integers(0, 1), max_size=6))
def test_content_is_the_same_exactly_when_the_whole_prefix_is(left, right) -> None:
    def last_key(tokens):
        chain = PrefixChain(1, hash_function=lambda _: b"collision")
        return chain.key(len(tokens) - 1, tokens) if tokens else None

    assert same_content(last_key(left), last_key(right)) == (left == right)
