"""How much the rollouts of a step depend on their problems, estimated from their tokens without a forward pass.

A policy can keep its entropy and yet write the same template for every problem. RAGEN-2 (arXiv 2604.06268) calls that
template collapse and measures I(X; Z), the mutual information of prompt X and reasoning Z. Its estimate ("Mutual
Information" and "Matched vs Marginal Log-Probabilities", sections 4.3 and 5.2 of the authors' reference of their
metrics) is the mean over rollouts z of problem i, among N problems, of

    log p(z | x_i) - log (1/N * sum_j p(z | x_j)),

with each log p divided by the length of z; and its retrieval accuracy (section 7.1) is the share of rollouts for which
x_i has the largest p(z | x_j). There p(z | x_j) is the policy itself, which has to read every rollout once more under
every prompt: N forward passes over the rollouts.

Here p(z | x_j) is a distribution of pairs of adjacent tokens, counted in the other rollouts of problem j and smoothed
with those of all problems. z itself is never counted, so the estimate is about 0, not above it, if the rollouts of
different problems are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OPENING_TOKENS = 256
"""The tokens at the start of a rollout's own text that are compared. RAGEN-2 compares the first turn's reasoning."""
MOST_PROBLEMS = 32
MOST_ROLLOUTS = 8
"""Rollouts of each problem that are compared. More would take more time than the estimate gains."""
SMOOTHING = 0.5
"""The weight of the distribution of all problems in that of one problem."""
_Pairs = npt.NDArray[np.int64]
_Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Information:
    """What the tokens of rollouts say about which problem they belong to."""

    nats: float
    """The estimate of I(X; Z) in nats per token, at most the logarithm of the number of problems."""
    retrieved: float
    """The share of the rollouts that fit the other rollouts of their own problem best."""


def prompt_information(problems: Sequence[Sequence[Sequence[int]]]) -> Information | None:
    """Estimate the dependence from the opening tokens of each rollout of each problem.

    Compares at most `MOST_ROLLOUTS` rollouts of at most `MOST_PROBLEMS` problems, the first of each. Returns None if
    fewer than two problems have at least two rollouts with tokens.
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
    """Each opening token with the one before it, as one number; the first token follows none."""
    opening = np.array([-1, *tokens[:OPENING_TOKENS]], dtype=np.int64)
    return (opening[:-1] << 32) + opening[1:]


def _rounds(problems: Sequence[Sequence[_Pairs]]) -> list[dict[int, _Pairs]]:
    """The first rollout of every problem, by the problem's index; then the second of those that have one; and so on.

    A round is scored with the distributions of the other rounds, so that no problem is counted on more rollouts than
    the rollout's own one.
    """
    most = max(map(len, problems))
    return [{i: each[k] for i, each in enumerate(problems) if k < len(each)} for k in range(most)]


def _counts(codes: Mapping[int, _Pairs], problems: int, kinds: int) -> _Table:
    """How often each pair stands in a round, of shape (problems, kinds)."""
    counts = np.zeros((problems, kinds))
    for problem, code in codes.items():
        counts[problem] = np.bincount(code, minlength=kinds)
    return counts


def _log_probabilities(counts: _Table) -> _Table:
    """The logarithm of each problem's distribution of pairs, smoothed with that of all problems."""
    everywhere = counts.sum(axis=0) + 1
    shares = counts / counts.sum(axis=1, keepdims=True)
    mixed = (1 - SMOOTHING) * shares + SMOOTHING * everywhere / everywhere.sum()
    return np.asarray(np.log(mixed))
