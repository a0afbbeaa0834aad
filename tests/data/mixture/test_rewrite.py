"""A served model rewrites answers and prompts: what it writes is judged, kept, and asked for once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import Ran, rstar2
from support.family_tokenizers import TOKENS
from support.waiting import TIMEOUT_S

from rstar2.data.mixture.rewrite import Rewrite, fault_of

OLD = "This is the answer that the set came with, before a model wrote another one."


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server that rewrites: `write` gives a new text, and why it ended, from the shown one."""

    request_queue_size = 128
    """Connections that wait to be accepted; one more than there is room for is tried again after a second."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.write: Callable[[str], tuple[Any, str]] = lambda shown: (f"Better: {OLD}", "stop")
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.busy = 0
        self.refuses_after: int | None = None
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "writer"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            if server.busy:
                server.busy -= 1
                self._send(503, {})
                return
            if server.refuses_after is not None and len(server.asked) >= server.refuses_after:
                self._send(401, {})
                return
            server.asked.append(body)
            server.keys.append(self.headers["Authorization"])
        text, finish = server.write(body["messages"][1]["content"])
        self._send(200, {"choices": [{"message": {"content": text}, "finish_reason": finish}]})

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """With bounds of the client that a machine that stands still for a while does not pass."""
    monkeypatch.setattr("rstar2.data.mixture.rewrite._CHECK_S", TIMEOUT_S)
    monkeypatch.setattr("rstar2.retry.FIRST_ANSWER_S", TIMEOUT_S)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Ten rows each of Tulu and Nemotron, by `--from`."""
    answers, prompts = tmp_path / "tulu.jsonl", tmp_path / "nemotron.jsonl"
    with answers.open("w") as tulu, prompts.open("w") as nemotron:
        for at in range(10):
            asked = {"role": "user", "content": f"Question {at}, which is long enough to be rewritten?"}
            messages = [asked, {"role": "assistant", "content": OLD}]
            tulu.write(json.dumps({"messages": messages}) + "\n")
            other = {**asked, "content": f"Another {asked['content']}"}
            nemotron.write(json.dumps({"input": [other], "output": OLD, "reasoning": "off"}) + "\n")
    return ["--from", f"tulu3={answers}", "--from", f"llama-nemotron={prompts}"]


def prepare(sources: list[str], out: Path, *words: object) -> Ran:
    return rstar2("data", "prepare", "tulu3", "llama-nemotron", *sources, "--output", out, *words)


def said(out: Path, source: str) -> list[tuple[str, str]]:
    """The first and the last message of each row."""
    rows = [row for row in pq.read_table(out / "data.parquet").to_pylist() if row["source"] == source]
    return [(row["messages"][0]["content"], row["messages"][-1]["content"]) for row in rows]


