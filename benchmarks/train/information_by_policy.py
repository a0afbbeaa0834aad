"""Compares two estimates of how much rollouts depend on their problem: rstar2's, and RAGEN-2's, which needs the policy.

    python benchmarks/train/information_by_policy.py --runs runs/alarms

For each finished run of `alarms.py`, the run's last model scores the rollouts of the last step. It scores the first
turn of ROLLOUTS rollouts of each problem, under the prompt of every problem of the step (arXiv 2604.06268; the formulas
are in the head of `rstar2.train.information`).

Prints both estimates for each run, and Spearman's rank correlations of the two with each other and with the pass rate
of the step.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from demo_arms import table
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM

from rstar2.loop.trace import Trace, read_traces
from rstar2.train.group import Rollout
from rstar2.train.information import Information, prompt_information

ROLLOUTS = 4
"""Number of rollouts per problem that the policy scores."""
Problems = list[list[Trace]]


@dataclass(frozen=True)
class Compared:
    """Both estimates for the last step of a run."""

    run: str
    policy: Information
    tokens: Information
    pass_rate: float


def compared(stage: Path) -> Compared:
    """Return both estimates for the last step of a stage. The stage must have written every trace."""
    problems: dict[str, list[Trace]] = defaultdict(list)
    for trace in read_traces(max((stage / "traces").glob("step-*.jsonl"))):
        problems[trace.problem_id].append(trace)
    traces = list(problems.values())
    model = AutoModelForCausalLM.from_pretrained(stage / "model", dtype=torch.float32).eval()
    tokens = prompt_information([[Rollout.from_trace(trace).opening for trace in each] for each in traces])
    assert tokens is not None, "a step has several problems"
    return Compared(
        f"{stage.parents[2].name}/{stage.parents[1].name}",
        by_policy(model, traces),
        tokens,
        float(np.mean([trace.correct for each in traces for trace in each])),
    )


def by_policy(model: Any, problems: Problems) -> Information:
    """Return RAGEN-2's estimate in nats per token, and its retrieval accuracy."""
    prompts = [rollouts[0].prompt_ids for rollouts in problems]
    gains, hits = [], []
    for i, rollouts in enumerate(problems):
        for trace in rollouts[:ROLLOUTS]:
            turn = trace.turns[0]
            scores = _scores(model, prompts, trace.response_ids[turn.start : turn.end])
            gains.append(scores[i] - np.logaddexp.reduce(scores) + math.log(len(problems)))
            hits.append(scores.argmax() == i)
    return Information(float(np.mean(gains)), float(np.mean(hits)))


def _scores(model: Any, prompts: Sequence[Sequence[int]], written: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the mean log-probability of the tokens `written` after each prompt."""
    scores = np.zeros(len(prompts))
    for length in {len(prompt) for prompt in prompts}:  # prompts of equal length are a batch
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([[*prompts[i], *written] for i in rows])
        with torch.inference_mode():
            likely = model(ids).logits[:, length - 1 : -1].log_softmax(-1)
        scores[rows] = likely.gather(-1, ids[:, length:, None]).squeeze(-1).mean(1).numpy()
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/alarms"), help="the folder of alarms.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [compared(model.parent) for model in sorted(options.runs.glob("seed*/*/training/stage1/model"))]
    if len(runs) < 3:
        parser.exit(
            1, f"{options.runs} has {len(runs)} finished runs, and three are needed: run alarms.py first\n"
        )
    rows = [
        [each.run, *(f"{value:.2f}" for one in (each.policy, each.tokens) for value in (one.nats, one.retrieved)),
         f"{each.pass_rate:.0%}"]
        for each in runs
    ]  # fmt: skip
    print(table(["run", "policy, nats", "retrieved", "tokens, nats", "retrieved", "pass rate"], rows))
    policy, tokens = [each.policy.nats for each in runs], [each.tokens.nats for each in runs]
    rates = [each.pass_rate for each in runs]
    for name, one, other in (
        ("policy and tokens", policy, tokens),
        ("policy and pass rate", policy, rates),
        ("tokens and pass rate", tokens, rates),
    ):
        print(f"Spearman's correlation of {name}: {spearmanr(one, other).statistic:.2f}, {len(runs)} runs")


if __name__ == "__main__":
    main()
