"""Per-token entropy without the model: bounds from the likeliest tokens, or estimates from log-probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rstar2.loop.trace import Trace

Floats = NDArray[np.float64]


def entropy_bounds(top_logprobs: Floats, vocabulary: int) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the entropy at each position, computed from the k largest log-probabilities.

    The other tokens of the vocabulary share the remaining probability. None of them is likelier than the k-th token.
    The entropy is lowest if as few other tokens as possible share the remaining probability, and highest if all other
    tokens share it equally.

    Args:
        top_logprobs: shape (N, k), natural logarithms, the k largest of each position in any order.
        vocabulary: number of tokens in the model's vocabulary.

    Returns:
        The lower and the upper bound, each of shape (N,), in nats.
    """
    probabilities = np.exp(top_logprobs.astype(np.float64))
    known = -_x_log_x(probabilities).sum(-1)
    rest = np.clip(1.0 - probabilities.sum(-1), 0.0, 1.0)
    others = vocabulary - top_logprobs.shape[-1]
    if others <= 0:
        return known, known
    least = np.maximum(probabilities.min(-1), rest / others)
    whole = np.floor(np.divide(rest, least, out=np.zeros_like(rest), where=least > 0))
    lower = known - whole * _x_log_x(least) - _x_log_x(np.clip(rest - whole * least, 0.0, 1.0))
    upper = known - others * _x_log_x(rest / others)
    return lower, upper


def stored_surprisal(trace: Trace) -> NDArray[np.float32] | None:
    """The negative log-probability of each generated token, from the trace. The result is None if the trace has no
    log-probabilities.

    The expectation of a token's negative log-probability is the entropy. The mean over many tokens is therefore an
    unbiased estimate of the mean entropy, but a single value says little. The result has shape (M,) for M tokens with
    mask 1, in nats.
    """
    if trace.logprobs is None:
        return None
    written = np.array(trace.response_mask, dtype=bool)
    return np.asarray(-np.array(trace.logprobs, dtype=np.float32)[written])


def _x_log_x(x: Floats) -> Floats:
    return x * np.log(np.where(x > 0, x, 1.0))
