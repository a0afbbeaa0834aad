"""`rstar2 chat` as a person uses it: keys pressed at a pseudo-terminal, against a scripted model and a real judge."""

from __future__ import annotations

import json
import multiprocessing
import os
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from support.process_table import children, lower_priority
from support.servers.vllm_standin import StandIn, recite, serving
from support.terminal import CTRL_C, CTRL_D, PASTE, TAB, UP, terminal
from support.tools import patient
from support.waiting import TIMEOUT_S, wait_until

from rstar2.chat.repl import COMMANDS
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import default_format, save_format
from rstar2.loop.tools.python_code_with_standard_io import NAME as TOOL_NAME
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.template import END_OF_TURN
from rstar2.processes import answers
from rstar2.report import write_report

pytestmark = pytest.mark.slow

FORMAT = patient(default_format())
SOME_PIECES = 100
"""Number of tokens of LONG that the server sends before it pauses: more than the first twenty words."""
LONG = " ".join(f"word{number}" for number in range(1000))
PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)
WIDEST_COMMAND = max(len(f"{name} {after}") for name, (after, _, _) in COMMANDS.items())
MARKDOWN = """# Two roots

The **larger** one is `3`, not 2*3*4.

- its line is long enough that a terminal of forty columns breaks it
- 2

| n | root |
|---|-----:|
| 1 | 2 |

```python
print(3)
```
Done."""
WAITS = f"""import os, time
while os.getpriority(os.PRIO_PROCESS, 0) > {PRIORITY}:
    time.sleep(0.01)
print('waited')"""
"""A program that waits until its priority is the test process's priority, prints `waited`, and ends."""


