"""Tests that a mixture is prepared completely.

Each planted fault is found. A preparation that is killed and resumed writes the same bytes as one that is not killed.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_rows import ROWS

from rstar2.data.mixture import prepare as module
from rstar2.data.mixture.card import Card
from rstar2.data.mixture.look import count_tokens, difference, form_by_source, open_prepared
from rstar2.data.mixture.prepare import prepare
from rstar2.data.mixture.recipe import MixturePlan, MixtureRequest, mixtures, plan_mixture
from rstar2.data.reading import PIECE_ROWS
from rstar2.errors import Failure, UserError
from rstar2.loop.formats.format import default_format
from rstar2.loop.turns.demands import format_texts

BENCHMARK = "Every morning Aya goes for a nine-kilometre walk and stops at a coffee shop."
FAULTS = [
    ("What is one plus one?", "2", ""),
    ("How long is the diagonal?", "\\sqrt{2}", "integer"),
    ("How many atoms are there?", "1" + "0" * 80, "huge"),
    ("Which number is meant here?", "1", "contradicted"),
    ("Which number is meant here?", "2", "contradicted"),
    ("what is ONE plus one", "02", "duplicates"),
    (f"Long ago: {BENCHMARK} How far?", "9", "grams"),
    ("Show that it holds.", "proof", "unverifiable"),
    ("Find both sides.", "a=1, b=2", "compound"),
    ("计算三角形的面积。", "6", "language"),
    ("What is two plus two?", "4", ""),
]
"""Each fault: the problem, the answer, and the filter that drops it."""


class Silent:
    """A progress display that shows nothing. It can call a function when a step is finished."""

    def __init__(self, on_finish: Callable[[str], None] = lambda title: None) -> None:
        self.titles: list[str] = []
        self._on_finish = on_finish

    def start(self, title: str) -> None:
        self.titles.append(title)

    def rows(self, count: int) -> None: ...

    def finish(self, text: str) -> None:
        self._on_finish(self.titles[-1])


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def faulty(path: Path) -> Path:
    return jsonl(path, [{"problem": text, "answer": answer} for text, answer, _ in FAULTS])


def plan(
    *inputs: Path | str, files: tuple[str, ...] = (), also: tuple[str, ...] = (), **changes: Any
) -> MixturePlan:
    overrides = changes.pop("overrides", [])
    sources = [str(each) for each in inputs]
    return plan_mixture(MixtureRequest(sources, list(files), changes, list(also), overrides))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "data.parquet").to_pylist()
    return rows


@pytest.fixture
def benchmark(tmp_path: Path) -> str:
    return str(jsonl(tmp_path / "measured.jsonl", [{"problem": BENCHMARK, "answer": "204"}]))


def test_each_fault_is_dropped_by_its_filter_and_everything_else_kept(tmp_path: Path, benchmark: str) -> None:
    out = tmp_path / "out"
    card = prepare(plan(faulty(tmp_path / "it.jsonl"), against=[benchmark]), out, Silent())
    assert [row["id"] for row in rows_of(out)] == ["it-1", "it-11"]
    dropped = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    reasons = {row["id"]: row["reason"] for row in dropped}
    assert reasons == {f"it-{at}": reason for at, (_, _, reason) in enumerate(FAULTS, 1) if reason}
    assert sum(step["dropped"] for step in card.steps) == len(reasons)
    (grams,) = card.shared
    assert (grams["words"], grams["benchmark_id"]) == ("every morning aya goes for a nine kilometre", "1")
    assert sorted(files(out)) == ["card.json", "card.md", "data.parquet", "dropped.jsonl"]


def test_the_card_tells_counts_reasons_examples_licences_and_hashes(tmp_path: Path, benchmark: str) -> None:
    out = tmp_path / "out"
    source = faulty(tmp_path / "it.jsonl")
    prepare(plan(source, against=[benchmark]), out, Silent())
    text = (out / "card.md").read_text()
    assert "# it: 2 problems" in text
    assert "| it | math | 11 | – | 2 | 2 | – | the user's |" in text
    assert f"SHA-256 {module.sha256(source)}" in text
    assert f"SHA-256 {module.sha256(out / 'data.parquet')}" in text
    assert "answers: ['1', '2']" in text
    assert "every morning aya goes for a nine kilometre" in text
    assert Card.load(out) == Card(**json.loads((out / "card.json").read_text()))


def mixed(tmp_path: Path) -> MixturePlan:
    for name in ("toolace", "glaive-v2", "llama-nemotron"):
        text = json.dumps(ROWS[name], ensure_ascii=False)
        rows = [
            json.loads(text.replace("Hello?", f"Hi {n}?").replace("Zürich", f"city {n}")) for n in range(20)
        ]
        jsonl(tmp_path / f"{name}.jsonl", [*rows, {**rows[0], "system": None, "reasoning": "on"}, *rows[:2]])
    recipe = tmp_path / "mixture.toml"
    recipe.write_text(
        'filters = ["length", "duplicates", "near-duplicates"]\n[sources.toolace]\n[sources.glaive-v2]\ncount = 7\n'
        "[sources.llama-nemotron]\ncount = 20\n[near]\nsimilarity = 0.99\n"
    )
    file_options = [
        f"{name}={tmp_path / f'{name}.jsonl'}" for name in ("toolace", "glaive-v2", "llama-nemotron")
    ]
    return plan(recipe, files=tuple(file_options))


def test_a_mixture_in_toml_draws_its_counts_the_same_each_time(tmp_path: Path) -> None:
    card = prepare(mixed(tmp_path), tmp_path / "out", Silent())
    counts = {name: (each["read"], each["left"], each["taken"]) for name, each in card.sources.items()}
    assert counts == {"toolace": (23, 20, 20), "glaive-v2": (23, 20, 7), "llama-nemotron": (23, 20, 20)}
    assert card.sources["toolace"]["refused"] == {"malformed": 1}
    assert card.sources["llama-nemotron"]["refused"] == {"reasoning": 1}
    assert "in the paper, o4-mini rewrote" in card.sources["llama-nemotron"]["note"]
    assert "left out of the rows: the sentences of system texts" in (tmp_path / "out" / "card.md").read_text()
    prepare(mixed(tmp_path), tmp_path / "again", Silent())
    assert files(tmp_path / "out") == files(tmp_path / "again")


def test_a_stop_after_any_step_continues_to_the_same_bytes(tmp_path: Path) -> None:
    todo = mixed(tmp_path)
    progress = Silent()
    prepare(todo, tmp_path / "whole", progress)
    for at in range(len(progress.titles)):
        out = tmp_path / f"stopped-{at}"
        titles: list[str] = []

        def stop(title: str, at: int = at, titles: list[str] = titles) -> None:
            titles.append(title)
            if len(titles) > at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(todo, out, Silent(stop))
        assert not (out / "card.json").exists()
        prepare(todo, out, Silent())
        assert files(out) == files(tmp_path / "whole")


def test_what_a_kill_left_in_the_folder_does_not_hinder_the_next_start(tmp_path: Path) -> None:
    todo = plan(faulty(tmp_path / "it.jsonl"))
    prepare(todo, tmp_path / "whole", Silent())

    def stop(title: str) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        prepare(todo, out, Silent(stop))
    for name in (
        ".data.parquet.part",
        ".dropped.jsonl.77.part",
        ".card.json.77.part",
        "data.parquet",
        "card.md",
    ):
        (out / name).write_text("torn")
    prepare(todo, out, Silent())
    assert files(out) == files(tmp_path / "whole")
    (out / ".work").mkdir()  # killed while it was removed
    prepare(todo, out, Silent())
    assert files(out) == files(tmp_path / "whole")


def test_data_that_no_preparation_of_this_folder_wrote_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "data.parquet").write_text("mine")
    assert "is not empty: it contains data.parquet" in error_of(out, plan(faulty(tmp_path / "it.jsonl")))
    assert (out / "data.parquet").read_text() == "mine"


KILLED = """
import os, signal, sys
from pathlib import Path
from rstar2.data.mixture.prepare import prepare
from rstar2.data.mixture.recipe import MixtureRequest, plan_mixture

