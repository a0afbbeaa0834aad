"""Every option for a model accepts the same names: a folder, a run, a stage or a hub id."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import rstar2
from support.optional import needs

from rstar2.data.parquet import write_parquet
from rstar2.engines.models import find_model, local_model, model_name
from rstar2.errors import UserError
from rstar2.files import write_json


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write three runs: a training with the models of two stages, a training with the model of stage 1 only, and an
    evaluation."""
    monkeypatch.chdir(tmp_path)
    for folder in ("done/stage1", "done/stage2", "begun/stage1"):
        write_json(Path("runs", folder, "model", "config.json"), {"model_type": "qwen3"})
    for run in ("done", "begun"):
        write_json(Path("runs", run, "config.json"), {"kind": "train", "config": {}})
    write_json(Path("runs/done/model.json"), {"path": "stage2/model"})
    write_json(Path("runs/measured/config.json"), {"kind": "eval", "config": {}})
    Path("runs/begun/stage2/checkpoints").mkdir(parents=True)


@pytest.mark.parametrize(
    ("model_name", "folder"),
    [
        ("runs/done", "runs/done/stage2/model"),
        ("runs/done/stage1", "runs/done/stage1/model"),
        ("runs/done/stage1/model/", "runs/done/stage1/model"),
        ("Qwen/Qwen3-0.6B", None),
    ],
)
def test_a_run_a_stage_a_folder_and_a_hub_id_name_a_model(model_name: str, folder: str | None) -> None:
    assert find_model(model_name) == (Path(folder) if folder else None)


def test_the_folder_of_a_run_of_sft_is_that_of_its_only_stage() -> None:
    write_json(Path("runs/sft/config.json"), {"kind": "sft", "config": {}})
    write_json(Path("runs/sft/model/config.json"), {})
    assert find_model("runs/sft") == Path("runs/sft/model")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("runs/done/stage2/model", "done-stage2"),
        ("runs/sft/model", "sft"),
        ("runs/done/base", "done-base"),
        ("elsewhere/qwen", "qwen"),
        ("elsewhere/model", "model"),
    ],
)
def test_a_model_of_a_run_is_named_after_the_run_and_its_stage(folder: str, name: str) -> None:
    write_json(Path("runs/sft/config.json"), {"kind": "sft", "config": {}})
    assert model_name(Path(folder)) == name


@pytest.mark.parametrize(
    ("model_name", "message"),
    [
        ("runs/begun", "runs/begun has no finished model yet\n.*runs/begun/stage1"),
        ("runs/begun/stage2", "runs/begun/stage2 has no finished model yet"),
        ("runs/measured", "runs/measured is a run of `eval`, which produces no model"),
        ("runs/absent", "no model folder at runs/absent"),
        ("absent", "no model folder at absent"),
        ("./a/b", "no model folder at ./a/b"),
        ("a/b/c", "no model folder at a/b/c"),
    ],
)
def test_what_names_no_model_is_refused_with_what_would(model_name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_model(model_name)


@needs("torch")
def test_a_hub_id_is_taken_from_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--some--model"
    write_json(repository / "snapshots" / "abc" / "config.json", {})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert local_model("some/model") == repository / "snapshots" / "abc"
    message = (
        r"cannot ask the hub for no/model \(.*\), and the hub's cache lacks the model\nCheck the network"
    )
    with pytest.raises(UserError, match=message):
        local_model("no/model")


CONVERSATION = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


def _trained_from(*words: str) -> Callable[[str], str]:
    def model(model_name: str) -> str:
        row = {
            "train": {"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "1"}},
            "sft": {"messages": CONVERSATION},
        }[words[0]]
        write_parquet(Path("d.parquet"), [row] * 512)
        process = rstar2(
            *words, "--model", model_name, "--data", "d.parquet", "--profile", "laptop", "--dry-run"
        )
        assert process.code == 0, process.stderr
        argv = shlex.split(process.stdout.replace("\\\n", "").splitlines()[-1])
        return next(
            word for word in argv if word.startswith(("model.path=", "actor_rollout_ref.model.path="))
        )

    return model


def _serve_command(model_name: str) -> str:
    process = rstar2("serve", model_name, "--print-command")
    assert process.code == 0, process.stderr
    return process.stdout


def _load_error(*words: str) -> Callable[[str], str]:
    """Chat and eval name the folder that they cannot load. It exists but has neither weights nor a tokenizer."""

    def model(model_name: str) -> str:
        process = rstar2(*words, "--model", model_name)
        assert process.code == 2
        return process.stderr

    return model


VERBS = {
    "chat": _load_error("chat", "--prompt", "x"),
    "eval": _load_error("eval", "builtin"),
    "serve": _serve_command,
    "sft": _trained_from("sft"),
    "train": _trained_from("train", "--stage", "1"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_the_model_of_a_run(verb: str) -> None:
    assert "runs/done/stage2/model" in VERBS[verb]("runs/done")
    assert "runs/done/stage1/model" in VERBS[verb]("runs/done/stage1")


def test_the_folder_of_an_evaluation_is_not_its_model() -> None:
    process = rstar2("eval", "builtin", "--run", "runs/done")
    assert process.code == 2
    assert "--run runs/done is the folder for the evaluation" in process.stderr
    assert "--model runs/done" in process.stderr
    assert json.loads(Path("runs/done/config.json").read_text())["kind"] == "train"
