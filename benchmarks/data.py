"""Measures `rstar2 data prepare` on synthetic sets with planted faults: rows a second, memory, and what it finds.

    python benchmarks/data.py --problems 500000 --conversations 300000 --folder /tmp/data-benchmark

Each set is prepared twice: with all filters but near duplicates, which gives the rate, and with that filter alone,
since MinHash costs as much as the rest. The rate is rows over wall-clock seconds from the start of the command to its
end; on a busy machine rows per CPU second says more. Memory is the largest sum over the command's processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_SYLLABLES = [one + two for one in "bcdfghklmn" for two in "ae"]
_VOCABULARY = [
    f"{one}{two}{three}" for one in _SYLLABLES for two in _SYLLABLES for three in ("n", "r", "st", "l")
]
_TICKS = os.sysconf("SC_CLK_TCK")
_TOOL = {
    "name": "look_up",
    "description": "Looks something up.",
    "parameters": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name"],
    },
}
PROBLEM_FILTERS = "unverifiable,compound,contradicted,huge,integer,language,length,grams,duplicates"
Rows = Iterator[tuple[dict[str, Any], str]]
"""Rows of a source, each with the reason for which it must be dropped, or ''."""


def _words(rng: random.Random, least: int, most: int) -> list[str]:
    return rng.choices(_VOCABULARY, k=rng.randint(least, most))


def problems(count: int, seed: int, measured: list[str]) -> Rows:
    """DAPO's rows. Two in a hundred have each fault; a contradicted problem's first copy must be dropped too."""
    rng = random.Random(seed)

    def row(text: str, answer: object) -> dict[str, Any]:
        return {"prompt": text, "reward_model": {"ground_truth": answer}}

    made = 0
    while made < count:
        number = rng.randrange(10**9)
        words = _words(rng, 40, 80)
        text, answer = f"{' '.join(words)}, {number}?", str(rng.randrange(10**6))
        kind = rng.randrange(50)
        faults = {
            0: ("unverifiable", row(text, rng.choice(["proof", "notfound", "The limit does not exist"]))),
            1: ("compound", row(text, f"x={number}, y={answer}")),
            2: ("huge", row(text, rng.choice([f"6.5e{number}", "9" * 40, "10^{100}"]))),
            3: ("integer", row(text, rng.choice([f"{answer}.5", "\\sqrt{2}", "1/3"]))),
            4: ("language", row("".join(rng.choices("天地人口山水火木金土", k=60)) + str(number), answer)),
            5: ("grams", row(f"{' '.join(words[:20])} {rng.choice(measured)}, {number}", answer)),
            6: ("malformed", row(text, None)),
        }
        if kind in faults:
            reason, fault = faults[kind]
            yield fault, reason
            made += 1
            continue
        contradicted = kind == 7
        yield row(text, answer), "contradicted" if contradicted else ""
        made += 1
        if contradicted:
            yield row(text, str(int(answer) + 1)), "contradicted"
        elif kind == 8:
            yield row(text.upper().replace(",", " :"), f"${answer}$"), "duplicates"
        elif kind == 9:
            words[rng.randrange(len(words))] = "changed"
            yield row(f"{' '.join(words)}, {number}?", answer), "near-duplicates"
        made += 7 <= kind <= 9


def conversations(count: int, seed: int, measured: list[str]) -> Rows:
    """Glaive's rows. Two in a hundred have each fault."""
    rng = random.Random(seed)
    system = f"SYSTEM: You are a helpful assistant with access to these functions -\n{json.dumps(_TOOL)}\n"

    def row(asked: str, call: str) -> dict[str, Any]:
        reply = " ".join(_words(rng, 20, 30))
        turns = (f"USER: {asked}", f"ASSISTANT: <functioncall> {call} <|endoftext|>")
        rest = ('FUNCTION RESPONSE: {"found": true}', f"ASSISTANT: {reply} <|endoftext|>")
        return {"system": system, "chat": "\n\n\n".join([*turns, *rest])}

    def call(arguments: str) -> str:
        return f"""{{"name": "look_up", "arguments": '{arguments}'}}"""

    made = 0
    while made < count:
        number = rng.randrange(10**9)
        words = _words(rng, 40, 80)
        good = call(json.dumps({"name": words[0], "count": number}))
        kind = rng.randrange(50)
        asked = f"{' '.join(words)}, {number}?"
        bad = rng.choice(
            [
                call('{"name": }'),
                call('{"count": 3}'),
                call(f'{{"name": "x", "count": "{words[0]}"}}'),
                good.replace("look_up", "look_down"),
            ]
        )
        faults = {
            0: ("bad call", row(asked, bad)),
            1: ("malformed", {"system": system, "chat": None}),
            2: ("grams", row(f"{words[0]} {rng.choice(measured)} {number}", good)),
            3: ("length", row("very " * 15_000 + str(number), good)),
        }
        made += 1
        if kind in faults:
            reason, fault = faults[kind]
            yield fault, reason
            continue
        whole = row(asked, good)
        yield whole, ""
        if kind == 4:
            yield whole, "duplicates"
        elif kind == 5:
            yield {**whole, "chat": whole["chat"].replace(words[5], "changed", 1)}, "near-duplicates"
        made += kind in (4, 5)