source, out, event, number = sys.argv[1:]

class Killed:
    left = int(number)

    def start(self, title): ...

    def rows(self, count):
        self.came("rows")

    def finish(self, text):
        self.came("finish")

    def came(self, name):
        self.left -= name == event
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

prepare(plan_mixture(MixtureRequest([source])), Path(out), Killed())
"""
"""A program that kills its own preparation at the n-th progress report of an event."""


@pytest.mark.long
def test_a_killed_preparation_continues_to_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} plus {n % 700}?", "answer": str(n)} for n in range(2 * PIECE_ROWS + 9)]
    source = tmp_path / "many.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    prepare(plan(source), tmp_path / "whole", Silent())
    out = tmp_path / "killed"
    for event, number, rows_left in (
        ("rows", 2, ".work/.read-*.part"),
        ("finish", 1, ".work/read-*.json"),
        ("finish", 2, ".work/filter-*.parquet"),
    ):
        words = [sys.executable, "-c", KILLED, str(source), str(out), event, str(number)]
        killed = subprocess.run(words, capture_output=True, text=True, timeout=600)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert any(out.glob(rows_left))
        assert not (out / "card.json").exists()
    prepare(plan(source), out, Silent())
    assert files(out) == files(tmp_path / "whole")


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    todo = mixed(tmp_path)
    card = prepare(todo, tmp_path / "out", Silent())
    progress = Silent()
    assert prepare(todo, tmp_path / "out", progress) == card
    assert progress.titles == []


def test_a_finished_set_whose_data_is_gone_or_changed_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    todo = plan(faulty(tmp_path / "it.jsonl"))
    prepare(todo, out, Silent())
    (out / "data.parquet").write_bytes(b"torn")
    assert "data.parquet is missing or was changed" in error_of(out, todo)
    (out / "data.parquet").unlink()
    assert "data.parquet is missing or was changed" in error_of(out, todo)


def test_the_tokens_of_a_finished_set_are_counted_when_they_are_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    todo = plan(faulty(tmp_path / "it.jsonl"))
    prepare(todo, out, Silent())

    def count(file: Path, kind: str) -> dict[str, Any]:
        return count_tokens("words", lambda rows: [7 for _ in rows], file, "problems")

    assert prepare(todo, out, Silent(), count).tokens["most"] == 7
    assert Card.load(out).tokens["name"] == "words"
    assert "## Tokens per row, with the tokenizer words" in (out / "card.md").read_text()


def test_every_file_of_a_benchmark_is_read(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "1.jsonl", [{"problem": "Is anything here?", "answer": "1"}])
    second = jsonl(tmp_path / "2.jsonl", [{"problem": BENCHMARK, "answer": "204"}])
    files = (f"aime24={first}", f"aime24={second}")
    out = tmp_path / "out"
    card = prepare(plan(faulty(tmp_path / "it.jsonl"), against=["aime24"], files=files), out, Silent())
    assert [(each["benchmark"], each["benchmark_id"]) for each in card.shared] == [("aime24", "2.jsonl: 1")]


def test_a_set_that_was_not_searched_for_benchmarks_says_so(tmp_path: Path, benchmark: str) -> None:
    source = faulty(tmp_path / "it.jsonl")
    for name, filters in (("without", ["integer"]), ("with", ["integer", "grams"])):
        out = tmp_path / name
        card = prepare(plan(source, against=[benchmark], filters=filters), out, Silent())
        assert card.checked is (name == "with")
        assert ("The rows were not compared with any benchmark." in (out / "card.md").read_text()) is (
            name == "without"
        )


def test_another_setting_uses_the_steps_it_has_in_common(tmp_path: Path, benchmark: str) -> None:
    source = faulty(tmp_path / "it.jsonl")
    out = tmp_path / "out"
    with pytest.raises(UserError, match="too few rows"):
        prepare(plan(source, overrides=["sources.it.minimum=50"]), out, Silent())
    before = {path: path.stat().st_mtime_ns for path in (out / ".work").glob("read-*")}
    assert len(before) == 3
    assert not (out / "data.parquet").exists()

    def same(title: str) -> None:
        for path, content in before.items():
            assert path.stat().st_mtime_ns == content

    prepare(plan(source, overrides=["sources.it.count=2"]), out, Silent(same))
    assert len(rows_of(out)) == 2


def error_of(out: Path, todo: MixturePlan) -> str:
    with pytest.raises(UserError) as excinfo:
        prepare(todo, out, Silent())
    return str(excinfo.value)


def test_a_count_is_a_target_and_the_card_says_how_many_rows_are_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    todo = plan(faulty(tmp_path / "it.jsonl"), overrides=["sources.it.count=48000"])
    card = prepare(todo, out, Silent())
    source_card = card.sources["it"]
    assert (source_card["taken"], source_card["target"], source_card["missing"]) == (3, 48_000, 47_997)
    assert len(rows_of(out)) == 3
    assert "- it: 47,997 rows short of the 48,000 in the recipe" in (out / "card.md").read_text()
    enough = prepare(
        plan(tmp_path / "it.jsonl", overrides=["sources.it.count=2"]), tmp_path / "two", Silent()
    )
    assert enough.sources["it"]["missing"] == 0
    assert "rows short of" not in (tmp_path / "two" / "card.md").read_text()


def test_fewer_rows_than_the_minimum_are_refused_with_what_is_left_and_why(tmp_path: Path) -> None:
    source = faulty(tmp_path / "it.jsonl")
    message = error_of(tmp_path / "out", plan(source, overrides=["sources.it.minimum=4"]))
    assert "needs at least 4 rows of it, but only 3 of 11 are left" in message
    assert "1 unverifiable, 1 compound, 2 contradicted, 1 huge" in message
    assert "--set sources.it.minimum=3" in message
    assert prepare(plan(source, overrides=["sources.it.minimum=3"]), tmp_path / "out", Silent()).rows == 3


def test_a_minimum_above_the_count_is_refused(tmp_path: Path) -> None:
    source = faulty(tmp_path / "it.jsonl")
    with pytest.raises(
        UserError, match=r"sources.it.minimum = 4 is greater than sources.it.count = 2"
    ) as error:
        plan(source, overrides=["sources.it.count=2", "sources.it.minimum=4"])
    assert "--set sources.it.minimum=2" in str(error.value.hint)
    assert (
        plan(source, overrides=["sources.it.count=2", "sources.it.minimum=2"]).recipe.sources["it"].minimum
        == 2
    )


def test_nothing_left_is_refused_with_the_reasons(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "it.jsonl", [{"problem": "Why?", "answer": "1/2"}])
    assert "no rows of it are left: dropped 1 integer" in error_of(tmp_path / "out", plan(source))


def test_a_folder_of_another_mixture_or_of_something_else_is_refused(tmp_path: Path) -> None:
    source = faulty(tmp_path / "it.jsonl")
    out = tmp_path / "out"
    prepare(plan(source), out, Silent())
    message = error_of(out, plan(source, overrides=["huge.digits=3", "seed=2"]))
    assert "contains a different set; these keys differ: recipe.huge.digits, recipe.seed" in message
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    assert "is not empty: it contains notes.txt" in error_of(other, plan(source))
    assert "is a file, not a folder" in error_of(source, plan(source))
    assert "File name too long" in error_of(tmp_path / ("x" * 300), plan(source))
    assert "Not a directory" in error_of(source / "out", plan(source))


def test_a_refusal_before_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "dapo.jsonl", [{"question": "?", "reward_model": {}}])
    todo = plan("dapo", files=(f"dapo={source}",), filters=["integer"], against=[])
    assert "has no column prompt" in error_of(tmp_path / "out", todo)
    assert not (tmp_path / "out").exists()


@contextmanager
def _no_file_larger_than(size: int) -> Iterator[None]:
    """Limits the size of files, to simulate a full disk. Writing more raises OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_message_and_what_is_done_is_kept(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} plus {n * n}? {n:0500}", "answer": str(n)} for n in range(300)]
    source = jsonl(tmp_path / "it.jsonl", rows)
    with _no_file_larger_than(4096), pytest.raises(Failure, match=r"cannot write to .*out: File too large"):
        prepare(plan(source), tmp_path / "out", Silent())
    assert not (tmp_path / "out" / "card.json").exists()
    assert not list((tmp_path / "out").glob("**/*.part"))
    prepare(plan(source), tmp_path / "out", Silent())
    assert len(rows_of(tmp_path / "out")) == 300


