"""Tests that conversations are encoded once, with any number of processes, and stored for later runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.family_tokenizers import family_tokenizer
from support.waiting import TIMEOUT_S

from rstar2.data import workers
from rstar2.data.parquet import write_parquet
from rstar2.errors import UserError
from rstar2.loop.formats.format import read_format
from rstar2.loop.turns.choose import codec_for
from rstar2.train import encoding
from rstar2.train.conversations import encode
from rstar2.train.encoding import DATA, STORE, CodecOf, EncodedData, encoded_data, groups_of, taught_codec


def conversation(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"What is the square of {number}?"},
            {"role": "assistant", "content": f"It is {number**2}."},
        ]
    }


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def codec_of(tmp_path: Path, tokenizer: Any) -> CodecOf:
    tokenizer.save_pretrained(tmp_path / "model")
    return CodecOf(None, tmp_path / "model", taught_codec(None, tmp_path / "model").digest)


def encoded_rows(data: EncodedData) -> list[tuple[list[int], list[int]]]:
    with pa.ipc.open_file(data.folder / DATA) as reader:
        table = reader.read_all()
    return list(
        zip(table.column("input_ids").to_pylist(), table.column("loss_mask").to_pylist(), strict=True)
    )


ROWS = [conversation(number) for number in range(1100)]


def test_processes_write_what_one_writes(
    tmp_path: Path, codec_of: CodecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "x.parquet", ROWS)
    files = [lines(tmp_path / "x.jsonl", ROWS), tmp_path / "x.parquet"]
    counts: list[int] = []
    several = [encoded_data(file, codec_of, counts.append) for file in files]
    assert counts[-1] == len(ROWS)
    assert counts == sorted(counts[: len(counts) // 2]) * 2
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: {0})
    (tmp_path / "alone").mkdir()
    one = encoded_data(lines(tmp_path / "alone" / "x.jsonl", ROWS), codec_of)
    codec = codec_of.load()
    expected = [
        (each.input_ids.tolist(), each.loss_mask.tolist()) for each in (encode(r, codec) for r in ROWS)
    ]
    for each in (one, *several):
        assert encoded_rows(each) == expected
        assert each.lengths.tolist() == [len(ids) for ids, _ in expected]
        assert each.first_taught.tolist() == [mask.index(1) for _, mask in expected]


def test_a_second_run_encodes_nothing(
    tmp_path: Path, codec_of: CodecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(tmp_path / "x.jsonl", ROWS[:10])
    first = encoded_data(data, codec_of)

    def refuse(*_: Any) -> None:
        raise AssertionError("encodes again")

    monkeypatch.setattr(encoding, "encode", refuse)
    assert encoded_data(data, codec_of).folder == first.folder
    for other in (CodecOf(codec_of.named, codec_of.model, "another tokenizer"),):
        with pytest.raises(AssertionError, match="encodes again"):
            encoded_data(data, other)
    del first
    with pytest.raises(AssertionError, match="encodes again"):
        encoded_data(lines(tmp_path / "x.jsonl", ROWS[:11]), codec_of)
    assert [each.name for each in (tmp_path / STORE).iterdir()] == [".lock"], (
        "the encoding of the replaced file is removed"
    )


def stored_files(folder: Path) -> set[str]:
    return {each.name for each in (folder / STORE).iterdir() if each.name != ".lock"}


def test_after_an_upgrade_the_old_encodings_go_and_other_models_stay(
    tmp_path: Path, codec_of: CodecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, other = lines(tmp_path / "x.jsonl", ROWS[:10]), lines(tmp_path / "y.jsonl", ROWS[:5])
    encoded_data(other, codec_of)
    encoded_data(data, codec_of)
    encoded_data(data, CodecOf("listed-tools", codec_of.model, "another format"))
    assert len(stored_files(tmp_path)) == 3
    other.unlink()
    encoded_data(data, codec_of)
    assert len(stored_files(tmp_path)) == 2, "the removed file's encoding cannot be requested any more"
    monkeypatch.setattr(encoding, "_code_digest", lambda: "a new version's")
    new = encoded_data(data, codec_of)
    assert stored_files(tmp_path) == {new.folder.name}


_HOLDS = """
import sys
from pathlib import Path
from rstar2.train.encoding import CodecOf, encoded_data
held = encoded_data(Path(sys.argv[1]), CodecOf(None, Path(sys.argv[2]), sys.argv[3]))
print(held.folder.name, flush=True)
sys.stdin.readline()
print(len(held.lengths))
"""


def test_an_encoding_that_another_process_uses_is_not_removed(
    tmp_path: Path, codec_of: CodecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(tmp_path / "x.jsonl", ROWS[:10])
    words = [sys.executable, "-c", _HOLDS, str(data), str(codec_of.model), codec_of.digest]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        old = process.stdout.readline().strip()
        monkeypatch.setattr(encoding, "_code_digest", lambda: "a new version's")
        new = encoded_data(data, codec_of).folder.name
        assert stored_files(tmp_path) == {old, new}
        assert process.communicate("go on\n", timeout=TIMEOUT_S)[0] == "10\n"
    encoded_data(data, codec_of)
    assert stored_files(tmp_path) == {new}


def test_another_format_has_another_digest_and_training_leaves_a_tokenizers_digest(
    tmp_path: Path, codec_of: CodecOf
) -> None:
    from rstar2.loop.model_folder import write_format

    codec = taught_codec(None, codec_of.model)
    assert taught_codec("listed-tools", codec_of.model).digest != codec_of.digest
    (tmp_path / "model" / "config.json").write_text("{}")
    write_format(codec, tmp_path / "model", tmp_path / "model")
    assert taught_codec(None, codec_of.model).digest == codec_of.digest


def test_the_bad_row_is_named_from_whatever_process(tmp_path: Path, codec_of: CodecOf) -> None:
    rows = [*ROWS, {"messages": [{"role": "user", "content": "?"}]}, *ROWS[:200]]
    write_parquet(tmp_path / "x.parquet", rows)
    for file in (tmp_path / "x.parquet", lines(tmp_path / "x.jsonl", rows)):
        with pytest.raises(UserError, match=r"row 1101: no assistant message"):
            encoded_data(file, codec_of)
    assert [each.name for each in (tmp_path / STORE).iterdir()] == [".lock"]


_ENCODES = """
import sys
from pathlib import Path
from rstar2.train.encoding import CodecOf, encoded_data
encoded_data(Path(sys.argv[1]), CodecOf(None, Path(sys.argv[2]), sys.argv[3]), lambda count: print(count, flush=True))
"""


@pytest.mark.slow
def test_a_killed_encoding_leaves_nothing_half_written(tmp_path: Path, codec_of: CodecOf) -> None:
    data = lines(tmp_path / "x.jsonl", ROWS * 20)
    words = [sys.executable, "-c", _ENCODES, str(data), str(codec_of.model), codec_of.digest]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as killed:
        assert killed.stdout is not None
        assert int(killed.stdout.readline()) < len(ROWS) * 20
        os.killpg(killed.pid, signal.SIGKILL)
    left_files = [each.name for each in (tmp_path / STORE).iterdir() if each.name != ".lock"]
    assert all(name.endswith(".part") for name in left_files)
    # A process that waits for the other's encoding uses it.
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other,
    ):
        outs = [each.communicate(timeout=TIMEOUT_S)[0].split() for each in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0)
    assert sorted(map(bool, outs)) == [False, True], "only one process encodes"
    [folder] = [each for each in (tmp_path / STORE).iterdir() if each.name != ".lock"]
    assert len(encoded_rows(EncodedData(folder, ""))) == len(ROWS) * 20


def test_where_the_datas_folder_cannot_be_written_the_users_cache_is_used(
    tmp_path: Path, codec_of: CodecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(tmp_path / "x.jsonl", ROWS[:3])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(encoding.os, "access", lambda *_: False)
    data_again = encoded_data(data, codec_of)
    assert data_again.folder.is_relative_to(tmp_path / "cache" / "rstar2" / "encoded")
    assert not (tmp_path / STORE).exists()


def test_conversations_that_ask_nearly_the_same_are_one_group(tmp_path: Path, codec_of: CodecOf) -> None:
    long = (
        "A farmer sells all of his apples on the market and buys pears for the money; how many does he get?"
    )
    questions = [
        long,
        "Hello",
        long.replace("market", "market today"),
        "hello!",
        long.replace("pears", "plums"),
        "Bye",
    ]
    rows = [
        {
            "messages": [
                {"role": "system", "content": f"{number}"},
                {"role": "user", "content": text},
                *CLOSING,
            ]
        }
        for number, text in enumerate(questions)
    ]
    first = encoded_data(lines(tmp_path / "x.jsonl", rows), codec_of)
    second = encoded_data(lines(tmp_path / "y.jsonl", rows[::-1][:2]), codec_of)
    assert groups_of([first]).tolist() == [0, 1, 0, 1, 0, 5]
    assert groups_of([first, second]).tolist() == [0, 1, 0, 1, 0, 5, 5, 0]
    assert groups_of([first, second]).tolist() == [0, 1, 0, 1, 0, 5, 5, 0]


CLOSING = [{"role": "assistant", "content": "!"}]


def test_a_row_that_the_format_cannot_write_is_named(tmp_path: Path) -> None:
    pytest.importorskip("renderers")
    codec = codec_for(family_tokenizer("qwen3.5"), read_format("qwen3.5", ""), "qwen3.5")
    again = [{"role": "system", "content": "Be brief."}, *conversation(2)["messages"]]
    rows = [*ROWS[:3], {"messages": [*conversation(1)["messages"], *again]}]
    encoder = encoding._Encoder(CodecOf("qwen3.5", tmp_path, codec.digest), "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CodecOf, "load", lambda _: codec)
        with pytest.raises(
            UserError, match=r"x.jsonl, row 14: .*System message must be at the beginning"
        ) as excinfo:
            encoder(encoding._Piece(Path("x.jsonl"), 11, rows))
    assert "Remove the row" in excinfo.value.hint
