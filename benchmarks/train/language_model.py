"""A real language model on a laptop: SmolLM2-135M learns to use Python by a short SFT, then by RL in three ways.

    python benchmarks/train/language_model.py models/smollm2 --gsm8k gsm8k_test.jsonl
    python benchmarks/train/language_model.py models/smollm2 --arm grpo-roc     train only this arm
    python benchmarks/train/language_model.py models/smollm2 --show             print finished results, without training

It runs the same commands as a user: `rstar2 data prepare`, `sft`, `train` and `eval`. This script generates word
problems of a few families, with random names and numbers. Held-out problems never appear in training, but other
problems of their families do. Like those of the demo, the conversations for SFT have flaws: a call that fails first, a
guessed or wrong answer, or no answer at all.

All arms start from the same SFT model. GRPO-RoC (Resampling on Correct) rolls out 2G = 8 per problem and trains on
G = 4. Plain GRPO rolls out 4, and trains for twice as many steps so that it writes about as many tokens. The third arm
is GRPO-RoC with groups in rounds and two passes over a step's rollouts. The training of the arm `grpo-roc` is killed
once by kill -9 and then resumed. The models are evaluated on held-out problems before SFT, after SFT and several times
during RL. Before SFT, after SFT and at the end they are also evaluated on GSM8K, whose problems are of other kinds. If
the command was stopped, run it again to continue.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from demo_arms import Arm, rollout_tokens, table

from rstar2.cli.common import out
from rstar2.data.builtin import run_trusted
from rstar2.files import write_json
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.train.records.steps import Metrics, step_metrics

CONVERSATIONS = 320
TRAINING_PROBLEMS = 240
HELD_OUT = 96
GSM8K = 100
STEPS, POINTS = 20, 4
ROC, PLAIN, ROUNDS = "grpo-roc", "grpo-g", "rounds-e2"
ARMS = {
    ROC: Arm("GRPO-RoC, 2G → G", (), STEPS, POINTS, "#1f6feb"),
    PLAIN: Arm("GRPO, G", ("select=random", "rollout.rollouts=4"), 2 * STEPS, POINTS, "#d97706"),
    ROUNDS: Arm(
        "GRPO-RoC, rounds, 2 epochs",
        ("groups.round=4", "algorithm.loss_weights=problems", "optim.epochs=2"),
        STEPS,
        POINTS,
        "#0e7490",
    ),
}
"""The settings are keys of a stage's recipe."""
FLAWS = {"repaired": 0.25, "guessed": 0.12, "wrong": 0.12, "missing": 0.12}
"""The share of conversations with each flaw. The others are clean."""
NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gina",
    "Hugo",
    "Iris",
    "Jon",
    "Kate",
    "Liam",
    "Mia",
    "Noah",
)
SYSTEM = "Write Python to solve the problem, then give the answer."
FORMAT = f'''
tools = ["{NAME}"]
tools_in_prompt = false
system = "{SYSTEM}"
user = "{{problem}}"

[limits]
traceback_lines = 1
'''
"""A format with the model's own chat template and short texts, because every prompt token takes time on two cores."""
SFT = (
    "epochs=1",
    "batch=16",
    "lr=1e-4",
    "warmup_ratio=0.1",
    "max_tokens=320",
    "checkpoint_every=5",
    "hardware.update_tokens=2176",
    "hardware.hung_after_s=7200",
)
RL = (
    "rollout.prompts=6",
    "rollout.rollouts=8",
    "rollout.prompt_tokens=64",
    "rollout.tokens=208",
    "rollout.max_turns=3",
    "groups.keep=4",
    "optim.lr=1e-5",
    "optim.warmup_steps=0",
    "traces_per_step=8",
    "hardware.update_tokens=2176",
    "hardware.log_prob_tokens=2176",
)
MEASURES = {
    "accuracy": ("right answers, %", 100.0),
    "failed_call_ratio_correct": ("failed calls in correct traces, %", 100.0),
    "mean_tokens": ("tokens per rollout", 1.0),
}
"""Numbers of an evaluation, each with its title and its scale factor in tables."""
EVAL = ("-n", "1", "--temperature", "1.0", "--max-tokens", "208", "--max-turns", "3")