@pytest.mark.parametrize(
    ("sources", "changes", "message"),
    [
        (["project-euler"], {}, "--from project-euler=FILE"),
        (["deepmath"], {}, "unknown source: deepmath"),
        (["toolac"], {}, "did you mean toolace?"),
        (["dapo", "toolace"], {}, "have different kinds of rows, problems and conversations"),
        (["dapo", "dapo"], {}, "two sources have the name dapo"),
        (["it.jsonl"], {"filters": ["intger"]}, "unknown filter: intger; did you mean integer?"),
        (["it.jsonl"], {"filters": ["length", "length"]}, "listed twice"),
        (["it.jsonl"], {"filters": ["solved"]}, "needs an evaluation"),
        (["toolace"], {"filters": ["integer"]}, "applies to problems, not to conversations"),
        (["it.jsonl"], {"against": ["aime26"]}, "unknown benchmark: aime26"),
        (["it.jsonl"], {"overrides": ["huge.digit=3"]}, "unknown key huge.digit"),
        (["it.jsonl"], {"overrides": ["sources.other.count=3"]}, "the recipe's source other is unknown"),
        (["it.jsonl"], {"files": ("dapo=x.jsonl",)}, "dapo is not in the mixture"),
        (["it.jsonl"], {"files": ("dapo",)}, "not of the form NAME=FILE"),
        (["it.jsonl"], {"files": ("it=x.jsonl",)}, "it already names a file"),
        (["it.jsonl", "paper-rl"], {}, "paper-rl is a mixture, which cannot be combined"),
        (["it.jsonl"], {"measured": {"run": "run"}}, "no filter uses the evaluation run"),
        (
            ["it.jsonl"],
            {"also": ("pass-rate",), "measured": {"run": "run", "least": 0.9, "most": 0.1}},
            "measured.least = 0.9 is greater than measured.most = 0.1",
        ),
        (
            ["it.jsonl"],
            {"overrides": ["length.least=9", "length.most=8"]},
            "length.least = 9 is greater than length.most = 8",
        ),
        (
            ["it.jsonl"],
            {"also": ("agreement",), "agreement": {"sources": ["dapoo"]}},
            "agreement.sources: dapoo is not in the mixture",
        ),
        (
            ["it.jsonl"],
            {"also": ("agreement",), "agreement": {"by": "run"}},
            "the evaluation at run has no problem of it",
        ),
        (
            ["it.jsonl"],
            {"also": ("solved",), "measured": {"run": "run"}},
            "the evaluation at run has no problem of it",
        ),
        (["absent.jsonl"], {}, "cannot read absent.jsonl"),
        (["absent.toml"], {}, "cannot read the recipe absent.toml"),
    ],
)
def test_what_is_asked_is_checked_before_a_row_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    faulty(tmp_path / "it.jsonl")
    (tmp_path / "run").mkdir()
    results = {"per_problem": [{"id": "other-1", "correct": 1, "samples": 1}]}
    (tmp_path / "run" / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError) as excinfo:
        plan(*sources, **changes)
    assert message in excinfo.value.message


