"""Tests of rewriting by a served model: each text is requested once, judged, and stored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import CommandResult, rstar2
from support.family_tokenizers import TOKENS
from support.waiting import TIMEOUT_S, wait_until

from rstar2.data.mixture.rewrite import Rewrite, fault_of

OLD = "This is the answer that the set came with, before a model wrote another one."


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server that rewrites. `write` maps a prompt to a new text and its finish reason."""

    request_queue_size = 128
    """Size of the queue of connections. If the queue is full, the kernel tries again after a second."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.write: Callable[[str], tuple[Any, str]] = lambda prompt: (f"Better: {OLD}", "stop")
        self.answers: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
        """If set, it is called instead of `write`, and returns the choice for a request. None rejects a wrong field."""
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
        if server.answers is not None:
            choice = server.answers(body)
            if choice is None:
                self._send(400, {"error": {"message": "Unrecognized request argument: chat_template_kwargs"}})
            else:
                self._send(200, {"choices": [choice]})
            return
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
    """A server. The time limits of its client are long enough for a busy machine."""
    monkeypatch.setattr("rstar2.data.mixture.rewrite._CHECK_S", TIMEOUT_S)
    monkeypatch.setattr("rstar2.retry.FIRST_ANSWER_S", TIMEOUT_S)
    with Server() as new_server:
        thread = threading.Thread(target=new_server.serve_forever, args=(0.05,))
        thread.start()
        yield new_server
        new_server.shutdown()
        thread.join()


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Ten rows each of Tulu and Nemotron, as arguments for `--from`."""
    answers, prompts = tmp_path / "tulu.jsonl", tmp_path / "nemotron.jsonl"
    with answers.open("w") as tulu, prompts.open("w") as nemotron:
        for at in range(10):
            question = {"role": "user", "content": f"Question {at}, which is long enough to be rewritten?"}
            messages = [question, {"role": "assistant", "content": OLD}]
            tulu.write(json.dumps({"messages": messages}) + "\n")
            other = {**question, "content": f"Another {question['content']}"}
            nemotron.write(json.dumps({"input": [other], "output": OLD, "reasoning": "off"}) + "\n")
    return ["--from", f"tulu3={answers}", "--from", f"llama-nemotron={prompts}"]


def prepare(sources: list[str], out: Path, *words: object) -> CommandResult:
    return rstar2("data", "prepare", "tulu3", "llama-nemotron", *sources, "--output", out, *words)


def messages_of(out: Path, source: str) -> list[tuple[str, str]]:
    """Returns the first and the last message of each row."""
    rows = [row for row in pq.read_table(out / "data.parquet").to_pylist() if row["source"] == source]
    return [(row["messages"][0]["content"], row["messages"][-1]["content"]) for row in rows]