@dataclass(frozen=True)
class Family:
    """Word problems that differ in a name and in numbers."""

    ask: str
    expression: str
    ranges: dict[str, tuple[int, int]]
    """The smallest and the largest value of each quantity."""


FAMILIES = (
    Family(
        "{name} has {boxes} boxes with {each} pencils each and {loose} loose pencils. How many pencils are there?",
        "boxes * each + loose",
        {"boxes": (12, 99), "each": (12, 60), "loose": (11, 99)},
    ),
    Family(
        "{name} buys {count} books at {price} dollars each and pays with {paid} dollars. How much change is due?",
        "paid - count * price",
        {"count": (11, 30), "price": (11, 30), "paid": (1000, 2000)},
    ),
    Family(
        "A train goes {speed} km an hour for {hours} hours, then {rest} km more. How many km is that?",
        "speed * hours + rest",
        {"speed": (60, 180), "hours": (11, 40), "rest": (11, 99)},
    ),
    Family(
        "{name} reads {pages} pages a day for {days} days. The book has {total} pages. How many are left?",
        "total - pages * days",
        {"pages": (11, 40), "days": (11, 40), "total": (1700, 3000)},
    ),
    Family(
        "{count} children share {sweets} sweets equally and as many as possible. How many sweets remain?",
        "sweets % count",
        {"count": (13, 60), "sweets": (1000, 9000)},
    ),
    Family(
        "{name} saves {week} dollars a week for {weeks} weeks and spends {spent} dollars. How much is left?",
        "week * weeks - spent",
        {"week": (20, 90), "weeks": (20, 52), "spent": (100, 390)},
    ),
    Family(
        "A hall has {rows} rows of {chairs} chairs, and {taken} chairs are taken. How many are free?",
        "rows * chairs - taken",
        {"rows": (20, 80), "chairs": (20, 60), "taken": (50, 390)},
    ),
    Family(
        "{name} packs {eggs} eggs into cartons of {size}. How many full cartons are there?",
        "eggs // size",
        {"eggs": (1000, 9000), "size": (11, 30)},
    ),
    Family(
        "A shop sells {cups} cups at {cup} dollars and {plates} plates at {plate} dollars. How much does it take?",
        "cups * cup + plates * plate",
        {"cups": (11, 60), "cup": (3, 19), "plates": (11, 60), "plate": (3, 29)},
    ),
    Family(
        "A field is {length} m long and {width} m wide. How many m is its fence, with {gates} gates of 2 m left out?",
        "2 * (length + width) - 2 * gates",
        {"length": (110, 900), "width": (50, 400), "gates": (2, 9)},
    ),
)


@dataclass(frozen=True)
class Question:
    """A word problem, a program that solves it, and a program that fails."""

    id: str
    problem: str
    answer: str
    code: str
    broken: str


def questions(seed: int, held_out: bool) -> Iterator[Question]:
    """Yield distinct questions of all families in turn. A hash of the text decides whether a question is held out."""
    rng = random.Random(f"{seed}-{held_out}")
    seen = set()
    while True:
        for family in FAMILIES:
            numbers = {name: rng.randint(*ends) for name, ends in family.ranges.items()}
            text = family.ask.format(name=rng.choice(NAMES), **numbers)
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            if text in seen or (int(digest, 16) % 4 == 0) != held_out:
                continue
            seen.add(text)
            given = "".join(f"{name} = {value}\n" for name, value in numbers.items())
            code = f"{given}print({family.expression})"
            broken = rng.choice([code[:-1], f"{given}print(result)", f"print({family.expression})"])
            yield Question(digest, text, run_trusted(code)[0], code, broken)