def test_the_shipped_mixtures_resolve(tmp_path: Path) -> None:
    benchmark_file = jsonl(tmp_path / "m.jsonl", [{"problem": BENCHMARK, "answer": "204"}])
    files = tuple(f"{name}={benchmark_file}" for name in ("math500", "aime24", "aime25", "hmmt25"))
    euler = (f"project-euler={benchmark_file}",)
    plans = {name: plan(name, files=files + euler * (name == "paper-rl")) for name in mixtures()}
    assert set(plans) == {"paper-rl", "paper-sft", "dapo"}
    counts = {name: each.count for name, each in plans["paper-sft"].recipe.sources.items() if each.count}
    assert counts == {"glaive-v2": 101_000, "magicoder": 48_000, "llama-nemotron": 27_000}
    assert all(each.minimum for each in plans["paper-sft"].recipe.sources.values() if each.count)
    assert list(plans["paper-rl"].recipe.sources) == ["dapo", "openmathreasoning", "project-euler"]
    assert plans["paper-rl"].recipe.agreement.least == 2 / 16


def test_a_point_in_a_files_name_hinders_no_setting_and_any_seed_draws(tmp_path: Path) -> None:
    source = faulty(tmp_path / "my.data.jsonl")
    todo = plan(source, overrides=["sources.my-data.count=1", "seed=12345678901"], filters=["integer"])
    card = prepare(todo, tmp_path / "out", Silent())
    assert card.sources["my-data"]["taken"] == 1