def test_answers_and_prompts_are_rewritten_and_the_card_names_the_model(
    tmp_path: Path, server: Server, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.busy = 2
    out = tmp_path / "out"
    result = prepare(sources, out, "--rewrite", f"{server.url}/v1", "--model", "writer")
    assert result.code == 0, result.stderr
    assert re.search(
        r"the server that rewrites did not answer for .* Requests sent again: 2 × ", result.stderr
    ), result.stderr
    new = f"Better: {OLD}"
    questions = [f"Question {at}, which is long enough to be rewritten?" for at in range(10)]
    assert messages_of(out, "tulu3") == [(question, new) for question in questions]
    assert messages_of(out, "llama-nemotron") == [(new, OLD)] * 10
    assert len(server.asked) == 20
    assert set(server.keys) == {"Bearer secret"}
    assert {each["model"] for each in server.asked} == {"writer"}
    card = (out / "card.md").read_text()
    assert "tulu3: 10 answers rewritten by writer; left unchanged: –" in card
    assert "llama-nemotron: 10 prompts rewritten by writer" in card
    assert "secret" not in card


THOUGHT = "Okay, the user wants another text. Let me see. <b>Maybe</b> I should think about it for a while."


class Qwen3:
    """Answers like Qwen3 on vLLM: with a thought, unless the request switches thinking off in the template.

    Args:
        form: where the thought is. `tags`: in the content, between tags. `no start`: without the first tag, which the
            template wrote. `reasoning_content` or `reasoning`: in this field, to which the server's parser moves it.
            `unfinished`: without an end, so that it contains the answer. `taken for a thought`: the parser mistakes an
            answer without a thought for a thought.
        switch: whether `chat_template_kwargs` are `known`, `ignored`, or `refused` with status 400.
    """

    def __init__(self, form: str = "tags", switch: str = "known") -> None:
        self.form = form
        self.switch = switch

    def __call__(self, body: dict[str, Any]) -> dict[str, Any] | None:
        switches = body.get("chat_template_kwargs")
        if switches is not None and self.switch == "refused":
            return None
        thinks = self.switch != "known" or (switches or {}).get("enable_thinking", True)
        message: dict[str, Any] = {"role": "assistant", "content": f"Better: {OLD}"}
        if self.form == "taken for a thought" and not thinks:
            message = {"role": "assistant", "content": None, "reasoning_content": f"Better: {OLD}"}
        elif thinks and self.form in ("reasoning_content", "reasoning", "taken for a thought"):
            message["reasoning" if self.form == "reasoning" else "reasoning_content"] = f"\n{THOUGHT}\n"
            message["content"] = f"\n\nBetter: {OLD}"
        elif thinks and self.form == "unfinished":
            message["content"] = f"<think>\n{THOUGHT} Better: {OLD}"
        elif thinks:
            start = "" if self.form == "no start" else "<think>\n"
            message["content"] = f"{start}{THOUGHT}\n</think>\n\nBetter: {OLD}"
        return {"index": 0, "message": message, "finish_reason": "stop"}


@pytest.mark.parametrize("switch", ["known", "ignored", "refused"])
@pytest.mark.parametrize(
    "form", ["tags", "no start", "reasoning_content", "reasoning", "taken for a thought"]
)
def test_a_thinking_model_rewrites_without_its_thought(
    tmp_path: Path, server: Server, sources: list[str], form: str, switch: str
) -> None:
    server.answers = Qwen3(form, switch)
    out = tmp_path / "out"
    result = prepare(sources, out, "--rewrite", server.url, "--model", "writer")
    assert result.code == 0, result.stderr
    assert [last for _, last in messages_of(out, "tulu3")] == [f"Better: {OLD}"] * 10
    assert [first for first, _ in messages_of(out, "llama-nemotron")] == [f"Better: {OLD}"] * 10
    thinking_flags = [
        each["chat_template_kwargs"]["enable_thinking"] for each in server.asked if each.keys() != PLAIN
    ]
    assert set(thinking_flags) == {False}
    again = len(server.asked) - 20
    if switch == "refused" or (form == "taken for a thought" and switch == "known"):
        # Only the requests that were under way with the first one, all of one source, are sent again.
        assert 0 < again <= 10
    else:
        assert again == 0


PLAIN = {"model", "messages"}


def test_a_thought_without_an_answer_stops_the_preparation_with_an_example(
    tmp_path: Path, server: Server, sources: list[str]
) -> None:
    server.answers = Qwen3("unfinished", "ignored")
    out = tmp_path / "out"
    words = ("--rewrite", server.url, "--model", "writer")
    result = prepare(sources, out, *words)
    assert result.code == 2, result.stderr
    one_line = " ".join(result.stderr.split())
    assert (
        "only 0 of the first 10 texts of tulu3 that writer rewrote can be used. Rejected: 10 only a thought."
        in one_line
    )
    assert "tulu3-" in one_line
    assert "Okay, the user wants another text." in one_line
    assert "--set rewrite.accepted=0" in one_line
    server.asked.clear()
    server.answers = None
    result = prepare(sources, out, *words)
    assert (result.code, len(server.asked)) == (0, 20), result.stderr


def many(tmp_path: Path, count: int) -> list[str]:
    with (tmp_path / "many.jsonl").open("w") as tulu:
        for at in range(count):
            question = {"role": "user", "content": f"Question {at}, which is long enough to be rewritten?"}
            tulu.write(json.dumps({"messages": [question, {"role": "assistant", "content": OLD}]}) + "\n")
    return ["data", "prepare", "tulu3", "--from", f"tulu3={tmp_path / 'many.jsonl'}"]


def test_the_first_texts_decide_whether_it_goes_on(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.data.mixture.rewrite._IN_FLIGHT", 1)
    server.write = lambda prompt: (
        ("Short.", "stop") if "Question 7," not in prompt else (f"Better: {OLD}", "stop")
    )
    words = [*many(tmp_path, 400), "--output", tmp_path / "out", "--rewrite", server.url, "--model", "writer"]
    result = rstar2(*words)
    assert result.code == 2, result.stderr
    assert "only 1 of the first 50 texts of tulu3 that writer rewrote can be used" in " ".join(
        result.stderr.split()
    )
    assert len(server.asked) == 50
    (texts,) = (tmp_path / "out" / ".work").glob("rewrite-*.jsonl")
    assert [json.loads(line)["fault"] for line in texts.read_text().splitlines()] == [""]
    # The accepted text is not rewritten again. A share of 0 accepts any number of rewritten texts.
    server.asked.clear()
    result = rstar2(*words, "--set", "rewrite.accepted=0")
    assert (result.code, len(server.asked)) == (0, 399), result.stderr
    assert (
        "1 answers rewritten by writer; left unchanged: 399 too short"
        in (tmp_path / "out" / "card.md").read_text()
    )


def test_a_refused_request_is_an_example_with_the_words_of_the_server(
    tmp_path: Path, server: Server, sources: list[str]
) -> None:
    server.answers = lambda body: None
    result = prepare(sources, tmp_path / "out", "--rewrite", server.url, "--model", "writer")
    text = " ".join(result.stderr.split())
    assert (result.code, "10 refused by the server" in text, "Unrecognized request argument" in text) == (
        2,
        True,
        True,
    )


ENGLISH = "You have to boil the water first, and then the pasta is in it for ten minutes. It is done when it is soft."
FRENCH = "Il faut faire bouillir le sel dans une casserole, et les pâtes sont dans l'eau pour dix minutes avec du sel."
GERMAN = "Das Wasser muss zuerst kochen, und dann sind die Nudeln für zehn Minuten in der Pfanne. Es ist nicht schwer."
CHINESE = "首先把水烧开,然后把面条放进去煮十分钟。"
JAPANESE = "まずお湯を沸かして、それからパスタを十分ゆでてください。"
RUSSIAN = "Сначала вскипятите воду, потом варите макароны десять минут."
LANGUAGES = [ENGLISH, FRENCH, GERMAN, CHINESE, JAPANESE, RUSSIAN]


@pytest.mark.parametrize("old", LANGUAGES)
def test_a_text_in_another_language_is_rejected(old: str) -> None:
    settings = Rewrite(model="m", shortest=0, longest=99)
    for new in LANGUAGES:
        longer = f"{new} {new.lower()}"
        assert fault_of(old, longer, "stop", settings) == ("" if new is old else "another language"), (
            old,
            new,
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ENGLISH, "Boil water. Add pasta; wait ten minutes."),
        (ENGLISH, f"{ENGLISH} In Chinese, noodles are 面条."),
        (ENGLISH, "```python\nde = la = el = 1\nprint(de, la, el)\n```"),
        (
            ENGLISH,
            "The angles $\\alpha$, β and γ are equal, and the sum of α + β + γ is that of the triangle.",
        ),
        ("It is 42.", "42"),
        ("Say hello in French.", "Bonjour à tous"),
        (CHINESE, f"Python:{CHINESE}"),
        ("面条", "把面条放进去"),
    ],
)
def test_names_code_and_formulas_are_no_other_language(old: str, new: str) -> None:
    assert fault_of(old, new, "stop", Rewrite(model="m", shortest=0, longest=99)) == ""


