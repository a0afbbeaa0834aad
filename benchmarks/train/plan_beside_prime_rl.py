"""Compares estimates of `rstar2 plan` with measurements of another trainer on GPUs: PrimeIntellect's prime-rl.

    python benchmarks/train/plan_beside_prime_rl.py

`prime_rl.json` has the measurements, with their source and licence. prime-rl trains with FSDP2, as VERL does: weights,
gradients and AdamW in fp32, computation in bf16, and recomputation of the layers in the backward pass. It differs in
three ways that matter here:

- When its SFT computes the loss, it holds four fp32 tensors of the logits' size: the logits, their log-softmax, and the
  gradients of both.
- Its RL never holds the logits of more than a few thousand tokens or vocabulary entries.
- It computes no log-probabilities before an update, and compiles the layers.

Memory is therefore planned twice: with prime-rl's memory for logits and with VERL's. The planned speed leaves out the
pass for log-probabilities. Every micro-batch is one sequence of full length. Prints a Markdown table; it takes seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rstar2.cli.common import out
from rstar2.machine import GIB, GPU_KINDS
from rstar2.model_shape import ModelShape, shape_of
from rstar2.train.estimate.memory import ASLEEP, trainer_memory
from rstar2.train.estimate.work import Assumptions, update_flop
from rstar2.train.recipe import Hardware

MEASURED = Path(__file__).with_name("prime_rl.json")
QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "tie_word_embeddings": True}  # fmt: skip
SHAPES = {
    "Qwen3-0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                   "num_attention_heads": 16},
    "Qwen3-4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
                 "num_attention_heads": 32},
}  # fmt: skip
FLOP_PER_S = {**{name.upper(): gpu.flop_per_s for name, gpu in GPU_KINDS.items()}, "A6000": 154.8e12}
LOGITS = {"sft": 8, "rl": 0}
"""Memory that prime-rl uses for logits, as a number of bf16 copies of the logits, keyed by task."""


@dataclass(frozen=True)
class Row:
    """One measurement of `prime_rl.json`."""

    gpus: int
    gpu: str
    model: str
    task: str
    sequence: int
    checkpointing: str
    attention: str
    measured: str
    micro_batches: int
    step_s: float | None
    peak_gib: float | None
    failed: str | None

    @property
    def shape(self) -> ModelShape:
        return shape_of({**QWEN3, **SHAPES[self.model]}, self.model)

    @property
    def tokens_per_s(self) -> float | None:
        """Measured tokens per second per GPU during a step."""
        return self.step_s and self.micro_batches * self.sequence / self.step_s

    @property
    def planned_tokens_per_s(self) -> float:
        flop = update_flop(self.shape, self.sequence / 2, checkpointing=True, log_probs=False)
        return Assumptions().compute_share * FLOP_PER_S[self.gpu] / flop

    def planned_gib(self, logits: int) -> float:
        """Planned GiB of the trainer's tensors. CUDA's own memory is left out, as in the measurement."""
        hardware = Hardware(gpus_per_node=self.gpus)
        planned = trainer_memory(self.shape, hardware, self.sequence, logits, 0, sends_weights=False)
        return (planned.update_total - ASLEEP) / GIB


def rows() -> list[Row]:
    return [Row(**row) for row in json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]]


def table() -> str:
    """Return the comparison as a Markdown table."""
    columns = ["", "memory, GiB", "planned GiB", "planned GiB, VERL", "tokens/s of a GPU", "planned tokens/s"]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---|" * (len(columns) - 1)]
    for row in rows():
        name = f"{row.gpus} × {row.gpu}, {row.model}, {row.task.upper()}, {row.sequence // 1024}K"
        if row.checkpointing == "offload":
            name += ", activations offloaded"
        own = row.planned_gib(LOGITS[row.task])
        cells = [
            name,
            f"{row.peak_gib:.1f}" if row.peak_gib else row.failed or "–",
            _beside(f"{own:.1f}", own, row.peak_gib),
            f"{row.planned_gib(1):.1f}",
            f"{row.tokens_per_s:,.0f}" if row.tokens_per_s else "–",
            _beside(f"{row.planned_tokens_per_s:,.0f}", row.planned_tokens_per_s, row.tokens_per_s),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(text: str, planned: float, measured: float | None) -> str:
    return text if measured is None else f"{text}, {planned / measured - 1:+.0%}".replace("-", "−")


if __name__ == "__main__":
    out.print(table(), markup=False, soft_wrap=True)
