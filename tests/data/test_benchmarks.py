"""Tests of benchmarks.

Errors name the bad row, every source becomes problems, and a missing network gives one message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rstar2.data.benchmarks import NAMES, SOURCES, fingerprint, load_benchmark, read_problems
from rstar2.data.problem import Problem
from rstar2.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset


def rows_file(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_become_problems_with_ids_or_line_numbers(tmp_path: Path) -> None:
    path = rows_file(
        tmp_path / "p.jsonl",
        {"problem": "1+1?", "answer": "2"},
        "",
        {"id": "b", "problem": "½ + ½?", "answer": 1, "source": "kept out"},
        '{"problem": "a half?", "answer": 0.50}',
    )
    assert read_problems(path) == [
        Problem("1", "1+1?", "2"),
        Problem("b", "½ + ½?", "1"),
        Problem("4", "a half?", "0.50"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{oops", "line 2: not JSON"),
        ('{"problem": "a \\ud800", "answer": "1"}', 'line 2: field "problem" contains half a surrogate'),
        ("[1]", "line 2: not a JSON object"),
        ('{"problem": "x", "answer": NaN}', "line 2: not JSON: NaN"),
        ("[" * 100_000, "line 2: not JSON"),
        ({"problem": "x"}, 'line 2: no field "answer"'),
        ({"answer": "x"}, 'line 2: no field "problem"'),
        ({"problem": "x", "answer": ""}, 'line 2: field "answer" is empty'),
        ({"problem": "  ", "answer": "1"}, 'line 2: field "problem" is empty'),
        ({"problem": "x", "answer": None}, 'line 2: field "answer" is not text: null'),
        ({"problem": "x", "answer": True}, 'line 2: field "answer" is not text: true'),
        ({"problem": ["x"], "answer": "1"}, 'line 2: field "problem" is not text'),
        ({"id": {}, "problem": "x", "answer": "1"}, 'line 2: field "id" is not text'),
        ({"id": "a", "problem": "x", "answer": "1"}, "line 2: field \"id\": 'a' is already used at"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path: Path, row: object, message: str) -> None:
    path = rows_file(tmp_path / "p.jsonl", {"id": "a", "problem": "1+1?", "answer": "2"}, row)
    with pytest.raises(UserError) as excinfo:
        read_problems(path)
    assert excinfo.value.message.startswith(f"{path}, {message}")
    assert excinfo.value.hint


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    text = "a\u2028b\x85c"
    row = json.dumps({"problem": text, "answer": "1"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{row}\r\n\r\n{row}".encode())
    assert [(problem.id, problem.problem) for problem in read_problems(path)] == [("1", text), ("3", text)]


def test_a_missing_an_empty_and_a_binary_file_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_problems(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="contains no problems"):
        read_problems(rows_file(tmp_path / "empty.jsonl"))
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        read_problems(tmp_path / "bytes.jsonl")


def test_an_unknown_benchmark_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError) as excinfo:
        load_benchmark("no-such-set")
    assert all(name in excinfo.value.hint for name in NAMES)
    with pytest.raises(UserError, match="unknown benchmark: no-such-set"):
        load_benchmark("no-such-set", data=rows_file(tmp_path / "p.jsonl", {"problem": "x", "answer": "1"}))


HUB_ROWS: dict[str, list[dict[str, Any]]] = {
    "aime24": [{"id": 60, "problem": "P", "solution": "S", "answer": "204", "url": "", "year": "2024"}],
    "aime25": [{"question": "P", "answer": "70"}],
    "math500": [{"problem": "P", "solution": "S", "answer": "1/2", "unique_id": "test/a/1.json"}],
    "hmmt25": [{"problem_idx": 1, "problem": "P", "answer": "103", "problem_type": ["Number Theory"]}],
    "amc23": [{"problem": "P", "answer": 27.0}],
    "gsm8k": [{"question": "P", "answer": "So 2 + 2 = <<2+2=4>>4\n#### 1,234"}],
    "gpqa-diamond": [
        {
            "Question": "P",
            "Correct Answer": "right",
            "Incorrect Answer 1": "w1",
            "Incorrect Answer 2": "w2",
            "Incorrect Answer 3": "w3",
        }
    ],
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str]]:
    """Replaces the hub by small data sets with the columns of the real ones."""
    requests: list[tuple[str, str | None, str]] = []
    by_id = {SOURCES[name].hub_id: rows for name, rows in HUB_ROWS.items()}

    def load_dataset(hub_id: str, config: str | None, split: str) -> Dataset:
        from datasets import Dataset

        requests.append((hub_id, config, split))
        return Dataset.from_list(by_id[hub_id])

    monkeypatch.setattr("rstar2.data.hub.set_info", lambda hub_id: None)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return requests


@pytest.mark.parametrize(
    ("name", "ids", "answer"),
    [
        ("aime24", ["60"], "204"),
        ("aime25", ["AIME2025-I-0", "AIME2025-II-0"], "70"),
        ("math500", ["test/a/1.json"], "1/2"),
        ("hmmt25", ["1"], "103"),
        ("amc23", ["0"], "27"),
        ("gsm8k", ["main-0"], "1234"),
    ],
)
def test_each_hub_source_becomes_problems(
    hub: list[tuple[str, str | None, str]], name: str, ids: list[str], answer: str
) -> None:
    problems = load_benchmark(name)
    assert [problem.id for problem in problems] == ids
    assert {(problem.problem, problem.answer) for problem in problems} == {("P", answer)}
    assert {split for _, _, split in hub} == {SOURCES[name].split}


def test_gpqa_offers_the_choices_in_one_fixed_order_and_the_gold_is_the_right_ones_letter(
    hub: object,
) -> None:
    first, again = load_benchmark("gpqa-diamond")[0], load_benchmark("gpqa-diamond", seed=5)[0]
    assert first == again
    assert f"({first.answer}) right\n" in first.problem + "\n"
    assert all(f") {choice}\n" in first.problem + "\n" for choice in ("w1", "w2", "w3"))


def test_a_changed_column_is_refused_not_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from datasets import Dataset

    rows = Dataset.from_list([{"problem": "P", "final_answer": "1"}])
    monkeypatch.setattr("rstar2.data.hub.set_info", lambda hub_id: None)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: rows)
    with pytest.raises(UserError, match="has no column answer, unique_id"):
        load_benchmark("math500")


def test_without_a_network_or_a_cache_there_is_one_clear_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(UserError, match="cannot load HuggingFaceH4/aime_2024") as excinfo:
        load_benchmark("aime24")
    assert "--data FILE.jsonl" in excinfo.value.hint
    assert "\n" not in excinfo.value.message


def test_the_fingerprint_tells_other_problems_apart() -> None:
    one, other = Problem("1", "a", "2"), Problem("1", "a", "3")
    assert fingerprint([one]) == fingerprint([Problem("1", "a", "2")])
    assert fingerprint([one]) != fingerprint([other])


def test_the_builtin_set_is_drawn_by_seed() -> None:
    first = load_benchmark("builtin", seed=1)
    assert first == load_benchmark("builtin", seed=1)
    assert first != load_benchmark("builtin", seed=2)
    assert len(first) >= 200
    assert len({problem.id for problem in first}) == len(first)
