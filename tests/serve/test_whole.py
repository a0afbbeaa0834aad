"""`rstar2 serve --engine transformers --with-tools` as a user starts it, with judge and agent in separate processes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import rstar2
from support.optional import needs
from support.servers import openai_client as openai
from support.servers.serving import wait_for_server
from support.servers.vllm_program import vllm_environment
from support.waiting import TIMEOUT_S, wait_until

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import FORMAT_FILE, default_format
from rstar2.processes import free_port

pytestmark = [needs("torch"), pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own folder for the state files of its servers."""
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path / "state"))


@pytest.fixture
def temporary_files() -> Iterator[Path]:
    """A folder with a short path, because the paths of the judge's sockets have a maximum length."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.long
def test_the_agent_answers_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary_files: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary_files))
    folder, port = tmp_path / "model", str(free_port())
    tiny = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder, tiny, builtin.traces(1, 60, {}), builtin.FORMAT, seed=1)
    words = ("--engine", "transformers", "--with-tools", "--api-key", "secret", "--port", port, "--detach")
    command = [sys.executable, "-m", "rstar2", "serve", str(folder), *words]
    try:
        start = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
        assert start.returncode == 0, start.stderr
        assert f"http://127.0.0.1:{port}/v1" in start.stdout
        server = wait_for_server()
        assert server["with_tools"] is True
        with openai.OpenAI(
            base_url=f"{server['url']}/v1", api_key="secret", max_retries=0, timeout=TIMEOUT_S
        ) as client:
            answer = client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=[{"role": "user", "content": "What is 1 + 1?"}],
                max_tokens=12,
                temperature=0,
            )
        # With random weights, greedy generation does not end this soon.
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 12
    finally:
        stop = rstar2("serve", "down")
    assert stop.code == 0, stop.stderr
    with (
        pytest.raises(openai.APIConnectionError),
        openai.OpenAI(base_url=server["url"], api_key="x", timeout=TIMEOUT_S) as client,
    ):
        client.with_options(max_retries=0).models.list()
    wait_until(lambda: not Path(f"/proc/{server['pid']}").exists())
    assert list(temporary_files.glob("rstar2-serve-*")) == []


@pytest.mark.parametrize("with_tools", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_servers_of_the_page_on_the_published_model_start_with_a_stand_in_for_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: JudgeHandle, with_tools: bool
) -> None:
    page = (
        (Path(__file__).resolve().parents[2] / "docs" / "published-14b.md")
        .read_text("utf-8")
        .replace("\\\n", " ")
    )
    lines = re.findall(r"^rstar2 (serve \S+/.*)$", page, re.MULTILINE)
    assert ["--with-tools" in line for line in lines] == [False, True]
    model = tmp_path / lines[0].split()[1]
    tiny = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(model, tiny, builtin.traces(1, 60, {}), builtin.FORMAT, seed=1)
    # The published weights have a template that lists tools. The page's options give the rest of the format.
    (model / FORMAT_FILE).unlink()
    (model / "chat_template.jinja").write_text(default_format().template)
    monkeypatch.chdir(tmp_path)
    port = str(free_port())
    more = ["--python", str(vllm_environment(tmp_path / "vllm", "vllm")), "--port", port]
    words = [word for word in shlex.split(lines[with_tools]) if word != "--detach"] + more
    words += ["--judge", judge.url] if with_tools else []
    try:
        start = rstar2(*words, "--detach")
        assert start.code == 0, start.stderr
        assert wait_for_server()["with_tools"] is with_tools
    finally:
        stop = rstar2("serve", "down", "--port", port)
    assert stop.code == 0, stop.stderr
