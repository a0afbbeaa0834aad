"""Tests that every verb with a judge refuses a wrong token, with exit code 2, before it reads data or loads a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import rstar2
from support.optional import needs
from support.servers.vllm_standin import StandIn, serving

from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import default_format, save_format

pytestmark = pytest.mark.slow

REFUSAL = "refused the token"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    """A folder with a tokenizer and an empty weights file."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    save_format(default_format(), folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


def with_judge(judge: JudgeHandle, token: str) -> list[str]:
    return ["--judge", judge.url, "--judge-token", token]


@needs("verl")
def test_train_refuses_it_before_the_data_is_read(
    token_judge: JudgeHandle, model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "train.parquet"
    data.write_text("not read yet")
    words = ["train", "--stage", "1", "--model", model, "--data", data, "--profile", "laptop"]
    wrong = rstar2(*words, *with_judge(token_judge, "another"))
    assert (wrong.code, REFUSAL in wrong.stderr) == (2, True), wrong.stderr
    right = rstar2(*words, *with_judge(token_judge, str(token_judge.token)))
    assert str(data) in right.stderr, "with the right token, the command continues to the data"
    result = rstar2(
        *words, *with_judge(token_judge, str(token_judge.token)), "--set", 'judge.packages=["no_such"]'
    )
    assert (result.code, "cannot import no_such" in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "runs").exists()


@needs("verl")
def test_train_tries_programs_on_the_judge_that_it_starts_itself(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "train.parquet"
    write_parquet(data, rl_rows([Problem(str(n), "How many?", "7") for n in range(4)], 2, "made"))
    small = ["rollout.prompts=4", "rollout.rollouts=2", "groups.keep=2", "rollout.prompt_tokens=900"]
    changes = [word for change in (*small, 'judge.packages=["no_such"]') for word in ("--set", change)]
    result = rstar2(
        "train",
        "--stage",
        "1",
        "--model",
        model,
        "--data",
        data,
        "--profile",
        "laptop",
        "--run",
        "r",
        *changes,
    )
    assert (result.code, "cannot import no_such" in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "r" / "stage1").exists()


def test_eval_and_data_agree_refuse_it_before_anything_is_made(
    token_judge: JudgeHandle, tmp_path: Path
) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    result = rstar2("eval", "own.jsonl", "--oracle", "--run", "r", *with_judge(token_judge, "another"))
    assert (result.code, REFUSAL in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "r").exists()
    right = rstar2(
        "eval",
        "own.jsonl",
        "--oracle",
        "-n",
        1,
        "--run",
        "r",
        *with_judge(token_judge, str(token_judge.token)),
    )
    assert right.code == 0, right.stderr


def test_chat_refuses_it_before_a_model_is_opened(token_judge: JudgeHandle) -> None:
    words = ["chat", "--url", "http://127.0.0.1:9", "--prompt", "Hello"]
    result = rstar2(*words, *with_judge(token_judge, "another"))
    assert (result.code, REFUSAL in result.stderr) == (2, True), result.stderr


def test_chat_says_what_programs_cannot_import(
    token_judge: JudgeHandle, tokenizer: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.chat.judge.PACKAGES", ("no_such",))
    standin = StandIn(lambda prompt: list(tokenizer.encode("Hi</reason> there<|im_end|>")))
    standin.root = str(model)
    with serving(standin):
        result = rstar2(
            "chat",
            "--url",
            standin.url,
            "--prompt",
            "Hello",
            *with_judge(token_judge, str(token_judge.token)),
        )
    assert result.code == 0, result.stderr
    assert "programs cannot import no_such" in result.stderr


@needs("torch")
def test_serve_refuses_it_before_a_model_is_loaded(
    token_judge: JudgeHandle, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("rstar2.serve.choose.served_model", lambda name: name)
    words = ["serve", model, "--engine", "transformers", "--with-tools", "--port", "18999"]
    result = rstar2(*words, *with_judge(token_judge, "another"))
    assert (result.code, REFUSAL in result.stderr) == (2, True), result.stderr
    assert "loads" not in result.stderr
