"""Tests that trace files survive a truncated last line, but no other damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.errors import UserError
from rstar2.loop.trace import (
    CallStatus,
    ToolCall,
    Trace,
    TraceWriter,
    Turn,
    read_traces,
)


def _trace(sample: int) -> Trace:
    return Trace(
        problem_id="p",
        sample=sample,
        prompt_ids=[1],
        response_ids=[2, 3],
        response_mask=[1, 1],
        turns=[Turn(text="<answer>\u2028 4\n</answer>", start=0, end=2)],
        finish="answer",
    )


def _write_traces(path: Path, count: int) -> list[Trace]:
    traces = [_trace(sample) for sample in range(count)]
    with TraceWriter(path) as writer:
        for trace in traces:
            writer.write(trace)
    return traces


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "traces.jsonl"
    assert _write_traces(path, 3) == list(read_traces(path))


@given(cut_bytes=st.integers(min_value=0))
def test_wherever_a_kill_tears_the_last_line_the_others_are_read(
    tmp_path_factory: pytest.TempPathFactory, cut_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "traces.jsonl"
    traces = _write_traces(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    torn = lines[2][: cut_bytes % len(lines[2])]
    path.write_bytes(b"".join(lines[:2]) + torn)
    assert list(read_traces(path)) == traces[:2]


def test_a_writer_removes_a_torn_line_before_it_appends(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    _write_traces(path, 2)
    with path.open("ab") as file:
        file.write(b'{"problem_id": "half')
    with TraceWriter(path) as writer:
        writer.write(_trace(7))
    assert [trace.sample for trace in read_traces(path)] == [0, 1, 7]


def test_a_wrong_line_in_the_middle_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    _write_traces(path, 1)
    with path.open("ab") as file:
        file.write(b'{"problem_id": "p"}\n')
    with pytest.raises(
        UserError, match=r"traces\.jsonl, line 2: not a trace \(prompt_ids: Field required\)"
    ) as excinfo:
        list(read_traces(path))
    assert "rstar2 grade" in excinfo.value.hint


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read traces"):
        list(read_traces(tmp_path / "absent.jsonl"))


@pytest.mark.parametrize(
    ("status", "failed"),
    [
        ("ok", False),
        ("lost", False),
        ("error", True),
        ("timeout", True),
        ("memory", True),
        ("output_limit", True),
        ("refused", True),
        ("parse_error", True),
        ("unknown_tool", True),
        ("invalid_arguments", True),
    ],
)
def test_a_failed_call_is_told_by_its_status_never_by_its_words(status: CallStatus, failed: bool) -> None:
    call = ToolCall(name="python", status=status, output="mean squared error: 0.1")
    assert call.failed is failed


def _turns(*statuses: tuple[CallStatus, ...]) -> Trace:
    """Returns a trace with the calls of each turn."""
    turns = [
        Turn(text="", start=0, end=0, calls=[ToolCall(status=status, output="") for status in each])
        for each in statuses
    ]
    return _trace(0).model_copy(update={"turns": turns})


def test_a_failed_turn_is_repaired_by_a_later_turn_whose_calls_are_all_right() -> None:
    failed = _turns(("error",), ("ok", "timeout"), (), ("ok",), ("parse_error",), ()).failed_turns
    assert [(turn.place, turn.tries) for turn in failed] == [(0, 2), (1, 1), (4, None)]
    assert [turn.repaired for turn in failed] == [True, True, False]


def test_a_lost_call_is_neither_a_failure_nor_a_repair() -> None:
    [failed] = _turns(("error",), ("lost", "ok"), ("lost", "error")).failed_turns
    assert (failed.place, failed.later_failed) == (0, ())
    assert _turns(("ok",), ("lost",)).failed_turns == []


def test_answers_are_read_from_the_last_turn_and_blocks_counted_over_all() -> None:
    turns = [
        Turn(text="<answer>1</answer>", start=0, end=1),
        Turn(text="<answer>2</answer>", start=1, end=2, calls=[ToolCall(status="error", output="")]),
    ]
    trace = _trace(0).model_copy(update={"turns": turns})
    assert trace.final_text == "<answer>2</answer>"
    assert trace.answer_blocks == 2
    assert trace.failed_calls == 1
    assert _trace(0).model_copy(update={"turns": []}).final_text == ""


def test_a_folder_in_place_of_a_file_names_the_files_in_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder\nIt has no traces.jsonl"):
        list(read_traces(tmp_path))
    file = tmp_path / "aime24" / "traces.jsonl"
    file.parent.mkdir()
    _write_traces(file, 1)
    with pytest.raises(UserError, match=f"{tmp_path} is a folder\\nGive a file: {file}\\."):
        list(read_traces(tmp_path))