def test_an_option_changes_a_part_of_a_table_of_the_recipe(tmp_path: Path) -> None:
    jsonl(tmp_path / "it.jsonl", [{"problem": "?a", "answer": "1"}])
    recipe = tmp_path / "r.toml"
    recipe.write_text('filters = ["agreement"]\n[sources.it]\n[agreement]\nleast = 0.5\nsources = ["it"]\n')
    todo = plan(recipe, files=(f"it={tmp_path / 'it.jsonl'}",), agreement={"by": "pass_rate"})
    assert (todo.recipe.agreement.least, todo.recipe.agreement.sources) == (0.5, ("it",))


def test_a_preparation_in_the_same_folder_at_the_same_time_is_refused(tmp_path: Path) -> None:
    todo = plan(faulty(tmp_path / "it.jsonl"))
    out = tmp_path / "out"

    def other(title: str) -> None:
        before = sorted((out / ".work").iterdir())
        assert "is in use by another process" in error_of(out, todo)
        assert sorted((out / ".work").iterdir()) == before

    prepare(todo, out, Silent(other))
    assert (out / "card.json").exists()


def test_two_sets_are_compared_by_their_ids(tmp_path: Path) -> None:
    source = faulty(tmp_path / "it.jsonl")
    prepare(plan(source), tmp_path / "a", Silent())
    prepare(plan(source, filters=["integer", "contradicted"]), tmp_path / "b", Silent())
    changed = difference(tmp_path / "a", tmp_path / "b")
    assert (changed.only_first, dict(changed.only_second)) == ({}, {"it": 3})
    assert (changed.same, dict(changed.changed)) == (3, {})
    assert difference(tmp_path / "a", tmp_path / "a").same == 3


