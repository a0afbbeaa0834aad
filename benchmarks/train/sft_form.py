r"""Measures how well the answer form that RL rewards (`\boxed{}` inside `<answer>`) generalizes from SFT's data to
other kinds of problems.

    python benchmarks/train/sft_form.py --earlier CHECKOUT                   a tiny model: 15 minutes on two busy cores
    python benchmarks/train/sft_form.py models/smollm2 --earlier CHECKOUT    a language model: hours on two cores
    python benchmarks/train/sft_form.py --show                               the table of finished models, no training

The script generates rows in the columns of Glaive, ToolACE, Magicoder, Tulu 3 and Llama-Nemotron, in about the
proportions of `paper-sft`. `rstar2 data prepare` converts them, `rstar2 sft` trains on them, and `rstar2 eval` measures
the model on word problems in the format rstar2. No row of SFT is a word problem. `--earlier` names a checkout of
another version of rstar2, which prepares and trains on the same rows. `--share` is the value of `answer_form` with
which this version prepares the rows. If the command was stopped, run it again to continue.

Prints a Markdown table with a row per model: the shares of answers that have the form, that come after a call, and that
are correct.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from language_model import questions, set_words

from rstar2.cli.common import out
from rstar2.demo.tiny import TinyModel, make_base_model
from rstar2.eval.intervals import Interval, share
from rstar2.files import whole_folder
from rstar2.loop.formats.format import default_format
from rstar2.loop.trace import Trace, read_traces
from rstar2.loop.turns.tags import message_text
from rstar2.train.conversations import read_conversations

COUNTS = {"glaive-v2": 84, "toolace": 12, "magicoder": 40, "tulu3": 24, "llama-nemotron": 20}
"""Rows of each source if `Setup.times` is 1."""


@dataclass(frozen=True)
class Setup:
    """How a model is trained and measured."""

    times: int
    """Factor by which COUNTS is multiplied."""
    problems: int
    sft: tuple[str, ...]


LANGUAGE_MODEL = Setup(
    times=1,
    problems=64,
    sft=("epochs=1", "batch=12", "lr=1e-4", "checkpoint_every=5", "hardware.update_tokens=1920"),
)
TINY = Setup(times=4, problems=200, sft=("epochs=4", "batch=16", "lr=3e-3", "checkpoint_every=60"))
SFT = ("warmup_ratio=0.1", "max_tokens=640", "hardware.hung_after_s=7200")
SIZE = TinyModel(vocab=2048, hidden=128, layers=4, rope_theta=1000.0)
EVAL = (
    *("--format", "rstar2", "--force-format", "-n", "1", "--temperature", "1.0"),
    *("--max-tokens", "160", "--max-turns", "3"),
)
FUNCTIONS: tuple[tuple[str, str, dict[str, tuple[int, int]], str, str], ...] = (
    (
        "calculate_bmi",
        "My weight is {kg} kg and my height is {cm} cm. What is my BMI?",
        {"kg": (50, 110), "cm": (150, 200)},
        "round(kg / (cm / 100) ** 2, 2)",
        "With a weight of {kg} kg and a height of {cm} cm your BMI is {value}.",
    ),
    (
        "calculate_tip",
        "My bill is ${bill}. How much is a tip of {percent}%?",
        {"bill": (20, 300), "percent": (5, 25)},
        "round(bill * percent / 100, 2)",
        "A tip of {percent}% on your bill of ${bill} is ${value}.",
    ),
    (
        "convert_length",
        "How many centimetres are {inches} inches?",
        {"inches": (3, 400)},
        "round(inches * 2.54, 2)",
        "{inches} inches are {value} centimetres.",
    ),
    (
        "calculate_area",
        "What is the area of a rectangle {width} m wide and {length} m long?",
        {"width": (3, 90), "length": (3, 90)},
        "width * length",
        "The rectangle has an area of {value} square metres.",
    ),
    (
        "calculate_age",
        "I was born in {born}. How old do I get in {year}?",
        {"born": (1940, 2005), "year": (2010, 2040)},
        "year - born",
        "You turn {value}.",
    ),
)
"""Functions for the generated rows. Each has a name, a question, the ranges of its arguments, an expression for its
result, and a reply."""
TOPICS = (
    "a garden",
    "a lighthouse",
    "an old train",
    "a bakery",
    "the sea",
    "a library",
    "snow",
    "a long bridge",
)
PLACES = ("Oslo", "Lima", "Kyoto", "Cairo", "Quito", "Turin", "Perth", "Leeds")
TASKS = (
    ("the sum of the squares from 1 to {n}", "print(sum(k * k for k in range(1, {n} + 1)))"),
    ("all divisors of {n}", "print([k for k in range(1, {n} + 1) if {n} % k == 0])"),
    ("the {n}th Fibonacci number", "a, b = 0, 1\nfor _ in range({n}):\n    a, b = b, a + b\nprint(a)"),
    ("the digits of {n} in reverse", "print(str({n})[::-1])"),
    ("whether {n} is a prime", "print({n} > 1 and all({n} % k for k in range(2, {n})))"),
)


def _function(name: str, arguments: list[str]) -> dict[str, Any]:
    properties = {each: {"type": "number", "description": f"The {each}"} for each in arguments}
    parameters = {"type": "object", "properties": properties, "required": arguments}
    return {"name": name, "description": name.replace("_", " ").capitalize(), "parameters": parameters}


def glaive(rng: random.Random) -> dict[str, Any]:
    """Return a row of Glaive: a call with arguments, a call without arguments, or a refusal, in the proportions of
    Glaive's own sample."""
    name, question, ranges, expression, reply = rng.choice(FUNCTIONS)
    numbers = {key: rng.randint(*ends) for key, ends in ranges.items()}
    kind = rng.choices(["value", "other", "refused"], [0.5, 0.3, 0.2])[0]
    function = _function(name, list(ranges))
    if kind == "refused":
        place = rng.choice(PLACES)
        turns = [
            ("USER", f"Book me a flight to {place} for {rng.randint(2, 9)} people."),
            ("ASSISTANT", f"I cannot book flights. I can only {name.replace('_', ' ')}. <|endoftext|>"),
        ]
    else:
        value = eval(expression, dict(numbers))
        result, arguments = {"result": value}, dict(numbers)
        if kind == "other":
            place = rng.choice(PLACES)
            function = {**_function("get_weather", []), "parameters": {"type": "object", "properties": {}}}
            name, arguments, result = "get_weather", {}, {"weather": rng.choice(["rain", "sun", "fog"])}
            question, reply = f"How is the weather in {place}?", f"In {place} there is {result['weather']}."
        call = f'{{"name": "{name}", "arguments": \'{json.dumps(arguments)}\'}}'
        turns = [
            ("USER", question.format(**numbers)),
            ("ASSISTANT", f"<functioncall> {call} <|endoftext|>"),
            ("FUNCTION RESPONSE", json.dumps(result)),
            ("ASSISTANT", f"{reply.format(**numbers, value=value)} <|endoftext|>"),
        ]
    system = (
        "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    )
    chat = "\n\n\n".join(f"{speaker}: {text}" for speaker, text in turns)
    return {"system": system + json.dumps(function, indent=4), "chat": chat}


def toolace(rng: random.Random) -> dict[str, Any]:
    """Return a row of ToolACE that ends with its call, as most of its rows do."""
    name, question, ranges, _, _ = rng.choice(FUNCTIONS)
    numbers = {key: rng.randint(*ends) for key, ends in ranges.items()}
    call = ", ".join(f"{key}={value}" for key, value in numbers.items())
    system = (
        "You are an expert in composing functions. Here is a list of functions in JSON format that you can invoke:\n"
        f"{json.dumps([_function(name, list(ranges))])}. \nShould you decide to return the function call(s), put it in "
        "the format of [func1(params_name=params_value)]\n"
    )
    turns = [("user", question.format(**numbers)), ("assistant", f"[{name}({call})]")]
    return {"system": system, "conversations": [{"from": role, "value": text} for role, text in turns]}


def magicoder(rng: random.Random) -> dict[str, Any]:
    task, code = rng.choice(TASKS)
    number = rng.randint(10, 500)
    intro = rng.choice(["This program does it:", "A few lines are enough:", "We compute it directly:"])
    solution = f"{intro}\n```python\n{code.format(n=number)}\n```\nIt prints the result."
    return {"lang": "python", "problem": f"Print {task.format(n=number)}.", "solution": solution}


def tulu3(rng: random.Random) -> dict[str, Any]:
    topic, place, count = rng.choice(TOPICS), rng.choice(PLACES), rng.randint(2, 4)
    prompt = f"Write {count} short sentences about {topic} in {place}, and end each with an exclamation mark."
    answer = " ".join(
        rng.choice(
            [f"I like {topic}!", f"{place} has {topic}!", f"Come and see {topic}!", "What a day it was!"]
        )
        for _ in range(count)
    )
    roles = (("user", prompt), ("assistant", answer))
    messages = [{"role": role, "content": text} for role, text in roles]
    return {"prompt": prompt, "messages": messages, "constraints": ["punctuation"]}


def llama_nemotron(rng: random.Random) -> dict[str, Any]:
    topic, place = rng.choice(TOPICS), rng.choice(PLACES)
    question = f"I visit {place} for {rng.randint(2, 9)} days. Should I look at {topic}?"
    answer = f"Yes. In {place}, {topic} is worth a visit, above all in the morning. Take your time."
    return {
        **{"input": [{"role": "user", "content": question}], "output": answer, "reasoning": "off"},
        **{
            "system_prompt": "detailed thinking off",
            "category": "chat",
            "license": "odc-by",
            "generator": "made",
        },
    }


MAKERS = {
    "glaive-v2": glaive,
    "toolace": toolace,
    "magicoder": magicoder,
    "tulu3": tulu3,
    "llama-nemotron": llama_nemotron,
}


class Study:
    """The compared models and their results, in one folder."""

    def __init__(self, model: Path | None, runs: Path, answer_form: float, earlier: Path | None) -> None:
        self.runs, self.share, self.earlier = runs, answer_form, earlier
        self.setup = TINY if model is None else LANGUAGE_MODEL
        self.model = model or runs / "base"
        self.data = runs / "data"

    def run(self) -> None:
        """Do everything that is not done yet."""
        if not (self.data / "held_out.jsonl").exists():
            self.write_data()
        if not self.model.exists():
            self.make_model()
        self.measure("before SFT", self.model)
        if self.earlier is not None:
            self.train("earlier", self.earlier, [])
            self.measure("after SFT, earlier version", self.runs / "earlier/sft/model")
        self.train("now", None, [f"answer_form={self.share}"])
        self.measure("after SFT", self.runs / "now/sft/model")

    def write_data(self) -> None:
        """Write the sources' rows, the mixture and the held-out problems. They are the same each time."""
        self.data.mkdir(parents=True, exist_ok=True)
        counts = {name: self.setup.times * count for name, count in COUNTS.items()}
        for name, count in counts.items():
            rng = random.Random(name)
            # More rows than needed, since some are equal and the preparation drops copies.
            _write_lines(self.data / f"{name}.jsonl", [MAKERS[name](rng) for _ in range(3 * count)])
        tables = "".join(f"[sources.{name}]\ncount = {count}\n" for name, count in counts.items())
        (self.data / "mixture.toml").write_text(f'filters = ["duplicates"]\nseed = 1\n{tables}')
        held_out = islice(questions(1, held_out=True), self.setup.problems)
        rows = [{"id": each.id, "problem": each.problem, "answer": each.answer} for each in held_out]
        _write_lines(self.data / "held_out.jsonl", rows)

    def make_model(self) -> None:
        """Create a tiny model with random weights, and a tokenizer trained on the rows."""
        self.prepare("base-rows", None, [])
        rows = read_conversations(self.runs / "base-rows/data.parquet")
        texts = [
            [{"role": each["role"], "content": message_text(each)} for each in row["messages"]]
            for row in rows
        ]
        with whole_folder(self.model) as part:
            make_base_model(part, SIZE, texts, default_format().template, seed=1)

    def train(self, name: str, checkout: Path | None, changes: list[str]) -> None:
        """Prepare the rows and train on them, with this version of rstar2 or that of a checkout."""
        folder = self.runs / name
        self.prepare(f"{name}/data", checkout, changes)
        sft = ["sft", "--model", self.model, "--data", folder / "data", "--run", folder / "sft"]
        settings = set_words([*SFT, *self.setup.sft])
        rstar2(*sft, "--profile", "laptop", *settings, checkout=checkout)

    def prepare(self, folder: str, checkout: Path | None, changes: list[str]) -> None:
        sources: list[str] = []
        for source in COUNTS:
            sources += ["--from", f"{source}={self.data / source}.jsonl"]
        mixture = ["data", "prepare", self.data / "mixture.toml", *sources, "--output", self.runs / folder]
        rstar2(*mixture, *set_words(changes), checkout=checkout)

    def measure(self, name: str, model: Path) -> None:
        folder = self.runs / "eval" / name.replace(" ", "-").replace(",", "")
        rstar2("eval", self.data / "held_out.jsonl", "--run", folder, "--model", model, *EVAL)

    def show(self) -> None:
        """Print the results as a Markdown table, in percent with 95 % intervals over the problems."""
        columns = ("form of RL", "95 % interval", "made a call", "correct", "95 % interval")
        out.print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}", markup=False, soft_wrap=True)
        for name in ("before SFT", "after SFT, earlier version", "after SFT"):
            folder = self.runs / "eval" / name.replace(" ", "-").replace(",", "")
            traces = [trace for file in folder.glob("**/traces.jsonl") for trace in read_traces(file)]
            if not traces:
                continue
            formed, correct = sum(map(_in_form, traces)), sum(trace.correct for trace in traces)
            called = sum(bool(trace.calls) for trace in traces)
            cells = [
                *(f"{100 * formed / len(traces):.0f}", _percent(share(formed, len(traces)))),
                f"{100 * called / len(traces):.0f}",
                *(f"{100 * correct / len(traces):.0f}", _percent(share(correct, len(traces)))),
            ]
            out.print(f"| {name} | {' | '.join(cells)} |", markup=False, soft_wrap=True)


