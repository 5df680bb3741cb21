"""Which pieces of the calibration text a method sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.calibration import calibration_sequences
from infra_lab.quantization.settings import QuantizationSettings
from tests.models.conftest import make_config

CONFIG = make_config("llama")
SETTINGS = QuantizationSettings("gptq", 4, None)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 300))
def test_pieces_are_whole_lie_apart_and_reach_from_the_beginning_to_the_end(
    count: int, length: int, more: int
) -> None:
    settings = replace(SETTINGS, num_sequences=count, sequence_length=length)
    text = list(range(count * length + more))  # every token is its own place
    pieces = calibration_sequences(text, settings, CONFIG)
    assert pieces.shape == (count, length)
    assert (pieces.diff(dim=1) == 1).all()
    assert len(pieces.unique()) == count * length
    assert pieces[0, 0] == 0
    if count > 1:
        assert pieces[-1, -1] == len(text) - 1


def test_too_short_a_text_and_too_long_a_sequence_are_refused() -> None:
    settings = replace(SETTINGS, num_sequences=3, sequence_length=10)
    with pytest.raises(UsageError, match="has 29 tokens, and 3 sequences of 10 take 30: give a"):
        calibration_sequences(list(range(29)), settings, CONFIG)
    long = replace(settings, sequence_length=CONFIG.max_position_embeddings + 1)
    with pytest.raises(UsageError, match=r"sequences of 129 tokens do not fit .* context of 128"):
        calibration_sequences(list(range(1000)), long, CONFIG)