def write(rows: Rows, file: Path) -> list[str]:
    """Write rows as JSON lines. → the reason of each."""
    expected = []
    with file.open("w", encoding="utf-8") as lines:
        for row, reason in rows:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
            expected.append(reason)
    return expected


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting[-1])
        waiting += parents.get(waiting.pop(), [])
    return found


def _memory_and_cpu(pid: int) -> tuple[int, float]:
    """Bytes in memory, shared pages counted in part, and CPU seconds."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    pss = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return pss * 1024, (int(fields[11]) + int(fields[12])) / _TICKS


def prepare(source: str, file: Path, measured: Path, output: Path, words: list[str]) -> dict[str, float]:
    """Run the command. → wall-clock and CPU seconds, and the peak of its memory in bytes."""
    command = [sys.executable, "-m", "rstar2", "data", "prepare", source, "--from", f"{source}={file}"]
    started = time.monotonic()
    run = subprocess.Popen([*command, "--output", str(output), *words, "--set", f'against=["{measured}"]'])
    peak, cpu = 0, {}
    while run.poll() is None:
        found = {pid: _memory_and_cpu(pid) for pid in _descendants(run.pid)}
        peak = max(peak, sum(memory for memory, _ in found.values()))
        cpu.update({pid: seconds for pid, (_, seconds) in found.items() if seconds})
        time.sleep(0.2)
    if run.returncode:
        raise SystemExit(run.returncode)
    return {"wall_s": time.monotonic() - started, "cpu_s": sum(cpu.values()), "peak": float(peak)}


def found_in(output: Path) -> dict[int, str]:
    """Row number to the reason for which it was dropped."""
    found = {}
    with (output / "dropped.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            name = row["id"].rpartition("-")[2] if "id" in row else row["place"].rpartition(" ")[2]
            found[int(name)] = row["reason"]
    return found


def report(
    title: str, expected: list[str], ran: dict[str, float], found: dict[int, str], kinds: set[str]
) -> None:
    rows = len(expected)
    print(
        f"{title}: {rows:,} rows, {rows / ran['wall_s']:,.0f} rows/s, {rows / ran['cpu_s']:,.0f} rows per CPU second, "
        f"peak {ran['peak'] / 2**20:,.0f} MiB"
    )
    planted = Counter(reason for reason in expected if reason in kinds)
    right = Counter(
        reason for at, reason in enumerate(expected, 1) if reason in kinds and found.get(at) == reason
    )
    for reason, count in sorted(planted.items()):
        print(f"  {reason}: {right[reason]:,} of {count:,} found, recall {right[reason] / count:.4f}")
    wrong = [at for at, reason in found.items() if expected[at - 1] not in kinds]
    print(f"  clean rows dropped: {len(wrong)} {wrong[:3] if wrong else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=500_000)
    parser.add_argument("--conversations", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, required=True, help="New or empty; a few GB.")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"{asked.seed}, benchmark")
    texts = [" ".join(_words(rng, 30, 60)) for _ in range(600)]
    measured = asked.folder / "measured.jsonl"
    measured.write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in texts))
    sets: list[tuple[str, int, Callable[[int, int, list[str]], Rows], str]] = [
        (
            "dapo",
            asked.problems,
            problems,
            PROBLEM_FILTERS,
        ),
        ("glaive-v2", asked.conversations, conversations, "length,grams,duplicates"),
    ]
    for source, count, make, filters in sets:
        file = asked.folder / f"{source}.jsonl"
        expected = write(make(count, asked.seed, texts), file)
        kinds = {*filters.split(","), "malformed", "bad call"}
        for title, names in (
            (f"{source}, exact filters", filters),
            (f"{source}, near duplicates", "near-duplicates"),
        ):
            output = asked.folder / title.replace(", ", "-").replace(" ", "-")
            ran = prepare(source, file, measured, output, ["--filters", names])
            own = {names} if names == "near-duplicates" else kinds
            found = found_in(output)
            if own != kinds:
                # Exact copies are near ones too.
                found = {at: reason for at, reason in found.items() if expected[at - 1] not in kinds}
            report(title, expected, ran, found, own)


if __name__ == "__main__":
    main()
