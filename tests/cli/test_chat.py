"""Tests of `rstar2 chat` with a real judge and a scripted model behind vLLM's wire format (see vllm_standin)."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clock import Clock, policies_on
from support.servers.chat_api import ChatEndpoint, solves
from support.servers.vllm_standin import StandIn, serving
from support.tools import patient
from support.waiting import TIMEOUT_S
from typer.testing import CliRunner, Result

from rstar2.chat.screen import Screen
from rstar2.cli import app
from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.openai_server import OpenAIServer
from rstar2.errors import Failure, UserError
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import default_format, save_format
from rstar2.loop.tools.python_code_with_standard_io import NAME as TOOL_NAME
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.template import END_OF_TURN
from rstar2.processes import free_port
from rstar2.report import write_report


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a format, and no weights."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(path)
    save_format(patient(default_format()), path)
    return path


@pytest.fixture
def standin(tokenizer: Any, folder: Path) -> Iterator[StandIn]:
    """Asks Python for a product, and then answers with the tool's output. A greeting gets a greeting."""

    def model(prompt: list[int]) -> list[int]:
        text = tokenizer.decode(prompt)
        last = text.rpartition("<|im_start|>user\n")[2]
        if output := re.search(r"<tool_response>\n([^<]*)\n</tool_response><\|im_end", last):
            completion = f"so it is</reason> <answer>\\boxed{{{output[1]}}}</answer>"
        elif expression := re.search(r"Compute (.*)\.", last):
            call = {"name": TOOL_NAME, "arguments": {"code": f"print({expression[1]})", "input": ""}}
            completion = f"I ask √ Python <tool_call>{json.dumps(call)}</tool_call>"
        elif expression := re.search(r"Cells (.*); (.*)\n", last):
            calls = [{"name": "jupyter_code", "arguments": {"code": code}} for code in expression.groups()]
            completion = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
        elif "Recite" in last:
            completion = "so " * 3 + " ".join(f"word{number}" for number in range(500))
        elif "garbage" in last:
            completion = 'a <tool_response>b</answer><tool_call>{"c<tool_call>d</reason> e'
        else:
            completion = f"this is question {text.count('<|im_start|>user')}"
        return list(tokenizer.encode(completion + END_OF_TURN))

    standin = StandIn(model)
    standin.root = str(folder)
    with serving(standin):
        yield standin


def _ask(standin: StandIn, *words: str, stdin: str = "") -> Result:
    """Asks one question in this process. Standard input is a pipe."""
    result = CliRunner().invoke(app, ["chat", "--url", standin.url, *words], input=stdin)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.slow
def test_one_question_shows_the_call_its_result_and_the_answer(standin: StandIn, folder: Path) -> None:
    result = _ask(standin, "--prompt", "Compute 37 * 91.")
    output = result.stdout
    places = [output.index(part) for part in ("I ask √ Python", "print(37 * 91)", "ok, ", "3367", "so it is")]
    assert places == sorted(places)
    assert r"\boxed{3367}" in output
    assert not re.search("</?(?:reason|answer|tool_call)>", output)
    # Standard output is no terminal, so the text is plain.
    assert f"{TOOL_NAME}:\n    print(37 * 91)\n" in output
    assert not set("╭│╰─") & set(output)
    assert f"model: scripted ({folder}) at {standin.url}" in result.stderr


def test_tags_that_the_model_nests_are_not_shown(standin: StandIn, judge: JudgeHandle) -> None:
    output = _ask(standin, "--judge", judge.url, "--prompt", "Write garbage").stdout
    assert 'not a call:\n    {"cd e\n' in output
    assert not re.search("</?(?:reason|answer|tool_call|tool_response)>", output)


def test_a_question_from_a_pipe_is_the_same(standin: StandIn, judge: JudgeHandle) -> None:
    assert r"\boxed{42}" in _ask(standin, "--judge", judge.url, stdin="Compute 6 * 7.\n").stdout


