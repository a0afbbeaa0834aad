"""`rstar2 eval` with a real but untrained model and a real judge."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from support.optional import needs
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.errors import UserError
from rstar2.eval.target import Target, open_target
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.loop.trace import read_traces

pytestmark = [pytest.mark.slow, needs("torch")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rstar2.data.builtin import FORMAT, held_out
    from rstar2.demo.tiny import TinyModel, make_tiny_model

    folder = tmp_path_factory.mktemp("model")
    conversations = [FORMAT.messages(problem.problem) for problem in held_out(0, 50)]
    make_tiny_model(folder, TinyModel(vocab=512, hidden=32, layers=1, heads=2), conversations, FORMAT, seed=1)
    return folder


def _eval(*words: object) -> Result:
    return CliRunner().invoke(app, ["eval", *map(str, words)], env={"COLUMNS": "200"})


def test_a_local_folder_is_measured_on_the_builtin_set(
    model: Path, tmp_path: Path, judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bounds = ("-n", 2, "--limit", 4, "--max-tokens", 40)
    words = ("builtin", "--model", model, *bounds, "--run", "r", "--judge", judge.url)
    result = _eval(*words)
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "r" / "builtin" / "results.json").read_text())
    traces = list(read_traces(tmp_path / "r" / "builtin" / "traces.jsonl"))
    assert len(traces) == results["summary"]["samples"] == 8
    assert all(0 < trace.tokens <= 40 and trace.verdict for trace in traces)
    assert all(trace.logprobs is not None and max(trace.logprobs) <= 0 for trace in traces)
    assert results["model"]["name"] == model.name
    assert len(results["model"]["sha256"]) == 64
    assert results["model"]["path"] == str(model), "for `data from-traces`"
    assert results["judge"]["isolation"] == judge.isolation
    assert (tmp_path / "r" / "report.html").exists()

    # A model with other weights in the same folder counts as another model.
    weights = model / "model.safetensors"
    original_bytes = weights.read_bytes()
    weights.write_bytes(original_bytes[:-1] + bytes([original_bytes[-1] ^ 1]))
    error = _eval(*words).exception
    assert isinstance(error, UserError)
    assert "model.sha256" in error.message


def test_a_template_without_tools_will_do_where_the_model_is_asked_by_chat_messages_alone(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(model, folder)
    (folder / FORMAT_FILE).unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    target = Target(str(folder))
    opened_target = open_target(target, [], 1, None, agent=False)
    assert opened_target.identity["format"] == "no-tools"
    assert opened_target.engine is not None
    asyncio.run(opened_target.engine.aclose())
    with pytest.raises(UserError, match="drops the tool"):
        open_target(target, [], 1, None)
