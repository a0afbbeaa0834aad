"""A real language model on a laptop: SmolLM2-135M taught to use Python by a short SFT, then trained by GRPO-RoC.

    python benchmarks/train/language_model.py models/smollm2 --gsm8k gsm8k_test.jsonl
    python benchmarks/train/language_model.py models/smollm2 --show         what is finished, without training

Everything is done by the verbs a user would take: `rstar2 data prepare`, `sft`, `train` and `eval`. The problems are
word problems made here, of a few families with other names and numbers each time; held-out ones never appear in
training, though their families do. The conversations of SFT are flawed as the demo's are: calls that fail first,
guessed and wrong answers, answers without their block. Training is ended once by kill -9 and started again. The model
is measured on held-out problems before SFT, after it and along the training; before, after and at the end on GSM8K too,
whose problems are of other kinds. The same command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rstar2.cli.common import out
from rstar2.data.builtin import run_trusted
from rstar2.files import write_json
from rstar2.loop.tools.python_code_with_standard_io import NAME

CONVERSATIONS = 320
TRAINING_PROBLEMS = 240
HELD_OUT = 96
GSM8K = 100
EVERY = 5
"""Steps between two models that are measured."""
KILLED_AFTER = EVERY
"""The step after which training is ended, once."""
FLAWS = {"repaired": 0.25, "guessed": 0.12, "wrong": 0.12, "missing": 0.12}
"""The shares of the conversations' flaws; the rest is clean."""
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
"""The model's own chat template with few words, since on two cores every token of the prompt costs."""
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
    f"checkpoint.every={EVERY}",
    f"checkpoint.export_every={EVERY}",
    "traces_per_step=8",
    "hardware.update_tokens=2176",
    "hardware.log_prob_tokens=2176",
)
EVAL = ("-n", "1", "--temperature", "1.0", "--max-tokens", "208", "--max-turns", "3")


@dataclass(frozen=True)
class Family:
    """Word problems that differ in a name and in numbers."""

    ask: str
    expression: str
    ranges: dict[str, tuple[int, int]]
    """From which number to which each quantity goes."""


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
    """A word problem with a program that solves it and one that fails."""

    id: str
    problem: str
    answer: str
    code: str
    broken: str


