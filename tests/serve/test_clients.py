"""Third-party client libraries use the agent, each in the version that docs/results/serving.md names."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.optional import needs
from support.servers import clients
from support.servers.scripted_agent import KEY, QUESTION, make_model, scripted, serve_agent
from support.servers.vllm_standin import serving
from support.waiting import TIMEOUT_S

from rstar2.eval.harnesses.environment import Harness, set_up
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.turns.choose import load_codec

pytestmark = [needs("torch"), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "litellm": "litellm==1.110.2",
    "langchain": "langchain-openai==1.7.4",
    "pydantic_ai": "pydantic-ai-slim[openai]==2.68.0",
    "llm": "llm==0.36",
    "inspect_ai": "inspect-ai==0.3.285",
    "lm_eval": "lm-eval[api]==0.4.13",
}
OTHER_PACKAGES = ("openai==3.57.0",)
"""Packages that all clients use and that inspect-ai does not install."""
REPORTED_FIELDS = {
    "litellm": {"whole", "streamed", "reasoning"},
    "langchain": {"whole", "streamed", "structured"},
    "pydantic_ai": {"whole", "streamed", "reasoning"},
    "llm": {"whole", "streamed"},
    "inspect_ai": {"whole", "right", "reasoning"},
    "lm_eval": {"whole", "right"},
}
"""The parts of an answer that each library makes available, and that `clients` therefore reports."""
THOUGHT = "I multiply.\n\n```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\nIt is 42."


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, judge: JudgeHandle) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_model(folder)
    with (
        serving(scripted(folder, load_codec(folder), "demo")) as engine,
        serve_agent(engine.url, folder, judge, origins=["http://localhost:3000"]) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment with all libraries.

    The environment is in the folder RSTAR2_HARNESSES, or in a temporary folder if it is not set.
    """
    folder = os.environ.get("RSTAR2_HARNESSES") or str(tmp_path_factory.mktemp("harnesses"))
    modules = ("langchain_openai", *(name for name in PACKAGES if name != "langchain"))
    harness = Harness("clients", ("clients",), (*PACKAGES.values(), *OTHER_PACKAGES), modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", folder)
        set_up(harness)
        yield harness.python


@pytest.mark.long
@pytest.mark.parametrize("library", PACKAGES)
def test_a_library_shows_the_answer_and_the_thought(
    library: str, url: str, python: Path, tmp_path: Path
) -> None:
    assert clients.QUESTION == QUESTION
    words = [str(python), clients.__file__, library, f"{url}/v1", KEY, "demo", str(tmp_path)]
    env = {**os.environ, "NO_PROXY": "*", "PYTHONPATH": "", "HOME": str(tmp_path)}
    process = subprocess.run(
        words, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=2 * TIMEOUT_S
    )
    assert process.returncode == 0, process.stderr
    report: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert report.keys() == REPORTED_FIELDS[library]
    structured = report.pop("structured", None)
    expected = {"whole": "\\boxed{42}", "streamed": "\\boxed{42}", "reasoning": THOUGHT, "right": True}
    assert report == {name: expected[name] for name in report}
    if library == "langchain":
        assert "for structured output, use a server without --with-tools" in structured


def test_the_page_names_the_versions_that_are_tried() -> None:
    page = (ROOT / "docs" / "results" / "serving.md").read_text(encoding="utf-8")
    for package in (*PACKAGES.values(), *OTHER_PACKAGES):
        name, _, version = re.sub(r"\[.*\]", "", package).partition("==")
        assert f"| {name} {version} |" in page


# Requests of Open WebUI, from its routers/openai.py, utils/payload.py and routers/tasks.py.
CHAT = {
    "stream": True,
    "model": "demo",
    "messages": [{"role": "user", "content": QUESTION}],
    "stream_options": {"include_usage": True},
}
WITH_SETTINGS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "min_p": 0.0,
    "max_tokens": 512,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "seed": 7,
    "stop": ["Question:"],
    "logit_bias": {},
}
TITLE = {
    "model": "demo",
    "messages": [{"role": "user", "content": "### Task:\nGenerate a title for this chat."}],
    "stream": False,
    "max_completion_tokens": 1000,
}
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


@pytest.mark.parametrize("more", [{}, WITH_SETTINGS], ids=["plain", "with settings"])
def test_open_webuis_chat_is_answered(url: str, more: dict[str, Any]) -> None:
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        content=json.dumps({**CHAT, **more}),
        headers=HEADERS,
        trust_env=False,
        timeout=TIMEOUT_S,
    )
    assert answer.status_code == 200, answer.text
    assert "text/event-stream" in answer.headers["Content-Type"]
    events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["usage"]["completion_tokens"] > 10
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "\\boxed{42}"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == THOUGHT


def test_open_webuis_title_and_list_of_models_are_answered(url: str) -> None:
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S, headers=HEADERS) as http:
        title = http.post(f"{url}/v1/chat/completions", content=json.dumps(TITLE))
        assert title.status_code == 200, title.text
        models = http.get(f"{url}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["demo"]


def test_a_browser_lets_open_webui_ask_directly(url: str) -> None:
    """In Open WebUI's direct connections, the page sends the requests, so the browser sends a preflight first."""
    headers = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    allowed = httpx.options(f"{url}/v1/chat/completions", headers=headers, trust_env=False, timeout=TIMEOUT_S)
    assert allowed.status_code == 200
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
