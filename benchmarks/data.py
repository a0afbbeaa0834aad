"""Measures `rstar2 data prepare` on mixtures with planted faults: speed, memory, recall, and resumption after a kill.

    python benchmarks/data.py --problems 500000 --conversations 300000 --folder /tmp/data-benchmark
    python benchmarks/data.py --copies math500.jsonl --clean aime.jsonl --leaked 1983-1-2 --folder /tmp/copies

The first command generates sources for the mixtures `paper-rl` and `paper-sft`. It prepares each mixture three times:
without interruption, with a kill -9 and a resumption, and without `near-duplicates`. That filter computes MinHashes,
which takes as long as all other work together. The benchmark prints the rates, the peak memory of all processes
together, the share of planted faults that were found, the clean rows that were dropped, and whether the resumed
preparation wrote the same bytes. Rates are rows per wall-clock second from start to end; on a busy machine, rows per
CPU second are more reliable. At the rates in docs/results/data.md, all preparations together take about two minutes.
With only a few thousand rows, the command ends before the kill, and the benchmark stops with an error.

With `--copies`, it instead copies the problems of these files, and changes spellings or words in the copies. It prints
which filters find the copies, and how many problems of the `--clean` files the filters drop. `--leaked` lists the ids
of clean problems that are known to be copies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from support.copies import measure_copies
from support.made_data import Rows, conversations, problems, words

_TICKS = os.sysconf("SC_CLK_TCK")
_BENCHMARKS = ("math500", "aime24", "aime25", "hmmt25")
_SFT_FILTERS = "length,duplicates,near-duplicates,grams"
_RL_FILTERS = f"unverifiable,compound,contradicted,huge,integer,agreement,language,{_SFT_FILTERS}"
_DRAWN = {"glaive-v2": 101_000, "magicoder": 48_000, "llama-nemotron": 27_000}
"""Rows that `paper-sft` draws per source from 300,000 conversations. From fewer conversations, it draws proportionally
fewer rows."""
Expected = dict[tuple[str, int], str]
"""The reason to drop a row, or '' if the row must be kept, keyed by source and row number."""


def write(rows: Rows, folder: Path) -> Expected:
    """Write rows as JSON lines, one file per source. Returns the reason to drop each row."""
    expected: Expected = {}
    files = {}
    counts: Counter[str] = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    for source, row, reason in rows:
        if source not in files:
            files[source] = (folder / f"{source}.jsonl").open("w", encoding="utf-8")
        counts[source] += 1
        expected[source, counts[source]] = reason
        files[source].write(json.dumps(row, ensure_ascii=False) + "\n")
    for file in files.values():
        file.close()
    return expected


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    pids, waiting = [], [root]
    while waiting:
        pids.append(waiting[-1])
        waiting += children.get(waiting.pop(), [])
    return pids


def _memory_and_cpu(pid: int) -> tuple[int, float]:
    """Return the proportional memory (PSS) of a process in bytes, and its CPU seconds, including those of children that
    have ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    pss = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return pss * 1024, sum(map(int, fields[11:15])) / _TICKS


def command(mixture: str, rows: int, folder: Path, output: Path, filters: str) -> list[str]:
    sources = [f"{file.stem}={file}" for file in sorted((folder / mixture).glob("*.jsonl"))]
    sources += [f"{name}={folder / 'measured.jsonl'}" for name in _BENCHMARKS]
    words = ["data", "prepare", mixture, "--filters", filters, "--output", str(output)]
    words += [word for each in sources for word in ("--from", each)]
    if mixture == "paper-sft":
        for name, count in _DRAWN.items():
            drawn = count * min(rows, 300_000) // 300_000
            words += ["--set", f"sources.{name}.count={drawn}", "--set", f"sources.{name}.minimum={drawn}"]
    return [sys.executable, "-m", "rstar2", *words]