def test_lengths_are_counted_in_tokens(tmp_path: Path) -> None:
    prepare(plan(faulty(tmp_path / "it.jsonl")), tmp_path / "out", Silent())
    data = open_prepared(tmp_path / "out")

    def count(rows: list[dict[str, Any]]) -> list[int]:
        return [10 * len(row["problem"].split()) for row in rows]

    token_counts = count_tokens("words", count, data.file, "problems")
    assert (token_counts["counted"], token_counts["most"], token_counts["over"]) == (3, 180, 0)
    assert sum(count for _, count in token_counts["histogram"]) == 3
    with pytest.raises(UserError, match="there is no prepared data at"):
        open_prepared(tmp_path)


BMI = {"name": "bmi", "parameters": {"type": "object", "properties": {}}}


def conversations(path: Path, count: int) -> Path:
    """Writes `count` conversations whose replies give a value, and as many that also have a system prompt."""
    rows = []
    for number in range(count):
        question = {"role": "user", "content": f"The BMI of patient {number}?"}
        calls = [{"function": {"name": "bmi", "arguments": {}}}]
        turns = [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": f'{{"bmi": {number}.25}}'},
            {"role": "assistant", "content": f"It is {number}.25."},
        ]
        rows.append({"messages": [question, *turns], "tools": [BMI]})
        instruction = {"role": "system", "content": f"Nurse {number}. Put the answer inside <answer>."}
        rows.append({"messages": [instruction, question, *turns], "tools": [BMI]})
    return jsonl(path, rows)


