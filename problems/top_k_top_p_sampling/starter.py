"""Top-k and top-p sampling. The statement is in README.md; run
`infra-lab test top_k_top_p_sampling` to grade."""

import numpy as np


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    """The distribution after temperature, top-k and top-p, as float64, one entry a token.

    Raises:
        ValueError: temperature < 0, top_k < 0, or top_p outside (0, 1].
    """
    raise NotImplementedError


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    """The smallest token id whose cumulative filtered probability is greater than `u`.

    Raises:
        ValueError: as filtered_probabilities, or u outside [0, 1).
    """
    raise NotImplementedError


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    u: np.ndarray,
) -> np.ndarray:
    """Follow-up: one token for each row of `logits` (batch, vocabulary), with no Python loop.

    The other arguments have shape (batch,), and are valid.
    """
    raise NotImplementedError
