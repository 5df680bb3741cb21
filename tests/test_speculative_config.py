"""Settings of speculation that make no sense are refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from infra_lab.config import EngineConfig
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative_config import SpeculativeConfig


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "eagle"}, "one of ngram, draft_model, not 'eagle'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 to 32, not 0: to draft nothing"),
        ({"method": "ngram", "num_speculative_tokens": 33}, "from 1 to 32, not 33"),
        ({"method": "ngram", "num_speculative_tokens": True}, "not True"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "not 2.0"),
        ({"method": "ngram", "draft_layers": 3}, "draft_layers belongs to method 'draft_model'"),
        ({"method": "ngram", "draft_model": "m"}, "draft_model belongs to method 'draft_model'"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min must be an integer of at"),
        (
            {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3},
            r"prompt_lookup_min \(5\) must not exceed prompt_lookup_max \(3\)",
        ),
        ({"method": "ngram", "adaptive": 1}, "adaptive must be true or false, not 1"),
        ({"method": "draft_model"}, "needs either draft_model .* or draft_layers"),
        (
            {"method": "draft_model", "draft_model": "m", "draft_layers": 3},
            "needs either draft_model .* or draft_layers",
        ),
        ({"method": "draft_model", "draft_layers": 0}, "draft_layers must be an integer of at"),
        (
            {"method": "draft_model", "draft_layers": 3, "prompt_lookup_max": 3},
            "prompt_lookup_max belongs to method 'ngram'",
        ),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SpeculativeConfig(**settings)


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ({}, (2, 4)),
        ({"prompt_lookup_min": 3}, (3, 4)),
        ({"prompt_lookup_min": 6}, (6, 6)),
        ({"prompt_lookup_max": 1}, (1, 1)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 2}, (1, 2)),
    ],
)
def test_a_look_up_length_left_out_fits_the_one_given(
    given: dict[str, int], lengths: tuple[int, int]
) -> None:
    assert SpeculativeConfig("ngram", **given).lookup_lengths == lengths  # type: ignore[arg-type]


def test_a_draft_and_the_token_before_it_must_fit_a_step() -> None:
    speculative = SpeculativeConfig("ngram", num_speculative_tokens=8)
    with pytest.raises(UsageError, match=r"num_speculative_tokens \(8\) .* do not fit a step"):
        EngineConfig(max_num_seqs=4, max_num_batched_tokens=8, speculative=speculative)
    EngineConfig(max_num_seqs=4, max_num_batched_tokens=9, speculative=speculative)


def test_a_name_in_the_place_of_the_settings_is_refused_with_the_way_to_make_them() -> None:
    with pytest.raises(UsageError, match=r'not \'ngram\': give SpeculativeConfig\("ngram"\)'):
        EngineConfig(speculative="ngram")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_a_request_drafts_a_whole_number_of_tokens(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="num_speculative_tokens must be an integer"):
        SamplingParams(num_speculative_tokens=value)