def test_a_failed_call_is_shown_as_failed(standin: StandIn, judge: JudgeHandle) -> None:
    output = _ask(standin, "--judge", judge.url, "--prompt", "Compute 1 / 0.").stdout
    assert "error, " in output
    assert "ZeroDivisionError" in output


def test_a_cut_answer_says_so(standin: StandIn, judge: JudgeHandle) -> None:
    result = _ask(standin, "--judge", judge.url, "--max-tokens", "3", "--prompt", "Hello")
    assert "out of tokens" in result.stderr


def test_no_warning_of_a_library_appears_in_a_chat(
    standin: StandIn, judge: JudgeHandle, recwarn: pytest.WarningsRecorder
) -> None:
    """The stand-in's model runs in this process, and emits warnings as a library does."""
    from transformers.utils import logging as theirs

    records: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = records.append  # type: ignore[method-assign]
    verbosity, plain = theirs.get_verbosity(), standin.model

    def model(prompt: list[int]) -> list[int]:
        warnings.warn("an argument is deprecated", FutureWarning, stacklevel=1)
        theirs.get_logger("transformers.generation").warning("a flag is ignored")
        return plain(prompt)

    standin.model = model
    logging.getLogger("transformers").addHandler(listener)
    try:
        theirs.set_verbosity_warning()
        assert "this is question 1" in _ask(standin, "--judge", judge.url, "--prompt", "Hello").stdout
    finally:
        logging.getLogger("transformers").removeHandler(listener)
        theirs.set_verbosity(verbosity)
    assert [str(each.message) for each in recwarn if "deprecated" in str(each.message)] == []
    assert [record.getMessage() for record in records] == []


def _refusal(*words: str, stdin: str | bytes = "x") -> UserError:
    result = CliRunner().invoke(app, ["chat", *words], input=stdin)
    assert result.stdout == ""
    assert isinstance(result.exception, UserError), result.output
    return result.exception


def _error_of(*words: str, stdin: str | bytes = "x") -> str:
    return _refusal(*words, stdin=stdin).message


def test_no_model_is_ever_picked_silently() -> None:
    assert "no model named" in _error_of("--prompt", "x")
    assert "both name a model" in _error_of("--run", "runs/x", "--model", "m", "--prompt", "x")
    assert "no run at owner/name" in _error_of("--run", "owner/name", "--prompt", "x")


