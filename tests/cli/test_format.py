"""Tests that `rstar2 format show` prints what a model sees. Every verb refuses a format that is not the model's."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.errors import UserError
from rstar2.loop.formats.format import default_format, save_format
from rstar2.loop.turns.codec import ChatCodec


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    """A model folder in our format, without weights."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    save_format(default_format(), folder)
    (folder / "config.json").write_text("{}")
    return folder


def show_format(*words: str) -> str:
    result = CliRunner().invoke(app, ["format", "show", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*words: str) -> UserError:
    result = CliRunner().invoke(app, [*words])
    assert isinstance(result.exception, UserError), result.output
    return result.exception


def test_prompt_and_reply_are_shown_as_the_model_gets_them(model: Path, codec: ChatCodec) -> None:
    text = show_format(str(model), "--problem", "2 + 2? [b]", "--reply", "[4]")
    prompt, reply = codec.prompt(default_format().messages("2 + 2? [b]")), codec.tool_turn(["[4]"])
    assert "format    rstar2_format.json\ntools     python_code_with_standard_io\n" in text
    assert "turns end with <|im_end|>" in text
    for title, ids in (("prompt", prompt), ("after a call", reply)):
        assert f"── {title}, {len(ids)} tokens ──\n{codec.tokenizer.decode(ids)}\n" in text


def test_as_json_it_has_the_token_ids_and_the_whole_format(model: Path, codec: ChatCodec) -> None:
    data = json.loads(show_format(str(model), "--json"))
    assert data["prompt_ids"] == codec.prompt(default_format().messages("What is 6 times 7?"))
    assert data["reply_ids"] == codec.tool_turn(["42"])
    assert data["format"]["template"] == default_format().template
    assert data["source"] == "rstar2_format.json"


def test_a_reply_is_shown_in_the_layout_and_within_the_limits_of_the_format(model: Path) -> None:
    text = show_format(str(model), "--format", "release", "--force-format", "--reply", "7" * 1000)
    assert "Tool call success\nstdout: 777" in text
    assert "7...(truncated)...7" in text
    assert "7" * 257 not in text


@pytest.mark.parametrize(
    "words",
    [
        ["format", "show", "{}"],
        ["chat", "--prompt", "x", "--model", "{}"],
        ["eval"],
        ["serve", "{}", "--print-command"],
    ],
)
def test_every_verb_refuses_another_format(model: Path, tmp_path: Path, words: list[str]) -> None:
    if words[0] == "eval":
        (tmp_path / "x.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
        words = ["eval", str(tmp_path / "x.jsonl"), "--model", "{}"]
    error = error_of(*[word.format(model) for word in words], "--format", "no-tools")
    assert (
        f"{model} has its own format (rstar2_format.json), which differs from no-tools in: tools, user"
        in (error.message)
    )
    assert "--force-format" in error.hint


def test_a_format_is_shown_without_a_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('tools = ["jupyter_code"]\nuser = "Q: {problem}"\n')
    text = show_format("--format", str(file), "--problem", "2 + 2?")
    assert f"format    {file}, without a model\ntools     jupyter_code\n" in text.replace("\n,", ",")
    assert "Q: 2 + 2?<|im_end|>" in text
    file.write_text('tools = ["calculator"]\n')
    assert "which is not a tool of rstar2" in error_of("format", "show", "--format", str(file)).message
    assert error_of("format", "show").message == "nothing to show"
    family = error_of("format", "show", "--format", "qwen3.5")
    assert "can only be shown with a model" in family.message
    assert "format show MODEL --format qwen3.5" in family.hint


def test_names_between_colons_are_shown_as_written(tmp_path: Path) -> None:
    """Rich would show :x: and :smile: as emoji."""
    file = tmp_path / "mine.toml"
    (tmp_path / "emoji_tool.py").write_text(
        'from rstar2 import tool\n\n@tool\ndef x() -> str:\n    """Return :smile: or a[:x:]."""\n    return \'\'\n'
    )
    file.write_text('tools = ["emoji_tool:x"]\nsystem = "m:x: {tools}"\n')
    text = show_format("--format", str(file), "--problem", "What is a[:x:]?")
    assert "m:x: {" in text
    assert "Return :smile: or a[:x:]." in text
    assert "What is a[:x:]?" in text


def test_a_message_about_a_reference_shows_it_as_written(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('tools = ["nomod:x"]\n')
    command = [sys.executable, "-m", "rstar2", "format", "show", "--format", "mine.toml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert "nomod:x: there is no module nomod" in result.stderr


def test_a_forced_format_is_named(model: Path) -> None:
    assert "format    no-tools, forced\ntools     none\n" in show_format(
        str(model), "--format", "no-tools", "--force-format"
    )


def test_serve_gives_vllm_the_template_of_the_format_that_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def line(*more: str) -> str:
        result = CliRunner().invoke(app, ["serve", str(model), "--print-command", *more])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "--chat-template" not in line()
    words = shlex.split(line("--format", "demo", "--force-format"))
    template = Path(words[words.index("--chat-template") + 1])
    assert template.name == "template.jinja"
    assert not template.exists(), "printing the command writes nothing"


def test_serve_has_vllm_end_turns_where_the_models_own_files_do_not(
    model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    message = "do not make vLLM stop at the end of a turn; vLLM gets a generation config that does"

    def served() -> Result:
        result = CliRunner().invoke(app, ["serve", str(model), "--print-command"])
        assert result.exit_code == 0, result.output
        return result

    generation_config = model / "generation_config.json"
    assert "--generation-config" not in served().stdout
    base = copy.deepcopy(tokenizer)
    base.eos_token = "<|endoftext|>"
    base.save_pretrained(model)
    result = served()
    words = shlex.split(result.stdout)
    assert Path(words[words.index("--generation-config") + 1]).name == "generation"
    assert message in result.stderr
    end, end_of_text = tokenizer.eos_token_id, base.eos_token_id
    generation_config.write_text(json.dumps({"eos_token_id": [end, end_of_text]}))
    assert message not in served().stderr
    # Only the tokenizer was corrected.
    tokenizer.save_pretrained(model)
    generation_config.write_text(json.dumps({"eos_token_id": end_of_text}))
    assert message not in served().stderr
    generation_config.write_text(json.dumps({"eos_token_id": end_of_text, "max_new_tokens": 2048}))
    assert message in served().stderr


@pytest.mark.parametrize("base_name", ["config.json generation_config.json", "config.json", ""])
def test_serve_has_vllm_end_the_turns_of_a_hub_model_whose_files_are_in_the_cache(
    base_name: str, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--some--base"
    base = copy.deepcopy(tokenizer)
    base.eos_token = "<|endoftext|>"
    base.save_pretrained(repository / "snapshots" / "abc")
    for name in base_name.split():
        (repository / "snapshots" / "abc" / name).write_text('{"eos_token_id": 0, "max_new_tokens": 2048}')
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    result = CliRunner().invoke(app, ["serve", "some/base", "--print-command"])
    assert result.exit_code == 0, result.output
    whole = base_name.endswith("generation_config.json")
    assert ("--generation-config" in result.stdout) is whole
    assert ("the model is not on this machine yet" in result.stderr) is not whole


def test_a_model_that_disagrees_with_its_own_file_is_refused(model: Path) -> None:
    (model / "chat_template.jinja").write_text("another")
    for words in (["format", "show"], ["serve", "--print-command"]):
        message = error_of(*words, str(model)).message
        assert message == (
            f"{model}: the chat template of the tokenizer differs from the one in rstar2_format.json"
        )