def test_answers_and_prompts_are_rewritten_and_the_card_names_the_model(
    tmp_path: Path, server: Server, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.busy = 2
    out = tmp_path / "out"
    ran = prepare(sources, out, "--rewrite", f"{server.url}/v1", "--model", "writer")
    assert ran.code == 0, ran.stderr
    assert re.search(r"the server that rewrites was away for .* Requests sent again: 2 × ", ran.stderr), (
        ran.stderr
    )
    new = f"Better: {OLD}"
    asked = [f"Question {at}, which is long enough to be rewritten?" for at in range(10)]
    assert said(out, "tulu3") == [(question, new) for question in asked]
    assert said(out, "llama-nemotron") == [(new, OLD)] * 10
    assert len(server.asked) == 20
    assert set(server.keys) == {"Bearer secret"}
    assert {each["model"] for each in server.asked} == {"writer"}
    card = (out / "card.md").read_text()
    assert "tulu3: 10 answers rewritten by writer; left unchanged: –" in card
    assert "llama-nemotron: 10 prompts rewritten by writer" in card
    assert "secret" not in card


def test_a_stopped_rewriting_asks_for_no_text_twice_and_ends_in_the_same_bytes(
    tmp_path: Path, server: Server, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write = lambda shown: (f"New: {shown[-60:]} {OLD}", "stop")
    words = ("--rewrite", server.url, "--model", "writer")
    assert prepare(sources, tmp_path / "whole", *words).code == 0
    server.asked.clear()
    server.refuses_after = 7
    monkeypatch.setenv("OPENAI_API_KEY", "stopped")
    ran = prepare(sources, tmp_path / "out", *words)
    assert (ran.code, "refused the request: HTTP 401" in ran.stderr) == (2, True), ran.stderr
    (kept,) = (tmp_path / "out" / ".work").glob("rewrite-*.jsonl")
    before = kept.read_bytes().count(b"\n")
    with kept.open("ab") as torn:
        torn.write(b'{"number": 9, "te')
    server.refuses_after = None
    # By key: a request of the stopped run may reach the server only now.
    monkeypatch.setenv("OPENAI_API_KEY", "resumed")
    assert prepare(sources, tmp_path / "out", *words).code == 0
    assert server.keys.count("Bearer resumed") == 20 - before
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def test_a_text_that_is_not_taken_leaves_the_row_as_it_was_and_is_counted(
    tmp_path: Path, server: Server, sources: list[str]
) -> None:
    ends: dict[int, tuple[Any, str]] = {
        0: ("", "stop"),
        1: ("Short.", "stop"),
        2: (OLD * 9, "stop"),
        3: (OLD, "length"),
    }
    ends[4] = (OLD.upper(), "content_filter")
    ends[5] = ([{"type": "text", "text": OLD.upper()}], "stop")
    server.write = lambda shown: ends.get(int(shown.split("Question ")[1][0]), (OLD.upper(), "stop"))
    ran = prepare(sources, tmp_path / "out", "--rewrite", server.url, "--model", "writer")
    assert ran.code == 0, ran.stderr
    assert [last for _, last in said(tmp_path / "out", "tulu3")] == [OLD] * 5 + [OLD.upper()] * 5
    note = "5 answers rewritten by writer; left unchanged: 1 cut off, 1 empty, 1 refused by the server, 1 too long, "
    note += "1 too short"
    assert note in (tmp_path / "out" / "card.md").read_text()


def test_a_finished_set_needs_no_server(tmp_path: Path, server: Server, sources: list[str]) -> None:
    assert prepare(sources, tmp_path / "out", "--rewrite", server.url, "--model", "writer").code == 0
    again = prepare(sources, tmp_path / "out", "--rewrite", "http://127.0.0.1:1", "--model", "writer")
    assert (again.code, "20 conversations" in again.stdout) == (0, True), again.stderr


def test_marks_of_a_format_are_not_taken() -> None:
    for text in ("<think>hm</think> Yes.", "Yes.<|im_end|>", "```python\nprint(1)", "half \ud800 a pair"):
        assert fault_of("Yes, it is.", text, "stop", Rewrite(model="m")), text
    tokens = [token for of_family in TOKENS.values() for kind in of_family for token in kind]
    others = [
        "<|im_end|>",
        "<\uff5cAssistant\uff5c>",
        "<|tool_call>",
        "<turn|>",
        "[INST]",
        "<start_of_turn>user",
    ]
    for token in [*tokens, *others, "<function=python>", "<tool_response>", "</reason>"]:
        assert fault_of("Yes, it is.", f"Yes, {token} it is.", "stop", Rewrite(model="m")), token
    for text in ("Yes, it is.</s>", "<s> Yes, it is.", "It <s>was</s> is.</s>\n"):
        assert fault_of("Yes, it is.", text, "stop", Rewrite(model="m")), text
    for text in ("<answers>", "<answer-key>", "<reasonable", "<s>old</s>", "a <|b", "1 </s> 2", "<thinker>"):
        assert fault_of("Yes, it is.", text, "stop", Rewrite(model="m", shortest=0)) == "", text
    for text in ("<thinking>", "</reasoning>", "<answer id=1>", "<\uff5ctool\u2581calls\u2581begin\uff5c>"):
        assert fault_of("Yes, it is.", text, "stop", Rewrite(model="m", shortest=0, longest=9)), text
    code = "x: list[int] = a[i_1] | b; f <b>bold</b> <span> 1 <x|y> 2 |> g; [link_a](u/think)"
    assert fault_of(code, code, "stop", Rewrite(model="m")) == ""
    assert fault_of("Yes.", "It is < 3.\n```\nx\n```", "stop", Rewrite(model="m", longest=9)) == ""


def test_what_rewrites_is_checked_before_a_row_is_read(
    tmp_path: Path, server: Server, sources: list[str]
) -> None:
    out = tmp_path / "out"
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    for words, problem in (
        (["--rewrite", server.url], "needs both a server and a model"),
        (["--model", "writer"], "needs both a server and a model"),
        (["--rewrite", server.url, "--model", "other"], "does not serve other"),
        (["--rewrite", "http://127.0.0.1:1", "--model", "writer"], "nothing answers at http://127.0.0.1:1"),
        (["--rewrite", "gpu:8000", "--model", "writer"], "not a server's URL: gpu:8000"),
    ):
        ran = prepare(sources, out, *words)
        assert (ran.code, problem in ran.stderr) == (2, True), ran.stderr
    ran = rstar2("data", "prepare", mine, "--output", out, "--rewrite", server.url, "--model", "writer")
    assert "does not apply to any of these sources" in ran.stderr
    assert not out.exists()
    assert server.asked == []