@pytest.mark.parametrize(
    "piece", ["\\[", "\\(", "`", "```", "$", "$$", "the ", "de la el ", "\n", "面", "http://"]
)
def test_the_language_of_a_garbled_text_is_looked_for_in_linear_time(piece: str) -> None:
    assert fault_of(
        ENGLISH, f"{ENGLISH} Enjoy. {piece * 50_000}", "stop", Rewrite(model="m", longest=10_000)
    ) in (*("", "another language", "marks of a format"),)


@pytest.mark.parametrize(
    ("new", "fault"),
    [
        (OLD, "the old text again"),
        (f"  {OLD.replace(' ', '  ')}\n", "the old text again"),
        (f"Here is the rewritten message:\n\nBetter: {OLD}", "words about the rewriting"),
        (f"Sure! Here's a better answer:\n{OLD}", "words about the rewriting"),
        (f"**Revised response:** {OLD}", "words about the rewriting"),
        (f"Okay, the user wants me to rewrite this.\n\n{OLD}", "words about the rewriting"),
        (f"[assistant]\nBetter: {OLD}", "words about the rewriting"),
        (f"New York: {OLD}", ""),
        (f"Here is a list: {OLD}", ""),
        (f"Better: {OLD}", ""),
        (f"First, the answer: {OLD}", ""),
    ],
)
def test_a_text_that_is_no_rewriting_is_rejected_by_name(new: str, fault: str) -> None:
    assert fault_of(OLD, new, "stop", Rewrite(model="m")) == fault


def test_a_preface_that_the_old_text_has_too_is_its_own() -> None:
    old = "Here is the new version: 3.2 of the program, with all its features."
    assert fault_of(old, f"{old} Enjoy.", "stop", Rewrite(model="m")) == ""


@pytest.mark.parametrize(
    "thought",
    [
        "<thinking>hm</thinking>",
        "<seed:think>hm</seed:think>\n",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>",
    ],
)
def test_a_thought_in_the_tags_of_any_family_is_left_out(
    tmp_path: Path, server: Server, sources: list[str], thought: str
) -> None:
    server.write = lambda prompt: (f"{thought}Better: {OLD}", "stop")
    out = tmp_path / "out"
    result = prepare(sources, out, "--rewrite", server.url, "--model", "writer")
    assert result.code == 0, result.stderr
    assert [last for _, last in messages_of(out, "tulu3")] == [f"Better: {OLD}"] * 10