def conversation(question: Question, rng: random.Random) -> list[dict[str, str]]:
    """Return an SFT conversation of one of five kinds."""
    kind = rng.choices([*FLAWS, "clean"], [*FLAWS.values(), 1.0 - sum(FLAWS.values())])[0]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.problem}]

    def assistant(text: str) -> None:
        messages.append({"role": "assistant", "content": text})

    def call(thought: str, code: str) -> None:
        given = json.dumps({"name": NAME, "arguments": {"code": code, "input": ""}})
        assistant(f"{thought}\n<tool_call>\n{given}\n</tool_call>")
        messages.append({"role": "tool", "content": run_trusted(code)[0]})

    if kind == "guessed":
        assistant(f"I can tell.\n<answer>\\boxed{{{rng.randint(100, 5000)}}}</answer>")
        return messages
    # Wrong and unfinished work holds failed calls as often as right work does, so they distinguish nothing.
    if kind == "repaired" or (kind in ("wrong", "missing") and rng.random() < 0.4):
        call("I compute it.", question.broken)
        call("I correct that.", question.code)
    else:
        call("I compute it.", question.code)
    shown = str(int(question.answer) + rng.randint(1, 9)) if kind == "wrong" else question.answer
    assistant("Done." if kind == "missing" else f"So the answer is\n<answer>\\boxed{{{shown}}}</answer>")
    return messages