def prepare(words: list[str]) -> dict[str, float]:
    """Run the command. Returns its wall-clock and CPU seconds, and its peak memory in bytes."""
    started = time.monotonic()
    run = subprocess.Popen(words)
    before, peak, others_cpu = _cpu_of_ended(), 0, 0.0
    while run.poll() is None:
        usage = {pid: _memory_and_cpu(pid) for pid in _descendants(run.pid)}
        peak = max(peak, sum(memory for memory, _ in usage.values()))
        others_cpu = max(others_cpu, sum(cpu for pid, (_, cpu) in usage.items() if pid != run.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(0.5)
    if run.returncode:
        raise SystemExit(run.returncode)
    wall_s = time.monotonic() - started
    return {"wall_s": wall_s, "cpu_s": others_cpu + _cpu_of_ended() - before, "peak": float(peak)}


def _cpu_of_ended() -> float:
    """Return the CPU seconds of the ended children of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dropped_in(output: Path) -> Expected:
    """Return the reason why each row was dropped."""
    reasons = {}
    with (output / "dropped.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if "id" in row:
                source, _, name = row["id"].rpartition("-")
            else:
                source, name = row["source"], row["place"].rpartition(" ")[2]
            reasons[source, int(name)] = row["reason"]
    return reasons


def report_rate(title: str, rows: int, ran: dict[str, float]) -> None:
    print(
        f"{title}: {rows:,} rows, {rows / ran['wall_s']:,.0f} rows/s, {rows / ran['cpu_s']:,.0f} rows per CPU second, "
        f"{ran['wall_s']:.0f} s, peak {ran['peak'] / 2**20:,.0f} MiB, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def report_faults(expected: Expected, dropped: Expected) -> None:
    planted = Counter(reason for reason in expected.values() if reason)
    right = Counter(reason for row, reason in expected.items() if reason and dropped.get(row) == reason)
    for reason, count in sorted(planted.items()):
        print(f"  {reason}: {right[reason]:,} of {count:,} found, recall {right[reason] / count:.4f}")
    wrong = [(row, reason) for row, reason in dropped.items() if not expected[row]]
    print(f"  clean rows dropped: {len(wrong)} {wrong[:3] if wrong else ''}", flush=True)


def killed(words: list[str], output: Path, sources: int) -> None:
    """Start the command, kill it while it reads source number `sources` + 1, and run it again to its end."""
    run = subprocess.Popen(words, start_new_session=True)
    work = output / ".work"
    while len(list(work.glob("read-*.json"))) < sources or not any(
        part.stat().st_size for part in work.glob(".read-*.arrow.part")
    ):
        if run.poll() is not None:
            raise SystemExit("the command ended before it could be killed; use more rows")
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    if run.wait() != -signal.SIGKILL:
        raise SystemExit("the command ended before it could be killed; use more rows")
    unfinished = sorted(path.name for path in work.glob(".*.part"))
    print(f"  killed after {sources} sources, while it wrote {', '.join(unfinished)}", flush=True)
    subprocess.run(words, check=True)


def measure(mixture: str, filters: str, expected: Expected, folder: Path) -> None:
    outputs = {name: folder / f"{mixture}-{name}" for name in ("exact", "whole", "killed")}
    exact = ",".join(name for name in filters.split(",") if name != "near-duplicates")

    def to(name: str, filters: str) -> list[str]:
        return command(mixture, len(expected), folder, outputs[name], filters)

    ran = prepare(to("whole", filters))
    report_rate(f"{mixture}, whole", len(expected), ran)
    report_faults(expected, dropped_in(outputs["whole"]))
    killed(to("killed", filters), outputs["killed"], len(list((folder / mixture).glob("*.jsonl"))) // 2)
    names = sorted(path.name for path in outputs["whole"].iterdir())
    same = names == sorted(path.name for path in outputs["killed"].iterdir()) and all(
        (outputs["whole"] / name).read_bytes() == (outputs["killed"] / name).read_bytes() for name in names
    )
    print(
        f"  after the kill: {'the same bytes' if same else 'OTHER BYTES'} in {', '.join(names)}", flush=True
    )
    ran = prepare(to("exact", exact))
    report_rate(f"{mixture} without near duplicates", len(expected), ran)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=500_000)
    parser.add_argument("--conversations", type=int, default=300_000)
    parser.add_argument("--only", choices=("paper-rl", "paper-sft"), help="prepare only this mixture")
    parser.add_argument(
        "--folder", type=Path, required=True, help="a new or empty folder; a few GB are written"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=Path, nargs="+", help="benchmarks (.jsonl) to copy")
    parser.add_argument("--clean", type=Path, nargs="+", default=[], help="other problems (.jsonl)")
    parser.add_argument("--leaked", nargs="+", default=[], metavar="ID", help="known copies among --clean")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.copies:
        measure_copies(options.copies, options.clean, options.leaked, options.folder, options.seed)
        return
    rng = random.Random(f"{options.seed}, benchmark")
    texts = [" ".join(words(rng, 30, 60)) for _ in range(600)]
    lines = "".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in texts)
    (options.folder / "measured.jsonl").write_text(lines)
    for mixture, rows, filters in (
        ("paper-rl", problems(options.problems, options.seed, texts), _RL_FILTERS),
        ("paper-sft", conversations(options.conversations, options.seed, texts), _SFT_FILTERS),
    ):
        if options.only in (None, mixture):
            measure(mixture, filters, write(rows, options.folder / mixture), options.folder)


if __name__ == "__main__":
    main()
