"""The commands that train the random model, and the measurements of the finished steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rstar2.doctor.gpu_check.check import Measurements, Settings
from rstar2.doctor.gpu_check.tools.device import free_bytes, total_bytes
from rstar2.doctor.gpu_check.tools.model import SEED, TOKENS, random_model
from rstar2.machine import GIB, gpu_kind
from rstar2.train.estimate.memory import ASLEEP
from rstar2.train.records.steps import Metrics

STEPS = 4
PROMPTS, ROLLOUTS, KEPT = 8, 8, 4
RATE = 0.2
"""The share of every weight that a step subtracts, which is the learning rate times the weight decay. All rollouts of a
random model get the same reward, so the gradient is zero and AdamW only decays the weights. The trained weights are
therefore known exactly. The logits change so much that an engine with the weights of an earlier step would be detected.
"""
ENGINE_SHARE = 0.35
"""The engine's share of the GPU's memory."""
UNKNOWN_GPU = "h100"
"""For an unknown GPU, the plan uses the specifications of this GPU."""
PROMPT_TOKENS = 128
BUDGET, CPU_BUDGET = 256, 48
"""Maximum number of tokens in a rollout, on a GPU and on a CPU."""
AGREEMENT = 0.05
"""Maximum difference, in nats, between the mean log-probabilities of engine and trainer. Rounding causes smaller
differences.
"""


def rl_words(settings: Settings, run: Path, problems: Path) -> list[str]:
    """Returns the arguments of `rstar2 train` for the random model."""
    budget = CPU_BUDGET if settings.device == "cpu" else BUDGET
    changes = [
        f"steps={STEPS}",
        f"seed={SEED}",
        f"rollout.prompts={PROMPTS}",
        f"rollout.rollouts={ROLLOUTS}",
        f"rollout.prompt_tokens={PROMPT_TOKENS}",
        f"rollout.tokens={budget}",
        "rollout.max_turns=2",
        f"groups.keep={KEPT}",
        "groups.drop_equal_rewards=false",
        "reward=constant",
        f"optim.lr={RATE}",
        "optim.weight_decay=1.0",
        "optim.warmup_steps=0",
        "checkpoint.every=1",
        "checkpoint.keep=1",
        f"hardware.log_prob_tokens={TOKENS}",
        *_hardware(settings),
    ]
    if settings.device == "cuda":
        changes += [
            f"hardware.engine_memory_share={_engine_share(settings)}",
            "hardware.sequences_in_flight=64",
        ]
    words = ["train", "--stage", "1", "--model", str(random_model(settings)), "--data", str(problems)]
    return [*words, "--run", str(run), "--profile", _profile(settings), *_set(changes)]


def sft_words(settings: Settings, run: Path, conversations: Path, count: int, max_tokens: int) -> list[str]:
    """Returns the arguments of `rstar2 sft` for one step on `count` conversations."""
    changes = [
        f"batch={count}",
        "epochs=1",
        "lr=1e-4",
        "warmup_ratio=0",
        f"max_tokens={max_tokens}",
        *_hardware(settings),
    ]
    words = ["sft", "--model", str(random_model(settings)), "--data", str(conversations), "--run", str(run)]
    return [*words, "--profile", _profile(settings), *_set(changes)]


def _profile(settings: Settings) -> str:
    return "laptop" if settings.device == "cpu" else "1xh200"


def _hardware(settings: Settings) -> list[str]:
    changes = [f"hardware.gpus_per_node={settings.gpus}", f"hardware.update_tokens={TOKENS}"]
    return changes if settings.device == "cpu" else [*changes, f"hardware.gpu={gpu_kind() or UNKNOWN_GPU}"]


def _set(changes: Sequence[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def _engine_share(settings: Settings) -> float:
    """Returns the engine's share of the GPU's memory, which is lower if other programs use the GPU."""
    return math.floor(100 * ENGINE_SHARE * free_bytes(settings) / total_bytes(settings)) / 100


def add_memory(measurements: Measurements, settings: Settings, peak_memory_gib: float, planned: int) -> None:
    """Add the trainer's peak memory, with the plan's estimate for the update."""
    # PyTorch's figure does not include the memory of CUDA and of a sleeping engine.
    allocated = planned - (ASLEEP if settings.device == "cuda" else 0)
    measurements.add("trainer's peak memory", peak_memory_gib, "GiB", allocated / GIB)


def add_agreement(measurements: Measurements, steps: Sequence[Metrics]) -> list[str]:
    """Add the differences between the engine's and the trainer's probabilities. Returns a sentence for each step in
    which these probabilities differ too much.
    """
    metrics = {
        "largest difference of a token's probability, engine and trainer": (
            "training/rollout_probs_diff_max",
            max,
        ),
        "mean difference of a token's probability, engine and trainer": (
            "training/rollout_probs_diff_mean",
            max,
        ),
        "correlation of their probabilities": ("training/rollout_actor_probs_pearson_corr", min),
    }
    for name, (metric, worst) in metrics.items():
        if values := [step[metric] for step in steps if metric in step]:
            measurements.add(name, float(worst(values)))
    kls = [float(step.get("rollout_corr/kl", math.nan)) for step in steps]
    measurements.add("KL of engine and trainer, worst step", max(kls, key=abs), "nats/token")
    return [
        f"in step {number} of these steps, engine and trainer differ by {kl:.2g} nats per token, more than {AGREEMENT}"
        for number, kl in enumerate(kls, 1)
        if not abs(kl) <= AGREEMENT
    ]