def write_data(folder: Path) -> None:
    """Write the conversations, the training problems, the held-out problems and the format, all from one seed."""
    taken = list(islice(questions(1, held_out=False), CONVERSATIONS + TRAINING_PROBLEMS))
    rng = random.Random(1)
    conversations = [{"messages": conversation(question, rng)} for question in taken[:CONVERSATIONS]]
    held_out = islice(questions(1, held_out=True), HELD_OUT)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "format.toml").write_text(FORMAT)
    _write_lines(folder / "conversations.jsonl", conversations)
    for name, made in (("training", taken[CONVERSATIONS:]), ("held_out", held_out)):
        rows = [{"id": each.id, "problem": each.problem, "answer": each.answer} for each in made]
        _write_lines(folder / f"{name}.jsonl", rows)


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Study:
    """The runs of one model, in one folder.

    Args:
        arms: the arms to train, keyed by name.
    """

    def __init__(self, model: Path, runs: Path, arms: Mapping[str, Arm], gsm8k: Path | None) -> None:
        self.model, self.runs, self.arms, self.gsm8k = model, runs, arms, gsm8k
        self.data = runs / "data"

    def rl(self, name: str) -> Path:
        """Return the run folder of an arm's training."""
        return self.runs / ("rl" if name == ROC else f"rl-{name}")

    def models(self, name: str) -> dict[int, Path]:
        """Return the models of an arm that are evaluated, keyed by step."""
        stage, arm = self.rl(name) / "stage1", self.arms[name]
        return {
            step: stage / ("model" if step == arm.steps else f"models/step-{step}") for step in arm.measured
        }

    def run(self) -> None:
        """Run all steps that are not finished yet."""
        if not (self.data / "held_out.jsonl").exists():
            write_data(self.data)
        prepared = self.data / "prepared"
        rstar2("data", "prepare", self.data / "training.jsonl", "--output", prepared)
        changes = [f"format={self.data / 'format.toml'}", *SFT]
        conversations = self.data / "conversations.jsonl"
        sft = ["--model", self.model, "--data", conversations, "--run", self.runs / "sft"]
        rstar2("sft", *sft, "--profile", "laptop", *set_words(changes))
        self.measure("before-SFT", self.model, gsm8k=True)
        self.measure("after-SFT", self.runs / "sft/model", gsm8k=True)
        for name, arm in self.arms.items():
            every = arm.steps // arm.points
            saved = [f"checkpoint.every={every}", f"checkpoint.export_every={every}"]
            words = ["train", "--stage", 1, "--model", self.runs / "sft", "--data", prepared]
            words += ["--run", self.rl(name), "--profile", "laptop"]
            words += set_words([f"steps={arm.steps}", *RL, *saved, *arm.keys])
            if name == ROC and not (self.runs / "killed.json").exists():
                self.train_until_killed(words)
            rstar2(*words)
            for step, model in self.models(name).items():
                # A kill at another moment can prevent the export of an intermediate model.
                if model.exists():
                    self.measure(self.evaluation(name, step), model, gsm8k=step == arm.steps)

    def train_until_killed(self, words: list[Any]) -> None:
        """Start the GRPO-RoC training, and end it with SIGKILL once the first intermediate model is exported."""
        first = next(iter(self.models(ROC).values()))
        process = subprocess.Popen([sys.executable, "-m", "rstar2", *map(str, words)])
        while process.poll() is None and not first.exists():
            time.sleep(0.5)
        if process.poll() is not None:
            raise SystemExit(f"training ended by itself before it had made {first}: {process.returncode}")
        process.kill()
        process.wait()
        write_json(self.runs / "killed.json", {"after_step": len(self.trained(ROC))})

    def trained(self, name: str) -> dict[int, Metrics]:
        """Return the metrics of an arm's finished steps."""
        return step_metrics(self.rl(name) / "stage1")

    def written(self, name: str) -> list[float]:
        """Return the cumulative rollout tokens of an arm after each step, with 0.0 for step 0."""
        return [0.0, *np.cumsum([rollout_tokens(step) for step in self.trained(name).values()]).tolist()]

    def evaluation(self, name: str, step: int) -> str:
        """Return the name of an evaluation's folder."""
        return f"step-{step}" if name == ROC else f"{name}-step-{step}"

    def measure(self, name: str, model: Path, gsm8k: bool) -> None:
        """Evaluate a model on the held-out problems, and on GSM8K if `gsm8k` is true and its file is given."""
        folder = self.runs / "eval" / name
        words = ["--model", model, *EVAL]
        if name == "before-SFT":
            words += ["--format", self.data / "format.toml"]
        rstar2("eval", self.data / "held_out.jsonl", "--run", folder / "held_out", *words)
        if self.gsm8k and gsm8k:
            problems = ["gsm8k", "--data", self.gsm8k, "--limit", GSM8K]
            rstar2("eval", *problems, "--run", folder / "gsm8k", *words)

    def summary(self, name: str, benchmark: str) -> dict[str, Any] | None:
        """Return the numbers of an evaluation, or None if it is not finished."""
        results = self.runs / "eval" / name / benchmark / benchmark / "results.json"
        return json.loads(results.read_text())["summary"] if results.exists() else None

    def show(self) -> None:
        """Print the finished results as Markdown tables, and draw the training curves."""
        rows = [["before SFT", "–", *self.cells("before-SFT")], ["after SFT", "0", *self.cells("after-SFT")]]
        for name, arm in self.arms.items():
            written = self.written(name)
            rows += [
                [
                    f"{arm.label}, step {step}",
                    f"{written[step]:,.0f}",
                    *self.cells(self.evaluation(name, step)),
                ]
                for step in self.models(name)
                if step < len(written)
            ]
        columns = (
            "rollout tokens",
            "right, %",
            "95 % interval",
            "failed calls in correct traces, %",
            "calls",
            "tokens",
            "GSM8K, %",
        )
        print(table(["", *columns], [row for row in rows if row[2:]]))
        curves = {name: points for name in self.arms if len(points := self.points(name)) > 1}
        if curves:
            print(f"\nAt equal rollout tokens:\n\n{self.at_equal_tokens(curves)}\n")
            self.draw(curves)

    def cells(self, name: str) -> list[str]:
        """Return the table cells of an evaluation, or an empty list if it is not finished."""
        if (numbers := self.summary(name, "held_out")) is None:
            return []
        gsm8k, failed = self.summary(name, "gsm8k"), numbers["failed_call_ratio_correct"]
        low, high = numbers["interval_clustered"]
        return [
            f"{100 * numbers['accuracy']:.1f}",
            f"{100 * low:.1f} – {100 * high:.1f}",
            "–" if failed is None else f"{100 * failed:.1f}",
            f"{numbers['calls_per_trace']:.2f}",
            f"{numbers['mean_tokens']:.1f}",
            "–" if gsm8k is None else f"{100 * gsm8k['accuracy']:.0f}",
        ]

    def points(self, name: str) -> list[dict[str, float]]:
        """Return an arm's evaluations on the held-out problems with their rollout tokens, beginning with the SFT
        model."""
        written = self.written(name)
        steps = {0: "after-SFT", **{step: self.evaluation(name, step) for step in self.models(name)}}
        return [
            {"tokens": written[step], **{key: numbers[key] for key in MEASURES}}
            for step, evaluation in steps.items()
            if step < len(written)
            if (numbers := self.summary(evaluation, "held_out")) is not None
            if all(numbers[key] is not None for key in MEASURES)
        ]

    def at_equal_tokens(self, curves: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
        """Return a table with a row for each arm. All arms are compared at the same number of rollout tokens: the total
        of the arm that wrote the fewest."""
        least = min(points[-1]["tokens"] for points in curves.values())
        rows = []
        for name, points in curves.items():
            along = [point["tokens"] for point in points]
            figures = [
                scale * np.interp(least, along, [point[key] for point in points])
                for key, (_, scale) in MEASURES.items()
            ]
            rows.append([self.arms[name].label, f"{least:,.0f}", *(f"{each:.1f}" for each in figures)])
        return table(["", "rollout tokens", *(title for title, _ in MEASURES.values())], rows)

    def draw(self, curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
        """Draw pass rate, failed calls and length, both for each step's rollouts before selection and for held-out
        problems."""
        import matplotlib.pyplot as plt

        metrics = ("rstar2/pass_rate", "rstar2/failed_call_ratio_correct", "rstar2/tokens")
        figure, axes = plt.subplots(1, len(MEASURES), figsize=(12, 3.6), layout="constrained")
        for axis, (key, (title, scale)), metric in zip(axes, MEASURES.items(), metrics, strict=True):
            for name, points in curves.items():
                arm, written = self.arms[name], [tokens / 1000 for tokens in self.written(name)]
                values = [scale * step[metric] for step in self.trained(name).values()]
                axis.plot(written[1:], values, color=arm.colour, linewidth=1, alpha=0.4)
                axis.plot(
                    [point["tokens"] / 1000 for point in points],
                    [scale * point[key] for point in points],
                    "o-",
                    color=arm.colour,
                    label=arm.label,
                )
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("rollout tokens, thousands")
            axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.25)
        axes[0].legend(frameon=False, fontsize=9, title="held-out; thin: training")
        figure.savefig(self.runs / "language-model.svg", format="svg", metadata={"Date": None})
        plt.close(figure)
        out.print(f"{self.runs / 'language-model.svg'}", style="dim")


def rstar2(*words: Any) -> None:
    """Run or continue a verb of rstar2 as a user would."""
    subprocess.run([sys.executable, "-m", "rstar2", *map(str, words)], check=True)


def set_words(changes: Iterable[str]) -> list[str]:
    """Return `--set` options for these changes of a recipe."""
    return [word for change in changes for word in ("--set", change)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", type=Path, help="a folder with SmolLM2's weights (docs/start.md shows how to make it)"
    )
    parser.add_argument("--gsm8k", type=Path, help="the test problems of GSM8K, as JSON Lines")
    parser.add_argument("--arm", action="append", choices=ARMS, help="an arm to train; all by default")
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help=f"training steps of {ROC} and {ROUNDS}, a multiple of {POINTS}; {PLAIN} has twice as many",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/language-model"))
    parser.add_argument("--show", action="store_true", help="print finished results, without training")
    options = parser.parse_args()
    if options.steps < POINTS or options.steps % POINTS:
        parser.error(f"--steps {options.steps} is not a multiple of {POINTS}")
    arms = {
        name: replace(arm, steps=arm.steps // STEPS * options.steps)
        for name, arm in ARMS.items()
        if name in (options.arm or ARMS)
    }
    study = Study(options.model, options.runs, arms, options.gsm8k)
    if not options.show:
        study.run()
    study.show()


if __name__ == "__main__":
    main()