@pytest.fixture(scope="module")
def served(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """One server for all chats. Its model runs the Python code that a question contains. Its answer to most other
    questions is the number of questions so far."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    save_format(FORMAT, folder)

    def model(prompt: list[int]) -> list[int]:
        before, _, beginning = tokenizer.decode(prompt).rpartition("<|im_start|>assistant\n<reason>")
        last = before.rpartition("<|im_start|>user\n")[2]
        if output := re.search(r"<tool_response>\n(.*)\n</tool_response>", last, re.DOTALL):
            completion = f"so it is</reason> <answer>The answer is \\boxed{{{output[1][:200]}}}.</answer>"
        elif expression := re.search(r"Run (.*?)(?:\n|<\|im_end)", last):
            code = WAITS if expression[1] == "what waits" else expression[1]
            call = {"name": TOOL_NAME, "arguments": {"code": code, "input": ""}}
            completion = f"I ask √ Python.</reason>\n<tool_call>{json.dumps(call)}</tool_call>"
        elif "Recite" in last:
            completion = f"on and on</reason>{LONG}"
        elif "Write Markdown" in last:
            completion = f"I *write* it</reason> <answer>{MARKDOWN}</answer>"
        elif "half" in last:
            completion = (
                "I halve it</reason> <answer>It is \\(\\frac{1}{2}\\), so \\boxed{\\frac{1}{2}}</answer>"
            )
        else:
            count, lines = before.count("<|im_start|>user"), last.count("line ")
            completion = f"I count</reason>this is question {count}, {lines} lines"
        if beginning:
            standin.cut_after = None
        assert completion.startswith(beginning)
        return list(tokenizer.encode(completion[len(beginning) :] + END_OF_TURN))

    standin = StandIn(model, max_model_len=100_000)
    standin.root = str(folder)
    with serving(standin):
        yield standin


@pytest.fixture
def standin(served: StandIn) -> Iterator[StandIn]:
    yield served
    served.stream_until, served.cut_after = None, None


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def words(standin: StandIn, judge: JudgeHandle) -> tuple[str, ...]:
    return ("chat", "--url", standin.url, "--judge", judge.url)


def test_ten_turns_with_calls_and_the_commands(words: tuple[str, ...], tmp_path: Path) -> None:
    with terminal(*words) as person:
        person.types("Hello")
        person.shows("this is question 1")
        person.types("Run print(6 * 7)")
        person.shows("The answer is 42.")
        assert re.search(
            r"╭─ python ─+╮\n│ print\(6 \* 7\) +│\n╰─+╯\n╭─ ok, [\d.]+ s ─+╮\n│ 42 +│\n╰─+╯", person.text
        )
        for turn in range(3, 10):
            person.types(f"Once more, {turn}")
            # A reply of a tool is a user's turn too.
            person.shows(f"this is question {turn + 1}")
        person.types("Run 1 / 0")
        person.shows("ZeroDivisionError")
        person.types("/stats")
        person.shows("10 answers: ")
        person.shows("2 calls (1 failed)")
        person.types("/retry")
        person.shows("ZeroDivisionError", 4)
        person.types("/thoughts fold")
        person.shows("thoughts: fold")
        person.types("And now")
        person.shows("thought … 2 words")
        person.types(f"/save {tmp_path}/kept")
        person.shows("saved to")
        person.types("/reset")
        person.types(f"/load {tmp_path}/kept")
        person.shows("› And now", 2)
        person.types("Still there")
        person.shows("this is question 14")
        person.types("/dance")
        person.shows("no command /dance")
        person.types("/save")
        person.shows("/save needs a folder to save in, such as /save my-chat")
        person.types("/load")
        person.shows("/load needs the folder of a saved chat, such as /load my-chat")
        person.types("/quit")
        person.ends_with(0)
        assert not re.search("</?(?:reason|answer|tool_call)>|Traceback \\(most.*rstar2/", person.text)
    traces = list(read_traces(tmp_path / "kept" / "traces.jsonl"))
    assert [trace.problem for trace in traces][-3:] == ["Run 1 / 0", "And now", "Still there"]
    assert traces[-3].sample == 1
    assert write_report(tmp_path / "kept").exists()


def test_a_chat_that_is_loaded_is_continued_in_its_own_folder(words: tuple[str, ...], tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with terminal(*words, columns=200) as person:
        person.types("Hello")
        person.shows("this is question 1")
        person.types(f"/save {one}")
        person.shows("saved to")
        person.types("/quit")
        person.ends_with(0)
    with terminal(*words, columns=200) as person:
        person.types("Another")
        person.shows("this is question 1")
        person.types(f"/save {other}")
        person.shows("saved to")
        person.types(f"/load {one}")
        person.shows(f"answer loaded from {one}")
        person.types("Once more")
        person.shows("this is question 2")
        person.types(f"/load {other}")
        person.shows(f"answer loaded from {other}")
        person.types("And here")
        person.shows("this is question 2", 2)
        person.types("/quit")
        person.ends_with(0)
    problems = [[trace.problem for trace in read_traces(each / "traces.jsonl")] for each in (one, other)]
    assert problems == [["Hello", "Once more"], ["Another", "And here"]]


def test_a_retry_that_fails_leaves_the_answer_and_the_next_is_another_of_the_same_question(
    words: tuple[str, ...], standin: StandIn, tmp_path: Path
) -> None:
    with terminal(*words, "--transcript", str(tmp_path / "kept")) as person:
        person.types("Hello")
        person.shows("this is question 1")
        standin.refuses, accepts = lambda _: True, standin.refuses
        try:
            person.types("/retry")
            person.shows("refused the request")
        finally:
            standin.refuses = accepts
        person.types("/retry")
        person.shows("this is question 1", 2)
        person.types("/quit")
        person.ends_with(0)
    first, second = read_traces(tmp_path / "kept" / "traces.jsonl")
    assert (first.problem_id, second.problem_id, second.sample) == (first.problem_id, first.problem_id, 1)


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(words: tuple[str, ...], standin: StandIn) -> None:
    standin.stream_until = SOME_PIECES
    with terminal(*words) as person:
        person.types("Recite")
        person.shows("word20 ")
        person.press(b"typed meanwhile")
        person.press(CTRL_C)
        person.shows("stopped; ")
        assert "typed meanwhile" not in person.text
        standin.stream_until = None
        person.comes_to_the_prompt()
        person.press(b"half a question")
        person.comes_to(lambda: "half a question" in person.line, "what was typed")
        person.press(CTRL_C)
        person.comes_to(lambda: person.line == "›", "an empty line")
        person.types("Still there?")
        person.shows("this is question 2")
        assert "word20" in standin_text(standin)
        person.comes_to_the_prompt()
        person.press(CTRL_C)
        person.shows("press Ctrl-C again to exit")
        person.comes_to_the_prompt()
        person.press(CTRL_C)
        person.ends_with(130)


def standin_text(standin: StandIn) -> str:
    """Returns the last prompt that the server received."""
    from rstar2.loop.turns.choose import load_tokenizer

    return str(load_tokenizer(standin.root).decode(standin.requests[-1]["prompt"]))


def test_a_paste_of_200_lines_is_one_question_and_the_history_brings_it_back(
    words: tuple[str, ...], state: Path
) -> None:
    paste = "\n".join(f"line {number}" for number in range(200))
    with terminal(*words, lines=24) as person:
        person.comes_to_the_prompt()
        person.press(PASTE % paste.encode())
        person.comes_to(lambda: "line 199" in person.line, "the paste")
        person.press(b"\r")
        person.shows("this is question 1, 200 lines")
        person.comes_to_the_prompt()
        person.press(CTRL_D)
        person.ends_with(0)
    assert stat.S_IMODE((state / "chat_history").stat().st_mode) == 0o600
    with terminal(*words) as person:
        person.comes_to_the_prompt()
        person.press(UP)
        person.comes_to(lambda: "line 199" in person.text, "the question of the other chat")
        person.press(CTRL_C)
        person.comes_to(lambda: person.line == "›", "an empty line")
        person.press(b"/th")
        person.comes_to(lambda: "/thoughts" in person.text, "what it may become")
        person.press(TAB)
        person.comes_to(lambda: person.line.startswith("› /thoughts"), "the command")
        person.press(CTRL_C)
        person.comes_to(lambda: person.line == "›", "an empty line")
        person.press(b"two\x1b\rlines\r")
        person.shows("this is question 1, ")
        person.comes_to_the_prompt()
        person.press(CTRL_D)
        person.ends_with(0)


@pytest.mark.parametrize("columns", [40, 200])
def test_no_line_is_wider_than_the_terminal_and_words_stay_whole(
    words: tuple[str, ...], columns: int
) -> None:
    with terminal(*words, columns=columns) as person:
        person.types("Recite")
        person.shows("word999")
        person.types("Run print('long ' * 50)")
        person.shows("The answer is")
        person.types("/quit")
        person.ends_with(0)
        text = person.text.partition("word0 ")[2].partition("word999")[0]
        assert all(re.fullmatch(r"(word\d+ ?)+", line) for line in text.splitlines() if line)
        assert all(len(line) <= columns for line in person.text.splitlines())


def test_without_colours_nothing_is_coloured_and_a_long_result_is_folded(words: tuple[str, ...]) -> None:
    with terminal(*words, env={"NO_COLOR": "1"}) as person:
        person.types("Run print(*range(10_000), sep='\\n')")
        person.shows("The answer is")
        person.types("What is half?")
        person.shows("It is 1/2, so 1/2")
        person.comes_to_the_prompt()
        person.press(b"caf\xe9\r")  # not UTF-8
        person.shows("this is question 4")
        person.types("exit")
        person.ends_with(0)
        assert "lines left out …" in person.text
        assert person.text.count("\n") < 150
        assert not re.search(r"\x1b\[[\d;]*3[0-7]m", person.written)


def test_output_into_a_file_is_plain_and_the_prompt_stays_on_the_terminal(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with terminal(*words, stdout=tmp_path / "said.txt") as person:
        person.types("What is half?")
        person.shows("tokens/s")
        person.types("/quit")
        person.ends_with(0)
    file_text = (tmp_path / "said.txt").read_text()
    assert file_text == "I halve it\nIt is \\(\\frac{1}{2}\\), so \\boxed{\\frac{1}{2}}\n"


def test_a_stream_that_breaks_off_is_said_and_the_answer_continued(
    words: tuple[str, ...], standin: StandIn
) -> None:
    standin.cut_after = 5
    with terminal(*words) as person:
        person.types("Run print('to the end')")
        person.shows("the answer continues when it is back")
        person.shows("The answer is to the end.")
        person.types("/quit")
        person.ends_with(0)


@pytest.mark.long
def test_a_server_that_is_killed_in_a_stream_is_said_and_continued_by_the_one_that_comes_after(
    standin: StandIn, judge: JudgeHandle
) -> None:
    """The first server stops in the middle of its answer.

    The second server accepts the connections that wait at the same port.
    """
    context = multiprocessing.get_context("spawn")

    @contextmanager
    def server(*args: object) -> Iterator[BaseProcess]:
        process = context.Process(
            target=recite, args=(standin.root, listener, f"on and on</reason>{LONG}", *args)
        )
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join(TIMEOUT_S)

    begin = context.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        server(SOME_PIECES) as first,
        server(None, begin),
    ):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        wait_until(lambda: answers(url))
        with terminal("chat", "--url", url, "--judge", judge.url) as person:
            person.types("Recite")
            person.shows("word20 ")
            first.kill()
            person.shows("the answer continues when it is back")
            begin.set()
            person.shows("word999")
            person.types("/quit")
            person.ends_with(0)
    # The remark about the connection may interrupt a word.
    screen_text = re.sub(r"the connection to .*?\swhen it\sis\sback", "", person.text, flags=re.DOTALL)
    assert "".join(LONG.split()) in "".join(screen_text.split())


def test_a_judge_that_is_killed_in_a_call_is_said_and_started_again(standin: StandIn) -> None:
    """The program waits as long as its judge has a lower priority. The new judge after the kill has the normal
    priority."""
    with terminal("chat", "--url", standin.url) as person:
        person.comes_to_the_prompt()
        (supervisor,) = children(person.pid)
        lower_priority(supervisor, PRIORITY + 1)
        person.types("Run what waits")
        person.shows("print('waited')")
        os.kill(supervisor, signal.SIGKILL)
        person.shows("the judge process ended; the call is being retried")
        person.shows("The answer is waited.")
        person.types("/quit")
        person.ends_with(0)


def test_a_model_of_one_question_says_so_and_suggests_some(
    words: tuple[str, ...], standin: StandIn, tmp_path: Path
) -> None:
    shutil.copytree(standin.root, tmp_path / "single")
    suggesting = {"one_question": True, "examples": ("Compute 6 * 7.",)}
    save_format(FORMAT.model_copy(update=suggesting), tmp_path / "single")
    with terminal(*words, "--model", str(tmp_path / "single")) as person:
        person.shows("takes single questions")
        person.shows("try: Compute 6 * 7.")
        for times in (1, 2):
            person.types("Hello")
            person.shows("this is question 1", times)
        person.types("/quit")
        person.ends_with(0)


def test_a_chat_that_is_asked_to_end_does_so_without_a_traceback(
    words: tuple[str, ...], standin: StandIn
) -> None:
    standin.stream_until = SOME_PIECES
    with terminal(*words) as person:
        person.types("Recite")
        person.shows("word3 ")
        os.kill(person.pid, signal.SIGTERM)
        person.ends_with(128 + signal.SIGTERM)
        assert "Traceback" not in person.written
    for number in (signal.SIGTERM, signal.SIGHUP):
        with terminal(*words) as person:
            person.comes_to_the_prompt()
            os.kill(person.pid, number)
            person.ends_with(128 + number)
            assert "Traceback" not in person.written


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_markdown_is_rendered_in_the_answer_as_it_is_written(words: tuple[str, ...], columns: int) -> None:
    with terminal(*words, columns=columns) as person:
        person.types("Write Markdown")
        person.shows("Done.")
        person.types("/quit")
        person.ends_with(0)
    lines = person.text.splitlines()
    assert all(len(line) <= columns for line in lines)
    # Thought stays as it was written.
    assert "I *write* it" in lines
    assert "Two roots" in lines
    assert "The larger one is 3, not 2*3*4." in lines
    start = next(number for number, line in enumerate(lines) if line.startswith("• its line"))
    broken = lines[start : lines.index("• 2")]
    assert (len(broken) > 1) == (columns == 40)
    assert all(line.startswith("  ") for line in broken[1:])
    assert any(re.fullmatch(r" *1 +2 *", line) for line in lines)
    frame = lines.index(next(line for line in lines if line.startswith("╭─ python")))
    assert [len(line) for line in lines[frame : frame + 3]] == [columns] * 3
    assert re.fullmatch(r"│ print\(3\) +│", lines[frame + 1])
    # Bold, and code in a colour.
    assert "\x1b[1mlarger" in person.written
    assert "\x1b[36m3" in person.written


def test_markdown_in_a_file_is_as_the_model_wrote_it(words: tuple[str, ...], tmp_path: Path) -> None:
    with terminal(*words, stdout=tmp_path / "said.txt") as person:
        person.types("Write Markdown")
        person.shows("tokens/s")
        person.types("/quit")
        person.ends_with(0)
    assert (tmp_path / "said.txt").read_text() == f"I *write* it\n{MARKDOWN}\n"


@pytest.mark.parametrize("columns", [40, 80])
def test_help_fits_the_terminal(words: tuple[str, ...], columns: int) -> None:
    with terminal(*words, columns=columns, lines=60) as person:
        person.types("/help")
        person.shows("twice, exit")
        help_text = person.text.partition("/help\n")[2]
        person.types("/quit")
        person.ends_with(0)
    lines = help_text.splitlines()
    assert max(map(len, lines)) <= columns
    starts = {line.split()[0] for line in lines if line.startswith("/")}
    assert starts >= set(COMMANDS) - {"/help"}
    for _, description, _ in COMMANDS.values():
        # No word is broken, and the lines of one description have the same indentation.
        assert description.split()[-1] in help_text
    continued = [line for line in lines if line.startswith(" ")]
    assert {len(line) - len(line.lstrip()) for line in continued} <= {
        4 if columns == 40 else WIDEST_COMMAND + 2
    }


def test_a_question_that_is_typed_before_the_prompt_stands_there_once(words: tuple[str, ...]) -> None:
    with terminal(*words) as person:
        person.comes_to(lambda: "model:" in person.text, "model:")
        person.press(b"Hello there\r")
        person.shows("this is question 1")
        person.types("/quit")
        person.ends_with(0)
        assert person.text.count("Hello there") == 1


def test_no_key_is_shown_by_the_terminal_itself_from_the_first_line_on(words: tuple[str, ...]) -> None:
    with terminal(*words) as person:
        person.comes_to(lambda: "model:" in person.text, "model:")
        assert not person._echoes()
        person.comes_to_the_prompt()
        person.press(CTRL_D)
        person.ends_with(0)
        # The shell's terminal settings are restored.
        assert person._echoes()


IMPORTS = """
import atexit, sys, termios
def shown(when):
    print(when, "shown" if termios.tcgetattr(0)[3] & termios.ECHO else "unseen")
class Watcher:
    def find_spec(self, name, *_):
        if name in ("rstar2.chat.judge", "rstar2.chat.model", "prompt_toolkit"):
            shown(name)
sys.meta_path.insert(0, Watcher())
atexit.register(shown, "ended")
from rstar2.cli import main
sys.argv = ["rstar2", "chat", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("words", "is_terminal"), [([], "unseen"), (["--prompt", "How much?"], "shown")])
def test_keys_are_unseen_before_anything_large_is_imported(
    words: list[str], is_terminal: str, tmp_path: Path
) -> None:
    master, terminal_end = pty.openpty()
    command = [sys.executable, "-c", IMPORTS, "--model", str(tmp_path / "no model"), *words]
    result = subprocess.run(command, stdin=terminal_end, capture_output=True, text=True, timeout=TIMEOUT_S)
    os.close(terminal_end)
    os.close(master)
    assert result.returncode == 2, result.stderr
    lines = result.stdout.splitlines()
    assert sorted(lines[:2]) == [f"rstar2.chat.judge {is_terminal}", f"rstar2.chat.model {is_terminal}"]
    assert lines[-1] == "ended shown"
