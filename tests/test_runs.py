"""A run folder belongs to one config, and to one process at a time. A run is resumed only with the same config."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rstar2.errors import UserError
from rstar2.runs import changed_keys, json_digest, list_runs, load_config, open_run

CONFIG = {"seed": 1, "trainer": {"steps": 20, "lr": 1e-4}, "paths": ("a", "b")}


def _status(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "status.json").read_text()))


def test_a_run_is_made_and_resumed_with_the_same_config(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with open_run(path, "demo", CONFIG) as run:
        assert run.attempt == 1
        assert _status(path)["state"] == "running"
        (run.logs / "a.log").write_text("x")
    assert _status(path)["state"] == "finished"
    with open_run(path, "demo", CONFIG) as run:
        assert run.attempt == 2
        assert (path / "attempts" / "latest").resolve() == run.logs.resolve()
    assert load_config(path)[0] == "demo"


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt, "stopped"), (ValueError, "failed")])
def test_the_status_says_how_a_run_ended(tmp_path: Path, error: type[BaseException], state: str) -> None:
    with pytest.raises(error), open_run(tmp_path / "run", "demo", CONFIG):
        raise error
    assert _status(tmp_path / "run")["state"] == state
    with open_run(tmp_path / "run", "demo", CONFIG) as run:
        assert run.attempt == 2


def test_another_config_is_refused_and_names_the_keys(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "demo", CONFIG):
        pass
    other = {"seed": 2, "trainer": {"steps": 20, "lr": 1e-3}, "paths": ["a", "b"], "new": 1}
    with (
        pytest.raises(UserError, match=r"(?m)other settings: new, seed, trainer\.lr$") as refused,
        open_run(tmp_path / "run", "demo", other),
    ):
        pass
    assert "(new: unset → 1, seed: 1 → 2, trainer.lr: 0.0001 → 0.001)" in refused.value.hint
    assert load_config(tmp_path / "run")[1]["seed"] == 1


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "eval", CONFIG):
        pass
    with (
        pytest.raises(UserError, match="is a run of `eval`, not of `demo`"),
        open_run(tmp_path / "run", "demo", CONFIG),
    ):
        pass


def test_a_foreign_folder_and_a_file_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="not empty and is not a run"), open_run(tmp_path, "demo", {}):
        pass
    with (
        pytest.raises(UserError, match="is a file, not a run folder"),
        open_run(tmp_path / "thesis.tex", "demo", {}),
    ):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unreadable_config_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with (
        pytest.raises(UserError, match=r"config\.json is damaged: Expecting"),
        open_run(tmp_path, "demo", {}),
    ):
        pass


HOLD = """
import sys, time
from pathlib import Path
from rstar2.runs import open_run
with open_run(Path(sys.argv[1]), "demo", {"seed": 1}):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_in_use_is_refused_and_a_killed_one_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, env={**os.environ}, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match="is in use by another process"),
            open_run(path, "demo", {"seed": 1}),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    with open_run(path, "demo", {"seed": 1}) as run:
        assert run.attempt == 2


def test_a_reader_of_the_status_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with open_run(path, "demo", {}):
        pass
    with (path / ".lock").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr("rstar2.runs.time.sleep", lambda seconds: fcntl.flock(reader, fcntl.LOCK_UN))
        with open_run(path, "demo", {}) as run:
            assert run.attempt == 2


def test_runs_are_listed_oldest_first_down_to_the_second_level(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "group/a", "too/deep/run")):
        with open_run(tmp_path / name, "eval", {}):
            pass
        record = tmp_path / name / "config.json"
        os.utime(record, (time.time() + number, time.time() + number))
    (tmp_path / "not-a-run").mkdir()
    assert [str(path.relative_to(tmp_path)) for path in list_runs(tmp_path)] == ["b", "group/a"]


def test_changed_keys_are_dotted_and_only_the_changed() -> None:
    assert changed_keys({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["a.c", "d"]
    assert changed_keys(CONFIG, CONFIG) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*about: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(UserError, match="does not support file locks") as caught,
        open_run(tmp_path / "run", "demo", {}),
    ):
        pass
    assert "Lustre" in caught.value.hint
    assert "in use" not in caught.value.message


def test_a_digest_is_that_of_earlier_versions_whose_run_folders_hold_it() -> None:
    assert json_digest({"b": [1, 2.5, None], "a": "π"}, 16) == "cbc7b68a8cdc2ccc"
    assert json_digest({"a": "π", "b": [1, 2.5, None]}, 8) == "cbc7b68a"
