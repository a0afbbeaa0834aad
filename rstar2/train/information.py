"""Estimates from tokens alone, without a forward pass, how much the rollouts of a step depend on their problems.

A policy can keep its entropy and still write the same template for every problem, which RAGEN-2 (arXiv 2604.06268)
calls template collapse. RAGEN-2 measures I(X; Z), the mutual information of prompt X and reasoning Z. The estimate of
I(X; Z) is the mean, over all rollouts z, of

    log p(z | x_i) - log (1/N * sum_j p(z | x_j)),

where i is the problem of z and N is the number of problems. Each term log p is divided by the length of z in tokens. A
second measure is the retrieval accuracy: the share of rollouts for which p(z | x_j) is largest for the rollout's own
problem, j = i. Source: sections 4.3, 5.2 and 7.1 of RAGEN-2's metrics reference. In RAGEN-2, p(z | x_j) is the
policy's probability, so the policy must read every rollout after every prompt, which takes N forward passes over the
rollouts.

In this module, p(z | x_j) is a distribution over pairs of adjacent tokens. The pairs are counted in the other rollouts
of problem j and smoothed with the pairs of all problems. The rollout z itself is not counted. If the rollouts of
different problems are alike, the estimate is therefore about 0. If z were counted, the estimate would be above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OPENING_TOKENS = 256
"""Only this many tokens at the start of the model's text are compared. RAGEN-2 compares the first turn's reasoning."""
MOST_PROBLEMS = 32
"""Maximum number of problems that are compared."""
MOST_ROLLOUTS = 8
"""Maximum number of rollouts per problem that are compared. More rollouts would take time and hardly improve the
estimate."""
SMOOTHING = 0.5
"""A problem's smoothed distribution mixes its own distribution with that of all problems. This is the weight of the
latter."""
_Pairs = npt.NDArray[np.int64]
_Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Information:
    """Two measures of how much the tokens of rollouts reveal about their problem."""

    nats: float
    """The estimate of I(X; Z) in nats per token. The largest possible estimate is the logarithm of the number of
    problems."""
    retrieved: float
    """The share of rollouts that are more similar to the other rollouts of their own problem than to the rollouts of
    any other problem."""


def prompt_information(problems: Sequence[Sequence[Sequence[int]]]) -> Information | None:
    """Estimates how much rollouts depend on their problems.

    The first `MOST_ROLLOUTS` rollouts of the first `MOST_PROBLEMS` problems are compared.

    Args:
        problems: for each problem, the opening tokens of each of its rollouts.

    Returns:
        The estimate, or None if fewer than two problems have at least two rollouts with tokens.
    """
    written = [[_pairs(tokens) for tokens in rollouts if tokens][:MOST_ROLLOUTS] for rollouts in problems]
    compared = [rollouts for rollouts in written if len(rollouts) > 1][:MOST_PROBLEMS]
    if len(compared) < 2:
        return None
    kinds, coded = np.unique(
        np.concatenate([pairs for rollouts in compared for pairs in rollouts]), return_inverse=True
    )
    ends = np.cumsum([len(pairs) for rollouts in compared for pairs in rollouts])
    codes = iter(np.split(coded, ends[:-1]))
    rounds = _rounds([[next(codes) for _ in rollouts] for rollouts in compared])
    total = np.sum([_counts(each, len(compared), len(kinds)) for each in rounds], axis=0)
    gains, hits = [], []
    for each in rounds:
        likely = _log_probabilities(total - _counts(each, len(compared), len(kinds)))
        for problem, code in each.items():
            scores = likely[:, code].mean(axis=1)
            gains.append(scores[problem] - np.logaddexp.reduce(scores) + math.log(len(compared)))
            hits.append(scores.argmax() == problem)
    return Information(float(np.mean(gains)), float(np.mean(hits)))


def _pairs(tokens: Sequence[int]) -> _Pairs:
    """Returns one number for each opening token. The number encodes the token and the token before it, where -1 stands
    for the token before the first."""
    opening = np.array([-1, *tokens[:OPENING_TOKENS]], dtype=np.int64)
    return (opening[:-1] << 32) + opening[1:]


def _rounds(problems: Sequence[Sequence[_Pairs]]) -> list[dict[int, _Pairs]]:
    """Returns rounds of rollouts: the first rollout of each problem, then the second rollout of each problem, and so
    on.

    A round maps a problem's index to the problem's rollout in this round. Each rollout of a round is scored with
    distributions from the other rounds. So the distribution for the rollout's own problem is estimated from the same
    number of rollouts as the distribution for each other problem.
    """
    most = max(map(len, problems))
    return [{i: each[k] for i, each in enumerate(problems) if k < len(each)} for k in range(most)]


def _counts(codes: Mapping[int, _Pairs], problems: int, kinds: int) -> _Table:
    """Counts how often each kind of pair occurs in the rollouts of a round. Returns an array of shape (problems,
    kinds)."""
    counts = np.zeros((problems, kinds))
    for problem, code in codes.items():
        counts[problem] = np.bincount(code, minlength=kinds)
    return counts


def _log_probabilities(counts: _Table) -> _Table:
    """Returns the logarithm of each problem's distribution of pairs, smoothed with the distribution of all problems."""
    everywhere = counts.sum(axis=0) + 1
    shares = counts / counts.sum(axis=1, keepdims=True)
    mixed = (1 - SMOOTHING) * shares + SMOOTHING * everywhere / everywhere.sum()
    return np.asarray(np.log(mixed))
