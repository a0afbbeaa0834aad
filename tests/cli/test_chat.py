"""`rstar2 chat` against a real judge and a scripted model behind vLLM's wire format (see vllm_standin)."""

from __future__ import annotations

import codecs
import json
import logging
import os
import platform
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.vllm_standin import StandIn, serving
from typer.testing import CliRunner, Result

from rstar2.cli import app
from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import Failure, UserError
from rstar2.formats.format import ours, save_format
from rstar2.judge.service.start import JudgeHandle
from rstar2.processes import free_port
from rstar2.prompts import END_OF_TURN
from rstar2.tools.python_code_with_standard_io import NAME as TOOL_NAME


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and no weights."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def standin(tokenizer: Any, folder: Path) -> Iterator[StandIn]:
    """Asks Python for a product, then reads the answer off the tool's output; greets when greeted."""

    def model(prompt: list[int]) -> list[int]:
        text = tokenizer.decode(prompt)
        last = text.rpartition("<|im_start|>user\n")[2]
        if output := re.search(r"<tool_response>\n(.*)\n</tool_response>", last, re.DOTALL):
            said = f"so it is</reason> <answer>\\boxed{{{output[1]}}}</answer>"
        elif asked := re.search(r"Compute (.*)\.", last):
            call = {"name": TOOL_NAME, "arguments": {"code": f"print({asked[1]})", "input": ""}}
            said = f"I ask √ Python <tool_call>{json.dumps(call)}</tool_call>"
        elif "garbage" in last:
            said = "a <tool_response>b</answer><tool_call>c<tool_call>d</reason> e"
        else:
            said = f"this is question {text.count('<|im_start|>user')}"
        return list(tokenizer.encode(said + END_OF_TURN))

    standin = StandIn(model)
    standin.root = str(folder)
    with serving(standin):
        yield standin


def _ask(standin: StandIn, *words: str, stdin: str = "") -> Result:
    """One question in this process; standard input is a pipe."""
    asked = CliRunner().invoke(app, ["chat", "--url", standin.url, *words], input=stdin)
    assert asked.exit_code == 0, asked.output
    return asked


@pytest.mark.slow
def test_one_question_shows_the_call_its_result_and_the_answer(standin: StandIn, folder: Path) -> None:
    asked = _ask(standin, "--question", "Compute 37 * 91.")
    shown = asked.stdout
    places = [shown.index(part) for part in ("I ask √ Python", "print(37 * 91)", "ok, ", "3367", "so it is")]
    assert places == sorted(places)
    assert r"\boxed{3367}" in shown
    assert not re.search("</?(?:reason|answer|tool_call)>", shown)
    # Plain text, as standard output is no terminal.
    assert f"{TOOL_NAME}:\n    print(37 * 91)\n" in shown
    assert not set("╭│╰─") & set(shown)
    assert f"model: scripted ({folder}) at {standin.url}" in asked.stderr


def test_tags_that_the_model_nests_are_not_shown(standin: StandIn, judge: JudgeHandle) -> None:
    shown = _ask(standin, "--judge", judge.url, "--question", "Write garbage").stdout
    assert "not a call:\n    cd e\n" in shown
    assert not re.search("</?(?:reason|answer|tool_call|tool_response)>", shown)


def test_a_question_from_a_pipe_is_the_same(standin: StandIn, judge: JudgeHandle) -> None:
    assert r"\boxed{42}" in _ask(standin, "--judge", judge.url, stdin="Compute 6 * 7.\n").stdout


def test_a_failed_call_is_shown_as_failed(standin: StandIn, judge: JudgeHandle) -> None:
    shown = _ask(standin, "--judge", judge.url, "--question", "Compute 1 / 0.").stdout
    assert "error, " in shown
    assert "ZeroDivisionError" in shown


def test_a_cut_answer_says_so(standin: StandIn, judge: JudgeHandle) -> None:
    asked = _ask(standin, "--judge", judge.url, "--max-tokens", "3", "--question", "Hello")
    assert "out of tokens" in asked.stderr


def test_no_warning_of_a_library_appears_in_a_chat(
    standin: StandIn, judge: JudgeHandle, recwarn: pytest.WarningsRecorder
) -> None:
    """The model of the stand-in answers in this process, and warns as a library does."""
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
        assert "this is question 1" in _ask(standin, "--judge", judge.url, "--question", "Hello").stdout
    finally:
        logging.getLogger("transformers").removeHandler(listener)
        theirs.set_verbosity(verbosity)
    assert [str(each.message) for each in recwarn if "deprecated" in str(each.message)] == []
    assert [record.getMessage() for record in records] == []


UP, DOWN = b"\x1b[A", b"\x1b[B"