def instructed_ids(folder: Path) -> list[str]:
    return [row["id"] for row in rows_of(folder) if row["answer_form"]]


def test_a_share_of_the_conversations_is_marked_for_the_form_that_rl_rewards(tmp_path: Path) -> None:
    source = conversations(tmp_path / "it.jsonl", 60)
    cards = {}
    for name, overrides in {
        "half": ["answer_form=0.5"],
        "again": ["answer_form=0.5"],
        "seed": ["answer_form=0.5", "seed=2"],
        "own": [],
        "all": ["answer_form=1"],
        "none": ["answer_form=1", "sources.it.answer_form=0"],
    }.items():
        cards[name] = prepare(plan(source, filters=[], overrides=overrides), tmp_path / name, Silent())
    ids_by_set = {name: instructed_ids(tmp_path / name) for name in cards}
    assert 15 < len(ids_by_set["half"]) < 45
    assert ids_by_set["half"] == ids_by_set["again"] != ids_by_set["seed"]
    assert [len(ids_by_set[name]) for name in ("all", "none", "own")] == [60, 0, 0]
    forms = {name: card.sources["it"]["form"] for name, card in cards.items()}
    half_count = len(ids_by_set["half"])
    # The rows' own system texts ask for a form that no turn has.
    assert forms["half"] == {
        **{
            "share": 0.5,
            "suitable": 60,
            "marked": half_count,
            "conversations": 120,
            "rewarded_endings": half_count,
        },
        **{"turns": 240, "demanded_turns": 120 + 2 * half_count, "compliant_turns": 60 + 2 * half_count},
        **{"unlearnt_turns": 0, "lost_thoughts": 0, "mixed": 0},
    }
    assert (
        f"| it | 50 % | 60 | {half_count} | {half_count} | 240 | " in (tmp_path / "half/card.md").read_text()
    )
    form = form_by_source(open_prepared(tmp_path / "half"), format_texts(default_format()))["it"]
    assert form == {key: forms["half"][key] for key in form}


def test_a_set_without_the_column_is_still_read(tmp_path: Path) -> None:
    prepare(plan(conversations(tmp_path / "it.jsonl", 3), filters=[]), tmp_path / "new", Silent())
    table = pq.read_table(tmp_path / "new/data.parquet").drop_columns(["answer_form"])
    pq.write_table(table, tmp_path / "old.parquet")
    data = open_prepared(tmp_path / "old.parquet")
    assert (data.kind, data.rows) == ("conversations", 6)
    assert form_by_source(data, format_texts(default_format()))["it"]["marked"] == 0


def test_problems_have_no_form_of_answers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="answer_form applies to conversations"):
        plan(faulty(tmp_path / "it.jsonl"), overrides=["answer_form=0.5"])
    card = prepare(plan(faulty(tmp_path / "it.jsonl")), tmp_path / "out", Silent())
    assert "answer_form" not in card.config["recipe"]
    assert "form" not in card.sources["it"]