def _in_form(trace: Trace) -> bool:
    """Whether the paper's rule extracts an answer from the trace."""
    return trace.read_by == "paper"


def _percent(interval: Interval) -> str:
    return f"{100 * interval.low:.0f} – {100 * interval.high:.0f}"


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rstar2(*words: Any, checkout: Path | None = None) -> None:
    """Run or continue an rstar2 command, with this version or that of a checkout."""
    environment = dict(os.environ)
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout)
    subprocess.run(
        [sys.executable, "-m", "rstar2", *map(str, words)], check=True, env=environment, cwd=checkout
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        help="a folder with SmolLM2's weights (docs/start.md shows how to make it)",
    )
    parser.add_argument(
        "--earlier", type=Path, help="a checkout of another version, trained on the same rows"
    )
    parser.add_argument("--share", type=float, default=0.5, help="answer_form for this version")
    parser.add_argument("--runs", type=Path, default=Path("runs/sft-form"))
    parser.add_argument(
        "--show", action="store_true", help="print the table of finished models, and train none"
    )
    options = parser.parse_args()
    earlier = options.earlier.resolve() if options.earlier else None
    model = options.model.resolve() if options.model else None
    study = Study(model, options.runs.resolve(), options.share, earlier)
    if not options.show:
        study.run()
    study.show()


if __name__ == "__main__":
    main()