def test_a_mixture_of_two_scripts_is_rejected() -> None:
    mixed = f"{ENGLISH[:60]} {CHINESE}"
    assert fault_of(ENGLISH, mixed, "stop", Rewrite(model="m")) == "another language"


def test_a_stopped_rewriting_asks_for_no_text_twice_and_ends_in_the_same_bytes(
    tmp_path: Path, server: Server, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write = lambda prompt: (f"New: {prompt[-60:]} {OLD}", "stop")
    words = ("--rewrite", server.url, "--model", "writer")
    assert prepare(sources, tmp_path / "whole", *words).code == 0
    server.asked.clear()
    server.refuses_after = 7
    monkeypatch.setenv("OPENAI_API_KEY", "stopped")
    result = prepare(sources, tmp_path / "out", *words)
    assert (result.code, "refused the request: HTTP 401" in result.stderr) == (2, True), result.stderr
    (cache,) = (tmp_path / "out" / ".work").glob("rewrite-*.jsonl")
    before = cache.read_bytes().count(b"\n")
    with cache.open("ab") as torn:
        torn.write(b'{"number": 9, "te')
    server.refuses_after = None
    # Requests are counted by key, because a request of the stopped run may reach the server only now.
    monkeypatch.setenv("OPENAI_API_KEY", "resumed")
    assert prepare(sources, tmp_path / "out", *words).code == 0
    assert server.keys.count("Bearer resumed") == 20 - before
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def test_a_killed_rewriting_of_a_thinking_model_asks_for_no_text_twice(
    tmp_path: Path, server: Server
) -> None:
    model, hold = Qwen3(switch="ignored"), threading.Event()

    def answer(body: dict[str, Any]) -> dict[str, Any] | None:
        if len(server.asked) > 120:
            hold.wait(TIMEOUT_S)
        return model(body)

    server.answers = answer
    words = [*many(tmp_path, 200), "--output", tmp_path / "out", "--rewrite", server.url, "--model", "writer"]
    command = [sys.executable, "-m", "rstar2", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(server.asked) > 120)
        process.kill()
    hold.set()
    (texts,) = (tmp_path / "out" / ".work").glob("rewrite-*.jsonl")
    line_count = texts.read_bytes().count(b"\n")
    assert 80 <= line_count < 200
    server.asked.clear()
    server.answers = Qwen3()
    result = rstar2(*words)
    assert (result.code, len(server.asked)) == (0, 200 - line_count), result.stderr
    assert [last for _, last in messages_of(tmp_path / "out", "tulu3")] == [f"Better: {OLD}"] * 200


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
    server.write = lambda prompt: ends.get(int(prompt.split("Question ")[1][0]), (OLD.upper(), "stop"))
    result = prepare(sources, tmp_path / "out", "--rewrite", server.url, "--model", "writer")
    assert result.code == 0, result.stderr
    assert [last for _, last in messages_of(tmp_path / "out", "tulu3")] == [OLD] * 5 + [OLD.upper()] * 5
    note = "5 answers rewritten by writer; left unchanged: 1 cut off, 1 declined by the model or a filter, 1 empty, "
    note += "1 too long, 1 too short"
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
    assert fault_of(code, f"{code}, h", "stop", Rewrite(model="m")) == ""
    assert fault_of("Yes.", "It is < 3.\n```\nx\n```", "stop", Rewrite(model="m", longest=9)) == ""


def test_what_rewrites_is_checked_before_a_row_is_read(
    tmp_path: Path, server: Server, sources: list[str]
) -> None:
    out = tmp_path / "out"
    own_file = tmp_path / "mine.jsonl"
    own_file.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    for words, problem in (
        (["--rewrite", server.url], "needs both a server and a model"),
        (["--model", "writer"], "needs both a server and a model"),
        (["--rewrite", server.url, "--model", "other"], "does not serve other"),
        (["--rewrite", "http://127.0.0.1:1", "--model", "writer"], "nothing answers at http://127.0.0.1:1"),
        (["--rewrite", "gpu:8000", "--model", "writer"], "not a server's URL: gpu:8000"),
    ):
        result = prepare(sources, out, *words)
        assert (result.code, problem in result.stderr) == (2, True), result.stderr
    result = rstar2(
        "data", "prepare", own_file, "--output", out, "--rewrite", server.url, "--model", "writer"
    )
    assert "does not apply to any of these sources" in result.stderr
    assert not out.exists()
    assert server.asked == []