def test_a_run_says_which_model_it_made(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model.json").write_text('{"path": "stage3/model"}')
    assert "stage3/model, which does not exist" in _error_of("--model", str(tmp_path))
    (tmp_path / "model.json").write_text("[]")
    assert "model.json has no entry" in _error_of("--model", str(tmp_path))
    # The folder it names is used: it holds a tokenizer, and no weights.
    (tmp_path / "model.json").write_text(json.dumps({"path": str(folder)}))
    assert f"cannot load a model from {folder}" in _error_of("--model", str(tmp_path), stdin="x")


def test_the_model_a_run_made_is_loaded_and_answers(tmp_path: Path, judge: JudgeHandle) -> None:
    fmt = builtin.FORMAT
    make_tiny_model(tmp_path / "stage3", TinyModel(layers=1), [fmt.messages("What is 2 + 2?")], fmt, seed=0)
    (tmp_path / "model.json").write_text('{"path": "stage3"}')
    more = ["--judge", judge.url, "--max-tokens", "8", "--seed", "1", "--prompt", "What is 2 + 2?"]
    result = CliRunner().invoke(app, ["chat", "--run", str(tmp_path), *more])
    assert result.exit_code == 0, result.output
    assert f"model: {tmp_path}/stage3" in result.stderr
    assert result.stdout.strip()


def test_a_server_whose_tokenizer_is_not_here_names_the_option_for_it(standin: StandIn, folder: Path) -> None:
    standin.root = "/on/another/machine"
    error = _refusal("--url", standin.url)
    assert "/on/another/machine, but no tokenizer can be loaded from there" in error.message
    assert "--model" in error.hint
    assert "--api chat" in error.hint
    assert "this is question 1" in _ask(standin, "--model", str(folder), "--prompt", "Hello").stdout


def test_a_server_with_a_key_is_chatted_with_and_without_it_the_option_is_named(
    standin: StandIn, judge: JudgeHandle
) -> None:
    standin.key = "secret"
    error = _refusal("--url", standin.url, "--prompt", "Hello")
    assert "HTTP 401" in error.message
    assert "--api-key" in error.hint
    output = _ask(standin, "--api-key", "secret", "--judge", judge.url, "--prompt", "Hello").stdout
    assert "this is question 1" in output


def test_bad_input_is_one_message(standin: StandIn, tmp_path: Path) -> None:
    assert "there is no question" in _error_of("--url", standin.url, "--prompt", " ")
    assert "--top-p must be above 0" in _error_of("--url", standin.url, "--top-p", "0")
    assert "no model folder at" in _error_of("--model", str(tmp_path / "absent"))
    assert "cannot load a tokenizer from" in _error_of("--model", str(tmp_path))
    assert "there is no question" in _error_of("--url", standin.url, stdin="  \n")
    for url in (
        "localhost", "http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://[::1", "http://", "http://a b",
        "ftp://127.0.0.1",
    ):  # fmt: skip
        assert _error_of("--url", url) == f"not a server's URL: {url}"
    for url in ("127.0.0.1:8088", "ftp://x"):
        assert _error_of("--url", standin.url, "--judge", url) == f"not a judge's URL: {url}"
    assert "the question is not UTF-8" in _error_of("--url", standin.url, stdin=b"caf\xe9")
    assert "the question is not UTF-8" in _error_of("--url", standin.url, "--prompt", "caf\udce9")


@pytest.mark.parametrize("option", ["--api-key", "--judge-token"])
@pytest.mark.parametrize("key", ["schlüssel", "sec\nret", "sec ret", "secret\n"])
def test_a_key_that_cannot_be_sent_is_one_message_without_it(option: str, key: str) -> None:
    error = _refusal("--url", "http://127.0.0.1:1", option, key, "--prompt", "x")
    assert "the key contains" in error.message
    assert "sec" not in str(error)


def test_the_key_of_openai_is_sent_to_openai_alone(
    standin: StandIn, judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert OpenAIServer("https://api.openai.com/v1")._http.headers["authorization"] == "Bearer secret"
    assert "authorization" not in OpenAIServer("https://api.openai.com.example/v1")._http.headers
    standin.key = "secret"
    assert "HTTP 401" in _error_of("--url", standin.url, "--prompt", "Hello")


def test_without_standard_input_or_room_for_the_answer_there_is_one_message(standin: StandIn) -> None:
    words = f"{sys.executable} -m rstar2 chat --url {standin.url} --judge http://127.0.0.1:1"
    for shell, code, message in (
        (f"{words} <&-", 2, "error: there is no question"),
        (f"set -o pipefail; {words} --json --prompt Hello | true", 0, ""),
        (f"{words} --prompt Hello > /dev/full", 1, "error: cannot write to standard output: No space left"),
        (f"{words} --json --prompt Hello > /dev/full", 1, "error: cannot write to standard output: No space"),
    ):
        result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=2 * TIMEOUT_S)
        assert result.returncode == code, result.stderr
        assert message in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_the_answer_so_far_even_where_ctrl_c_is_ignored(
    standin: StandIn, judge: JudgeHandle, tmp_path: Path, number: signal.Signals
) -> None:
    standin.stream_until = 40
    process = subprocess.Popen(
        [
            sys.executable, "-m", "rstar2", "chat", "--url", standin.url, "--judge", judge.url,
            "--prompt", "Recite", "--transcript", str(tmp_path / "kept"),
        ],
        stdout=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stdout is not None
    output = b""
    while b"word1 " not in output:
        output += os.read(process.stdout.fileno(), 1000)
    process.send_signal(number)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number
    [trace] = read_traces(tmp_path / "kept" / "traces.jsonl")
    assert trace.finish == "stopped"
    assert "word1" in trace.final_text


def test_a_url_where_nothing_answers_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.engines.models.RetryPolicy", policies_on(Clock()))
    url = f"http://127.0.0.1:{free_port()}"
    for more in ((), ("--api", "chat")):
        assert _error_of("--url", url, *more) == f"nothing answers at {url}: connection refused"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no model named"),
        (("--api", "chat"), "--api chat needs an endpoint"),
        (("--api", "chat", "--url", "http://x", "--model", "m"), "--api chat takes no local model"),
        (("--api", "chat", "--url", "http://x", "--format", "release"), "the endpoint's own format"),
        (("--model", "m", "--model-name", "n"), "--model-name n is a model on a server"),
        (("--model", "m", "--tool", "cells"), "--tool cells is not a tool"),
        (("--model", "m", "--tool", "support.user_tools:absent"), "user_tools.py has no 'absent'"),
        (("--model", "m", "--tool", "support.user_tools:not_a_tool"), "is not a tool, but function"),
        (("--url", "http://x", "--engine", "vllm"), "--url names a server"),
        (("--api", "chat", "--url", "localhost:8000"), "not a server's URL"),
    ],
)
def test_what_cannot_be_meant_together_is_refused(words: tuple[str, ...], message: str) -> None:
    assert message in _error_of(*words)