def questions(seed: int, held_out: bool) -> Iterator[Question]:
    """Distinct questions of one side, all families in turn; a hash of the text decides the side."""
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
    """A conversation of SFT, in one of five kinds."""
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
    """Conversations, problems to train on, held-out problems and the format, all from one seed."""
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
    """The runs of one model, in one folder."""

    def __init__(self, model: Path, runs: Path, steps: int, gsm8k: Path | None) -> None:
        self.model, self.runs, self.steps, self.gsm8k = model, runs, steps, gsm8k
        self.data = runs / "data"

    def models(self) -> dict[str, Path]:
        """What is measured, in the order in which it is made."""
        stage = self.runs / "rl" / "stage1"
        on_the_way = {f"step {n}": stage / f"models/step-{n}" for n in range(EVERY, self.steps, EVERY)}
        ends = {"before SFT": self.model, "after SFT": self.runs / "sft/model"}
        return {**ends, **on_the_way, f"step {self.steps}": stage / "model"}

    def run(self) -> None:
        """Whatever is not done yet."""
        if not (self.data / "held_out.jsonl").exists():
            write_data(self.data)
        prepared = self.data / "prepared"
        rstar2("data", "prepare", self.data / "training.jsonl", "--output", prepared)
        changes = [f"format={self.data / 'format.toml'}", *SFT]
        conversations = self.data / "conversations.jsonl"
        sft = ["--model", self.model, "--data", conversations, "--run", self.runs / "sft"]
        rstar2("sft", *sft, "--profile", "laptop", *set_words(changes))
        self.measure("before SFT")
        self.measure("after SFT")
        words = ["train", "--stage", 1, "--model", self.runs / "sft", "--data", prepared]
        words += ["--run", self.runs / "rl", "--profile", "laptop", *set_words([f"steps={self.steps}", *RL])]
        if not (self.runs / "killed.json").exists():
            self.train_until_killed(words)
        rstar2(*words)
        for name, model in self.models().items():
            # A kill at another moment may leave a model on the way unmade.
            if model.exists():
                self.measure(name)

    def train_until_killed(self, words: list[Any]) -> None:
        """Start the training, and end it with SIGKILL once the first model on its way is made."""
        made = self.models()[f"step {KILLED_AFTER}"]
        process = subprocess.Popen([sys.executable, "-m", "rstar2", *map(str, words)])
        while process.poll() is None and not made.exists():
            time.sleep(0.5)
        if process.poll() is not None:
            raise SystemExit(f"training ended by itself before step {KILLED_AFTER}: {process.returncode}")
        process.kill()
        process.wait()
        write_json(self.runs / "killed.json", {"after_step": len(self.trained())})

    def trained(self) -> list[dict[str, str]]:
        """The rows of the steps that are done."""
        table = self.runs / "rl/steps.csv"
        return list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []

    def measure(self, name: str) -> None:
        """One model on the held-out problems, and on GSM8K if it is one of the three ends."""
        folder, model = self.runs / "eval" / name.replace(" ", "-"), self.models()[name]
        named = ["--format", self.data / "format.toml"] if name == "before SFT" else []
        words = ["--model", model, *named, *EVAL]
        rstar2("eval", self.data / "held_out.jsonl", "--run", folder / "held_out", *words)
        if self.gsm8k and name in ("before SFT", "after SFT", f"step {self.steps}"):
            gsm8k = ["gsm8k", "--data", self.gsm8k, "--limit", GSM8K]
            rstar2("eval", *gsm8k, "--run", folder / "gsm8k", *words)

    def found(self, name: str, benchmark: str) -> dict[str, Any] | None:
        """The numbers of a finished measurement."""
        results = self.runs / "eval" / name.replace(" ", "-") / benchmark / benchmark / "results.json"
        return json.loads(results.read_text())["summary"] if results.exists() else None

    def show(self) -> None:
        """Print what is finished, as tables in Markdown, and draw the curves of the training."""
        columns = (
            "right, %",
            "95 % interval",
            "failed calls in correct traces, %",
            "calls",
            "tokens",
            "GSM8K, %",
        )
        out.print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}", markup=False, soft_wrap=True)
        for name in self.models():
            if (numbers := self.found(name, "held_out")) is None:
                continue
            gsm8k, failed = self.found(name, "gsm8k"), numbers["failed_call_ratio_correct"]
            low, high = numbers["interval_clustered"]
            cells = [
                f"{100 * numbers['accuracy']:.1f}",
                f"{100 * low:.1f} – {100 * high:.1f}",
                "–" if failed is None else f"{100 * failed:.1f}",
                f"{numbers['calls_per_trace']:.2f}",
                f"{numbers['mean_tokens']:.1f}",
                "–" if gsm8k is None else f"{100 * gsm8k['accuracy']:.0f}",
            ]
            out.print(f"| {name} | {' | '.join(cells)} |", markup=False, soft_wrap=True)
        if steps := self.trained():
            self.draw(steps)

    def draw(self, steps: list[dict[str, str]]) -> None:
        """Pass rate, failed calls and length: of each step's rollouts before selection, and on held-out problems."""
        import matplotlib.pyplot as plt

        panels = (
            ("Right answers, %", "pass_rate", "accuracy", 100.0),
            ("Failed calls in correct traces, %", "failed_calls", "failed_call_ratio_correct", 100.0),
            ("Tokens a rollout", "tokens", "mean_tokens", 1.0),
        )
        places = {"after SFT": 0, **{f"step {n}": n for n in range(EVERY, self.steps + 1, EVERY)}}
        figure, axes = plt.subplots(1, len(panels), figsize=(12, 3.4), layout="constrained")
        for axis, (title, column, key, scale) in zip(axes, panels, strict=True):
            drawn = [(int(row["step"]), scale * float(row[column])) for row in steps if row[column]]
            axis.plot(*zip(*drawn, strict=True), color="#1f6feb", linewidth=1.2, label="rollouts of training")
            held_out = [(at, self.found(name, "held_out")) for name, at in places.items()]
            dots = [(at, scale * found[key]) for at, found in held_out if found and found[key] is not None]
            if dots:
                axis.plot(*zip(*dots, strict=True), "o", color="#d97706", label="held-out problems")
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("step")
            axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.25)
        axes[0].legend(frameon=False, fontsize=9)
        figure.savefig(self.runs / "language-model.svg", format="svg", metadata={"Date": None})
        plt.close(figure)
        out.print(f"{self.runs / 'language-model.svg'}", style="dim")


def rstar2(*words: Any) -> None:
    """Run a verb, or continue it, as a user would."""
    subprocess.run([sys.executable, "-m", "rstar2", *map(str, words)], check=True)


def set_words(changes: Iterable[str]) -> list[str]:
    """Changes of a recipe, as a command takes them."""
    return [word for change in changes for word in ("--set", change)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the folder that README's section on SmolLM2 makes")
    parser.add_argument("--gsm8k", type=Path, help="its test problems, as JSON lines")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=Path, default=Path("runs/language-model"))
    parser.add_argument("--show", action="store_true", help="print what is finished, without training")
    given = parser.parse_args()
    study = Study(given.model, given.runs, given.steps, given.gsm8k)
    if not given.show:
        study.run()
    study.show()


if __name__ == "__main__":
    main()
