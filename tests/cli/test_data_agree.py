"""Tests of `rstar2 data agree`: a served model's agreement with the label decides which problems are prepared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import rstar2
from support.servers.vllm_standin import StandIn, serving

from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.turns.codec import ChatCodec

pytestmark = pytest.mark.slow


@pytest.fixture
def server(codec: ChatCodec) -> Iterator[StandIn]:
    """A model that answers each number with the number itself. For multiples of three it adds one."""

    def write(prompt: list[int]) -> list[int]:
        number = int(re.findall(r"<(\d+)> aloud", codec.tokenizer.decode(prompt))[-1])
        completion = f"Easy.</reason><answer>\\boxed{{{number + (number % 3 == 0)}}}</answer>"
        return [*codec.tokenizer.encode(completion, add_special_tokens=False), codec.end_id]

    with serving(StandIn(write)) as standin:
        yield standin


def test_a_served_model_decides_which_problems_are_kept(
    tmp_path: Path, server: StandIn, judge: JudgeHandle, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"problem": f"Say <{at}> aloud.", "answer": str(at)} for at in range(9)]
    source = tmp_path / "numbers.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    candidates = rstar2("data", "prepare", source, "--output", tmp_path / "candidates")
    assert candidates.code == 0, candidates.stderr
    run = tmp_path / "run"
    words = ("--url", server.url, "--model", tmp_path / "model", "--judge", judge.url, "-n", 2, "--run", run)
    for requests in (18, 0):
        server.requests.clear()
        result = rstar2("data", "agree", f"{tmp_path / 'candidates'}/", *words)
        assert result.code == 0, result.stderr
        assert "6 of 9 problems have the label's answer in at least 12.5 % of their samples" in result.stdout
        assert len(server.requests) == requests
    assert {path.name for path in (run / "candidates").iterdir()} == {
        *("results.json", "settings.json", "verdicts.jsonl")
    }
    ids_by_name = {}
    for name, options in (("agree", ["--agree", run]), ("unsolved", ["--measured", run, "--exclude-solved"])):
        result = rstar2("data", "prepare", source, *options, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
        ids_by_name[name] = pq.read_table(tmp_path / name / "data.parquet")["answer"].to_pylist()
    assert ids_by_name == {"agree": ["1", "2", "4", "5", "7", "8"], "unsolved": ["0", "3", "6"]}


def test_a_sample_that_the_server_refuses_leaves_what_is_said_of_the_others(
    tmp_path: Path, server: StandIn, judge: JudgeHandle, codec: ChatCodec
) -> None:
    codec.tokenizer.save_pretrained(tmp_path / "model")
    source = tmp_path / "numbers.jsonl"
    rows = [{"problem": f"Say <{at}> aloud.", "answer": str(at)} for at in (1, 2)]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert rstar2("data", "prepare", source, "--output", tmp_path / "candidates").code == 0
    words = ("--url", server.url, "--model", tmp_path / "model", "--judge", judge.url, "-n", 1)
    arguments = ("data", "agree", tmp_path / "candidates", *words, "--run", tmp_path / "run")
    server.refuses = lambda prompt: "<2> aloud" in codec.tokenizer.decode(prompt)
    result = rstar2(*arguments)
    assert result.code == 1, result.stderr
    assert "1 of 1 problem so far have the label" in result.stdout
    assert "1 of 2 samples failed" in result.stderr
    server.refuses = lambda prompt: False
    result = rstar2(*arguments)
    assert result.code == 0, result.stderr
    assert "2 of 2 problems have the label" in result.stdout


def test_a_run_that_was_stopped_is_not_taken_for_a_measurement(tmp_path: Path) -> None:
    source = tmp_path / "it.jsonl"
    source.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    results = tmp_path / "run" / "it" / "results.json"
    results.parent.mkdir(parents=True)
    results.write_text(json.dumps({"per_problem": [], "complete": False, "missing": 16}))
    result = rstar2("data", "prepare", source, "--agree", tmp_path / "run", "--output", tmp_path / "out")
    assert result.code == 2
    assert "is not complete: 16 samples are missing" in result.stderr
    result = rstar2("data", "prepare", source, "--agree", tmp_path / "none", "--output", tmp_path / "out")
    assert (result.code, "no evaluation at" in result.stderr) == (2, True)


def test_conversations_and_absent_candidates_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "it.jsonl"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    source.write_text(json.dumps({"messages": messages}) + "\n")
    assert rstar2("data", "prepare", source, "--output", tmp_path / "sft").code == 0
    (tmp_path / "model").mkdir()
    words = ("--model", tmp_path / "model", "--run", tmp_path / "run")
    result = rstar2("data", "agree", tmp_path / "sft", *words)
    assert (result.code, "no column problem" in result.stderr) == (2, True), result.stderr
    result = rstar2("data", "agree", tmp_path / "none", *words)
    assert (result.code, "unknown benchmark" in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "run").exists()