def _rows(written: str) -> list[str]:
    """What a terminal shows after this was written, as far as readline's movements of the cursor go."""
    rows, at, column = [""], 0, 0
    for steps, move, char in re.findall(r"\x1b\[\??(\d*)([A-Za-z])|([\s\S])", written):
        count = int(steps or 1)
        if move == "A":
            at -= count
        elif move == "C":
            column += count
        elif move == "K":
            rows[at] = rows[at][:column]
        elif char == "\r":
            column = 0
        elif char == "\n":
            at += 1
        elif char == "\b":
            column -= 1
        elif char.isprintable() and char:
            rows[at] = rows[at][:column].ljust(column) + char + rows[at][column + 1 :]
            column += 1
        rows += [""] * (at + 1 - len(rows))
    return rows


class Terminal:
    """A person at a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
        self.seen = ""
        self.passed = ""
        """What was read up to the words that were last waited for."""

    def wait_for(self, words: str, timeout_s: float = 120.0) -> None:
        """Read until `words` appear in what was not yet waited for."""
        deadline = time.monotonic() + timeout_s
        while words not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"no {words!r} in {self.seen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                self.seen += self._decoder.decode(os.read(self._terminal, 65536))
                self.seen = re.sub(r"\x1b\[\d*m", "", self.seen)
        self.passed, _, self.seen = self.seen.partition(words)

    def type(self, line: str) -> None:
        self.wait_for("›")
        os.write(self._terminal, line.encode() + b"\n")

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def interrupts_the_prompt(self) -> None:
        """Press Ctrl-C until readline gives the terminal back; it misses one while it sets itself up."""
        self._at_the_prompt()
        for _ in range(30):
            self.process.send_signal(signal.SIGINT)
            if self._comes_to(self._line_mode, 2):
                return
        raise AssertionError("Ctrl-C was never noticed")

    def half_types(self, words: str) -> None:
        """Type without the end of the line, and see that readline has it; before, the terminal would echo it."""
        self._at_the_prompt()
        os.write(self._terminal, words.encode())
        self.wait_for(words)
        # A signal between the echo of a key and the wait for the next one is only noticed with that next one.
        assert self._comes_to(self._waits_for_a_key, 60)

    def _waits_for_a_key(self) -> bool:
        """Whether the process is in a system call of select's or poll's family (numbers of x86-64 and of arm64)."""
        number = Path(f"/proc/{self.process.pid}/syscall").read_text().split()[0]
        return number in (("23", "270", "7", "271") if platform.machine() == "x86_64" else ("72", "73"))

    def _at_the_prompt(self) -> None:
        assert self._comes_to(lambda: not self._line_mode(), 60)

    def _line_mode(self) -> bool:
        """Whether the terminal collects whole lines, which readline turns off while it waits for keys."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ICANON)

    def _comes_to(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()

    def ends_with(self, code: int) -> None:
        assert self.process.wait(timeout=600) == code

    def rest(self) -> str:
        """All that an ended chat wrote after the words that were last waited for."""
        with suppress(OSError):  # how a terminal ends that nothing writes to any more
            while piece := os.read(self._terminal, 65536):
                self.seen += self._decoder.decode(piece)
        return self.seen


@contextmanager
def _terminal(*words: str, kind: str = "dumb") -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", "chat", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": kind, "NO_COLOR": "1"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=10)
        os.close(ours)


@pytest.mark.slow
def test_a_conversation_continues_and_starts_again(standin: StandIn, judge: JudgeHandle) -> None:
    with _terminal("--url", standin.url, "--judge", judge.url) as person:
        person.type("Hello")
        person.wait_for("this is question 1")
        person.type("And again")
        person.wait_for("this is question 2")
        person.type("Compute 2 * 3.")
        person.wait_for(r"\boxed{6}")
        person.type("/reset")
        person.type("Hello")
        person.wait_for("this is question 1")
        person.type("/dance")
        person.wait_for("there are /reset and /quit")
        person.type("/quit")
        person.ends_with(0)


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_the_next_one_leaves(standin: StandIn, judge: JudgeHandle) -> None:
    with _terminal("--url", standin.url, "--judge", judge.url) as person:
        person.type("Hello")
        person.wait_for("question 1")
        standin.delay_s = 0.5
        person.type("a slow one")
        person.wait_for("t")
        person.process.send_signal(signal.SIGINT)
        person.wait_for("that question is forgotten")
        standin.delay_s = 0.0
        person.type("Still there?")
        person.wait_for("this is question 2")
        person.wait_for("›")
        person.interrupts_the_prompt()
        person.ends_with(130)


@pytest.mark.slow
def test_a_chat_that_is_asked_to_end_in_an_answer_ends_without_a_traceback(
    standin: StandIn, judge: JudgeHandle
) -> None:
    with _terminal("--url", standin.url, "--judge", judge.url) as person:
        standin.delay_s = 0.5
        person.type("a slow one")
        person.wait_for("th")
        person.process.send_signal(signal.SIGTERM)
        person.ends_with(128 + signal.SIGTERM)
        assert "Traceback" not in person.rest()