def test_a_model_whose_template_drops_tools_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = template
    plain.save_pretrained(tmp_path)
    error = _refusal("--model", str(tmp_path))
    assert "the chat template drops the tool" in error.message
    assert "listed-tools" in error.hint


def test_json_is_one_object_and_needs_a_question(
    standin: StandIn, judge: JudgeHandle, tmp_path: Path
) -> None:
    run = tmp_path / "kept"
    result = _ask(
        standin, "--judge", judge.url, "--json", "--prompt", "Compute 6 * 7.", "--transcript", str(run)
    )
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer["answer"] == r"\boxed{42}"
    assert answer["finish"] == "answer"
    [call] = answer["calls"]
    assert (call["name"], call["status"], call["output"]) == (TOOL_NAME, "ok", "42")
    assert answer["usage"]["calls"] == 1
    assert answer["usage"]["turns"] == 2
    assert (answer["trace_id"], answer["transcript"]) == ("1/0", str(run))
    again = _ask(standin, "--judge", judge.url, "--json", "--transcript", str(run), stdin="Hello")
    assert json.loads(again.stdout)["trace_id"] == "2/0"
    assert [trace.problem for trace in read_traces(run / "traces.jsonl")] == ["Compute 6 * 7.", "Hello"]
    # The second question continued the first conversation.
    first, second = read_traces(run / "traces.jsonl")
    before = first.prompt_ids + first.response_ids
    assert second.prompt_ids[: len(before)] == before
    assert write_report(run).is_file()


def test_a_transcript_of_something_else_or_of_another_format_is_refused(
    standin: StandIn, judge: JudgeHandle, tmp_path: Path, folder: Path
) -> None:
    ask = ["--url", standin.url, "--judge", judge.url, "--prompt", "Hello", "--transcript"]
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty and has no chat transcript" in _error_of(*ask, str(tmp_path))
    assert "notes.txt is a file" in _error_of(*ask, str(tmp_path / "notes.txt"))
    assert CliRunner().invoke(app, ["chat", *ask, str(tmp_path / "kept")]).exit_code == 0
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    save_format(patient(default_format()).model_copy(update={"user": "Solve: {problem}"}), other)
    error = _error_of(*ask, str(tmp_path / "kept"), "--model", str(other))
    assert "differs from this model's format" in error


