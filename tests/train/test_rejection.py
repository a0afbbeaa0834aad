"""Tests that a run's correct, clean traces become conversations that teach exactly the tokens that the model wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rstar2.data.mixture.prepare import prepare
from rstar2.data.mixture.recipe import MixtureRequest, plan_mixture
from rstar2.errors import UserError
from rstar2.loop.trace import Trace, Turn
from rstar2.loop.turns.choose import load_codec
from rstar2.train.conversations import encode
from rstar2.train.rejection import Selection, plan_traces, traces_of


class Silent:
    """Progress that shows nothing."""

    def start(self, title: str) -> None: ...

    def rows(self, count: int) -> None: ...

    def finish(self, text: str) -> None: ...


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").touch()
    return tmp_path / "model"


def trace(model: Path, problem: str, sample: int, text: str, **changes: Any) -> Trace:
    """Returns a trace of one turn, as a model of the format writes it."""
    codec = load_codec(model)
    response_ids = [*codec.tokenizer.encode(text, add_special_tokens=False), codec.end_id]
    prompt = codec.prompt(codec.format.messages(f"What is {problem}?"))
    fields: dict[str, Any] = {
        "problem_id": problem,
        "sample": sample,
        "problem": f"What is {problem}?",
        "prompt_ids": prompt,
        "response_ids": response_ids,
        "response_mask": [1] * len(response_ids),
        "turns": [Turn.read(codec.parse(response_ids, prompt), 0, len(response_ids))],
        "finish": "answer",
        "verdict": "correct",
        "paper_correct": True,
    }
    return Trace(**{**fields, **changes})


def text_of(number: int) -> str:
    return f"Think {'so ' * number}</reason>\n<answer>\\boxed{{{number}}}</answer>"


def card_and_rows(
    model: Path, traces: list[Trace], selection: Selection, **more: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """Returns the card and the rows of a prepared set of these traces."""
    file = model.parent / "traces.jsonl"
    file.write_text("".join(f"{each.model_dump_json()}\n" for each in traces))
    output = model.parent / f"set-{len(list(model.parent.glob('set-*')))}"
    card = prepare(plan_traces(file, selection, str(model), **more), output, Silent())
    return card, pq.read_table(output / "data.parquet").to_pylist()


def test_each_trace_that_is_left_out_is_counted_by_its_reason(model: Path) -> None:
    call = {"name": "f", "arguments": {}, "output": "no"}
    turn = trace(model, "a", 0, text_of(1)).turns[0].model_dump()
    turn_with_failed_call = Turn.model_validate({**turn, "calls": [{**call, "status": "error"}]})
    turn_with_lost_call = Turn.model_validate({**turn, "calls": [{**call, "status": "lost"}]})
    traces = [
        trace(model, "a", 0, text_of(1)),
        trace(model, "a", 1, text_of(2), verdict="wrong"),
        trace(model, "a", 2, text_of(3), finish="max_tokens"),
        trace(model, "a", 3, text_of(4), turns=[turn_with_failed_call]),
        trace(model, "a", 4, text_of(5), turns=[turn_with_lost_call]),
        trace(model, "a", 5, text_of(6), paper_correct=False),
        trace(model, "a", 6, text_of(7), prompt_ids=[1, 2, 3]),
        trace(model, "a", 7, text_of(1)),
    ]
    card, rows = card_and_rows(model, traces, Selection(per_problem=9))
    assert card.sources["traces"]["refused"] == {
        "another format": 1,
        "answer not in the format": 1,
        "cut off": 1,
        "failed calls": 1,
        "lost call": 1,
        "not correct": 1,
        "others of its problem are taken": 1,
    }
    [row] = rows
    assert row["messages"][-1]["content"] == f"<reason>{text_of(1)}"
    _, rows = card_and_rows(model, traces, Selection(per_problem=9, failed_calls=1))
    assert len(rows) == 2


def test_of_a_problem_the_traces_with_the_least_penalty_are_taken(model: Path) -> None:
    twice = f"{text_of(1)} <answer>\\boxed{{1}}</answer>"
    traces = [
        trace(model, name, sample, text)
        for name in ("a", "b")
        for sample, text in enumerate([twice, text_of(9), text_of(3), text_of(5)])
    ]
    _, rows = card_and_rows(model, traces, Selection(per_problem=2))
    row_ids = sorted(row["id"].rsplit("-", 1)[0] for row in rows)
    assert row_ids == ["traces-a-2", "traces-a-3", "traces-b-2", "traces-b-3"], (
        "the shortest traces with one answer"
    )


def test_traces_that_quote_a_benchmark_are_dropped(model: Path) -> None:
    question = "the number of apples that a farmer sells on the market each day"
    bench = model.parent / "bench.jsonl"
    bench.write_text(json.dumps({"problem": f"What is {question}?", "answer": "1"}) + "\n")
    traces = [trace(model, question, 0, text_of(1)), trace(model, "six times seven", 0, text_of(42))]
    card, rows = card_and_rows(model, traces, Selection(), against=[str(bench)])
    assert [row["id"].rsplit("-", 2)[0] for row in rows] == ["traces-six times seven"]
    assert card.checked


def test_another_selection_is_another_set(model: Path) -> None:
    traces = [trace(model, "a", sample, text_of(sample + 1)) for sample in range(3)]
    card_and_rows(model, traces, Selection())
    file, output = model.parent / "traces.jsonl", model.parent / "set-0"
    with pytest.raises(UserError, match="contains a different set"):
        prepare(plan_traces(file, Selection(per_problem=1), str(model)), output, Silent())


def test_a_mixture_keeps_the_tokens_beside_other_conversations(model: Path) -> None:
    traces = [trace(model, "a", sample, text_of(sample + 1)) for sample in range(3)]
    _, rows = card_and_rows(model, traces, Selection())
    other = model.parent / "other.jsonl"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    other.write_text(json.dumps({"messages": messages}) + "\n")
    plan = plan_mixture(MixtureRequest([str(model.parent / "set-0" / "data.parquet"), str(other)]))
    prepare(plan, model.parent / "mixed", Silent())
    mixed = pq.read_table(model.parent / "mixed" / "data.parquet").to_pylist()
    assert [row["tokens"] for row in mixed] == [*(row["tokens"] for row in rows), None]
    assert [row["messages"] for row in mixed[:3]] == [row["messages"] for row in rows]
    codec = load_codec(model)
    sample = encode(mixed[0], codec)
    assert sample.input_ids.tolist() == rows[0]["tokens"]["input_ids"]
    assert mixed[0]["messages"][0]["content"] == "What is a?", "each format adds its own text"
    again = encode({**mixed[0], "tokens": {**mixed[0]["tokens"], "codec": "another"}}, codec)
    assert again.input_ids.tolist() == sample.input_ids.tolist(), "the messages have the same content"


def test_without_a_model_or_traces_the_message_says_what_to_give(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no traces"):
        plan_traces(tmp_path, Selection())
    (tmp_path / "traces.jsonl").write_text(trace(model, "a", 0, text_of(1)).model_dump_json() + "\n")
    with pytest.raises(UserError, match="does not name the model") as excinfo:
        plan_traces(tmp_path / "traces.jsonl", Selection())
    assert "--model" in excinfo.value.hint


def run_with_files(run: Path, kind: str, *files: str) -> Path:
    """Creates a run that has these trace files."""
    for file in files:
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).touch()
    for name in ("config.json", "status.json"):
        (run / name).write_text(json.dumps({"kind": kind, "config": {}}))
    return run


def test_of_a_training_run_its_own_rollouts_are_taken_and_no_held_out_problems(tmp_path: Path) -> None:
    rollout_files = ["stage1/traces/step-000001.jsonl", "stage2/solved/traces.jsonl"]
    run = run_with_files(
        tmp_path / "runs" / "demo",
        "demo",
        *rollout_files,
        "eval/sft/traces.jsonl",
        "plain/eval/stage1/traces.jsonl",
    )
    for place in (run, run.parent):
        traces = traces_of(place)
        assert {str(file.relative_to(run)) for file in traces.files} == set(rollout_files)
        [warning] = traces.warnings()
        assert warning.startswith("traces of the held-out problems of demo are left out: ")
        assert str(run / "eval" / "sft") in warning
    assert not list(traces_of(run / "stage1").warnings())


def test_an_sft_has_traces_of_held_out_problems_alone_and_they_have_to_be_named(tmp_path: Path) -> None:
    run = run_with_files(
        tmp_path / "sft", "sft", "held_out/step-5/traces.jsonl", "held_out/step-10/traces.jsonl"
    )
    for place in (run, tmp_path):
        with pytest.raises(UserError, match="only traces of the held-out problems of sft") as excinfo:
            traces_of(place)
        assert str(run / "held_out" / "step-10") in excinfo.value.hint
    for place in (run / "held_out" / "step-5", run / "held_out" / "step-5" / "traces.jsonl"):
        traces = traces_of(place)
        assert traces.files == (run / "held_out" / "step-5" / "traces.jsonl",)
        [warning] = traces.warnings()
        assert warning.startswith("these are traces of the held-out problems of sft: ")
    assert len(traces_of(run / "held_out").files) == 2


def test_of_an_evaluation_the_users_own_problems_are_taken_and_no_benchmark(tmp_path: Path) -> None:
    run = run_with_files(tmp_path / "eval", "eval", "data/traces.jsonl", "aime24/traces.jsonl")
    traces = traces_of(run)
    assert traces.files == (run / "data" / "traces.jsonl",)
    assert list(traces.warnings()) == [f"traces of the benchmark aime24 are left out: {run / 'aime24'}"]
    [warning] = traces_of(run / "aime24").warnings()
    assert warning.startswith("these are traces of the benchmark aime24: ")
    only = run_with_files(tmp_path / "only", "eval", "math500/traces.jsonl")
    with pytest.raises(UserError, match="only traces of the benchmark math500"):
        traces_of(only)