@pytest.mark.slow
def test_ctrl_c_clears_a_half_typed_line_and_exit_leaves(standin: StandIn, judge: JudgeHandle) -> None:
    with _terminal("--url", standin.url, "--judge", judge.url) as person:
        person.wait_for("›")
        person.half_types("half a question")
        person.process.send_signal(signal.SIGINT)
        person.type("Hello")
        person.wait_for("this is question 1")
        person.type("exit")
        person.ends_with(0)


@pytest.mark.slow
def test_a_paste_of_several_lines_is_one_question_and_the_prompt_survives_the_history(
    standin: StandIn, judge: JudgeHandle
) -> None:
    with _terminal("--url", standin.url, "--judge", judge.url, kind="xterm") as person:
        # A terminal marks a paste where the program asks it to.
        person.wait_for("\x1b[?2004h")
        person.wait_for("› ")
        person.press(b"\x1b[200~Hello\nand again\x1b[201~\r")
        person.wait_for("this is question 1")
        person.wait_for("› ")
        person.press(UP + DOWN + b"x")
        person.wait_for("x")
        assert "again" in person.passed
        assert _rows(f"› {person.passed}x")[0] == "› x"
        person.press(b"\r")
        person.wait_for("this is question 2")
        person.type("exit")
        person.ends_with(0)


@pytest.mark.slow
def test_a_model_of_one_question_says_so_and_suggests_some(
    standin: StandIn, judge: JudgeHandle, tokenizer: Any, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    suggesting = {"one_question": True, "examples": ("Compute 6 * 7.",)}
    save_format(ours().model_copy(update=suggesting), tmp_path)
    with _terminal("--url", standin.url, "--model", str(tmp_path), "--judge", judge.url) as person:
        person.wait_for("takes one question at a time")
        person.wait_for("try: Compute 6 * 7.")
        for _ in range(2):
            person.type("Hello")
            person.wait_for("this is question 1")
        person.type("/quit")
        person.ends_with(0)


def _refusal(*words: str, stdin: str = "x") -> UserError:
    asked = CliRunner().invoke(app, ["chat", *words], input=stdin)
    assert asked.stdout == ""
    assert isinstance(asked.exception, UserError), asked.output
    return asked.exception


def _refused(*words: str, stdin: str = "x") -> str:
    return _refusal(*words, stdin=stdin).message


def test_no_model_is_ever_picked_silently() -> None:
    assert "no model named" in _refused("--question", "x")
    assert "--run names a model by itself" in _refused("--run", "runs/x", "--model", "m", "--question", "x")
    assert "no run at owner/name" in _refused("--run", "owner/name", "--question", "x")


def test_a_run_says_which_model_it_made(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model.json").write_text('{"path": "stage3/model"}')
    assert "stage3/model, which does not exist" in _refused("--model", str(tmp_path))
    (tmp_path / "model.json").write_text("[]")
    assert "model.json does not say" in _refused("--model", str(tmp_path))
    # The folder it names is used: it holds a tokenizer, and no weights.
    (tmp_path / "model.json").write_text(json.dumps({"path": str(folder)}))
    assert f"cannot load a model from {folder}" in _refused("--model", str(tmp_path), stdin="x")


def test_the_model_a_run_made_is_loaded_and_answers(tmp_path: Path, judge: JudgeHandle) -> None:
    fmt = builtin.FORMAT
    make_tiny_model(tmp_path / "stage3", TinyModel(layers=1), [fmt.messages("What is 2 + 2?")], fmt, seed=0)
    (tmp_path / "model.json").write_text('{"path": "stage3"}')
    more = ["--judge", judge.url, "--max-tokens", "8", "--seed", "1", "--question", "What is 2 + 2?"]
    asked = CliRunner().invoke(app, ["chat", "--run", str(tmp_path), *more])
    assert asked.exit_code == 0, asked.output
    assert f"model: {tmp_path}/stage3" in asked.stderr
    assert asked.stdout.strip()


def test_a_server_whose_tokenizer_is_not_here_names_the_option_for_it(standin: StandIn, folder: Path) -> None:
    standin.root = "/on/another/machine"
    error = _refusal("--url", standin.url)
    assert "/on/another/machine, and no tokenizer can be loaded from there" in error.message
    assert "--model" in error.hint
    assert "this is question 1" in _ask(standin, "--model", str(folder), "--question", "Hello").stdout


def test_bad_input_is_one_message(standin: StandIn, tmp_path: Path) -> None:
    assert "no model folder at" in _refused("--model", str(tmp_path / "absent"))
    assert "cannot load a tokenizer from" in _refused("--model", str(tmp_path))
    assert "there is no question" in _refused("--url", standin.url, stdin="  \n")
    assert "not a server's URL" in _refused("--url", "localhost", stdin="x")


def test_a_server_that_is_not_there_is_a_failure_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.engines.retry.FIRST_ANSWER_S", 0.2)
    url = f"http://127.0.0.1:{free_port()}"
    ran = CliRunner().invoke(app, ["chat", "--url", url, "--question", "x"])
    assert isinstance(ran.exception, Failure), ran.output
    assert ran.exception.message == f"nothing answers at {url}: connection refused"