def test_a_limit_on_time_ends_an_answer_which_is_shown_so_far(
    standin: StandIn, judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test lets the time limit expire as soon as the first pieces are printed."""
    seconds = 3600
    limits: list[asyncio.Timeout] = []
    token_counts: list[int] = []
    timeout, tokens = asyncio.timeout, Screen.tokens

    def limit(delay: float | None) -> asyncio.Timeout:
        create_timeout = timeout(delay)
        if delay == seconds:
            limits.append(create_timeout)
        return create_timeout

    def on_tokens(screen: Screen, token_ids: list[int]) -> None:
        tokens(screen, token_ids)
        token_counts.extend(token_ids)
        if len(token_counts) == 9:
            limits[0].reschedule(asyncio.get_running_loop().time())

    monkeypatch.setattr(asyncio, "timeout", limit)
    monkeypatch.setattr(Screen, "tokens", on_tokens)
    standin.stream_until = 3
    result = _ask(standin, "--judge", judge.url, "--max-seconds", str(seconds), "--prompt", "Recite")
    assert "out of time" in result.stderr
    assert result.stdout.startswith("so ")


@pytest.mark.slow
def test_a_notebook_keeps_its_variables_over_a_chat(
    standin: StandIn, judge: JudgeHandle, tmp_path: Path
) -> None:
    ask = ["--judge", judge.url, "--tool", "notebook", "--prompt"]
    result = _ask(standin, *ask, "Cells x = 6; x * 7")
    assert "format: rstar2" in result.stderr
    assert "with the tool jupyter_code" in result.stderr
    assert r"\boxed{42}" in result.stdout


def test_any_chat_endpoint_answers_with_calls_and_says_what_is_not_exact(
    judge: JudgeHandle, tmp_path: Path
) -> None:
    with serving(ChatEndpoint(solves, key="secret")) as endpoint:
        words = ["chat", "--url", endpoint.url, "--api", "chat", "--judge", judge.url, "--json"]
        answer = json.loads(_invoke(*words, "--api-key", "secret", "--prompt", "Compute 6 * 7.").stdout)
        assert answer["answer"] == r"The answer is \boxed{42}."
        assert answer["calls"][0]["output"] == "42"
        assert "four bytes" in answer["inexact"][0]
        failed = CliRunner().invoke(app, [*words, "--prompt", "Hello"])
        assert isinstance(failed.exception, Failure)
        assert "Incorrect API key" in str(failed.exception)


def test_the_counts_of_a_chat_endpoint_are_the_servers(judge: JudgeHandle) -> None:
    """Each of the two turns has 10 tokens by the server's count. The estimate from bytes would be much larger."""
    with serving(ChatEndpoint(solves)) as endpoint:
        endpoint.usage = {"prompt_tokens": 7, "completion_tokens": 10}
        words = ["chat", "--url", endpoint.url, "--api", "chat", "--judge", judge.url]
        words += ["--prompt", "Compute 6 * 7."]
        usage = json.loads(_invoke(*words, "--json").stdout)["usage"]
        endpoint.usage = {}
        estimated = json.loads(_invoke(*words, "--json").stdout)["usage"]
    assert (usage["prompt_tokens"], usage["tokens"]) == (7, 20)
    assert estimated["tokens"] > 40
    assert 0 < usage["tool_tokens"] == estimated["tool_tokens"]
    seconds = usage["seconds"] - usage["tool_seconds"]
    assert usage["tokens_per_s"] == pytest.approx(20 / seconds, rel=0.01)


def test_a_chat_endpoint_that_takes_no_tools_gets_a_hint_with_options_of_chat(judge: JudgeHandle) -> None:
    with serving(ChatEndpoint(solves)) as endpoint:
        endpoint.refuses_tools = "scripted does not support tools"
        words = ["chat", "--url", endpoint.url, "--api", "chat", "--judge", judge.url, "--prompt", "Hello"]
        failed = CliRunner().invoke(app, words)
    assert isinstance(failed.exception, Failure)
    assert "does not support tools" in failed.exception.message
    assert "--model-name" in failed.exception.hint
    assert "--no-tools" not in failed.exception.hint


def _invoke(*words: str) -> Result:
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 0, result.output
    return result
