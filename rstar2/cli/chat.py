"""`rstar2 chat`: chat with a model, and watch it use Python."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli import common
from rstar2.cli.common import err, examples, out

if TYPE_CHECKING:
    import asyncio

    from rstar2.chat.conversation import Conversation
    from rstar2.judge.client import JudgeClient

EPILOG = examples(
    ("the model that a run trained", "rstar2 chat --run runs/demo"),
    ("the model of one of its stages", "rstar2 chat --model runs/demo/stage1"),
    ("one of the model hub", "rstar2 chat --model Qwen/Qwen3-0.6B"),
    ("a model that vLLM serves", "rstar2 chat --url http://127.0.0.1:8000"),
    ("one question, one answer", 'rstar2 chat --model runs/demo --question "Compute 37 * 91."'),
    ("the question from a pipe", "cat problem.txt | rstar2 chat --model runs/demo"),
)


def command(
    run: Annotated[Path | None, typer.Option(help="The folder of a run: its model answers.")] = None,
    model: common.Model = None,
    url: common.Url = None,
    model_name: common.ModelName = None,
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    judge: Annotated[
        str | None, typer.Option(help="URL of a judge; without it one is started for the chat.")
    ] = None,
    judge_token: common.JudgeToken = None,
    question: Annotated[str | None, typer.Option(help="Ask this, show the answer and end.")] = None,
    temperature: common.Temperature = 0.6,
    top_p: common.TopP = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of one answer, tool output included.")
    ] = 8192,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns of the model in one answer.")] = 10,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same output.")] = None,
) -> None:
    """Chat with a model that solves problems with Python.

    /reset starts a new conversation, /quit or exit leaves. Ctrl-C stops an answer, or clears a half-typed line; on
    an empty line it leaves.
    """
    import asyncio

    from rstar2.agent import Limits
    from rstar2.chat.conversation import Conversation
    from rstar2.chat.model import open_model
    from rstar2.engines.base import Sampling
    from rstar2.prompts import FormatChoice
    from rstar2.toolbox import Toolbox

    model = model if run is None else _model_of(run, model)
    with asyncio.Runner() as runner, ExitStack() as stack:
        engine, codec, checkpoint = runner.run(
            open_model(model, url, model_name, FormatChoice(format, force_format))
        )
        stack.callback(lambda: runner.run(engine.aclose()))
        _silence_libraries()
        question = _given(question)
        err.print(f"model: {checkpoint}", soft_wrap=True, markup=False)
        if format is not None:
            err.print(f"format: {codec.source}", soft_wrap=True, markup=False)
        conversation = Conversation(
            engine,
            codec,
            Toolbox(_judge(runner, stack, judge, judge_token), codec.format),
            Limits(max_turns=max_turns, max_tokens=max_tokens),
            Sampling(temperature=temperature, top_p=top_p, seed=seed),
        )
        if question is not None:
            _answer(runner, conversation, question)
        else:
            _converse(runner, conversation)


def _model_of(run: Path, model: str | None) -> str:
    """A run as the name of a model; no hub id is ever meant by it."""
    from rstar2.errors import UserError

    if model is not None:
        raise UserError("--run names a model by itself", "Give either --run or --model.")
    if not run.is_dir():
        raise UserError(f"no run at {run}", "`rstar2 runs list` shows the runs.")
    return str(run)


def _silence_libraries() -> None:
    """No warning of a library appears between questions and answers."""
    import warnings

    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()


def _given(question: str | None) -> str | None:
    """The question from the command line or a pipe; None where a person types at a terminal."""
    from rstar2.errors import UserError

    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read()
    if question is not None and not question.strip():
        raise UserError("there is no question", "Give it with --question or on standard input.")
    return question.strip() if question else None


def _judge(runner: asyncio.Runner, stack: ExitStack, url: str | None, token: str | None) -> JudgeClient:
    """The judge that was named, or one started here."""
    import tempfile

    from rstar2.chat.model import WAIT_S
    from rstar2.judge.client import JudgeClient
    from rstar2.judge.service.start import running_judge

    if url is None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-chat-")))
        judge = stack.enter_context(running_judge(folder, workers=1))
        url, token = judge.url, judge.token
        if judge.isolation == "none":
            err.print("[yellow]isolation none: the model's programs can read what you can read[/]")
    client = JudgeClient(url, token, wait_s=WAIT_S)
    stack.callback(lambda: runner.run(client.aclose()))
    return client


def _converse(runner: asyncio.Runner, conversation: Conversation) -> None:
    import readline  # besides, it gives input() a history and arrow keys

    from rstar2.errors import RStarError

    # A paste of several lines is one question; Python turns this off.
    if not out.is_dumb_terminal:
        readline.parse_and_bind("set enable-bracketed-paste on")
    # The prompt is readline's, which writes it again as it moves through the history; \1 and \2 enclose colours.
    prompt = "\1\x1b[1;36m\2›\1\x1b[0m\2 " if out.color_system and not out.no_color else "› "
    words = conversation.codec.format
    err.print("[dim]/reset starts a new conversation, /quit leaves; Ctrl-C stops an answer[/dim]")
    if words.one_question:
        err.print(
            "this model takes one question at a time: it remembers none, and each is asked as the first"
        )
    for example in words.examples:
        err.print(f"try: {example}", markup=False, soft_wrap=True)
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            out.print()
            if not readline.get_line_buffer():
                raise
            continue
        if text in ("/quit", "exit"):
            return
        if text == "/reset":
            conversation.reset()
            err.print("[dim]all questions and answers are forgotten[/dim]")
        elif text.startswith("/"):
            err.print("there are /reset and /quit")
        elif text:
            try:
                _answer(runner, conversation, text)
            except KeyboardInterrupt:
                err.print("[dim]stopped; that question is forgotten, Ctrl-C again leaves[/dim]")
            except RStarError as error:
                err.print(str(error), style="red", markup=False, soft_wrap=True)


def _answer(runner: asyncio.Runner, conversation: Conversation, text: str) -> None:
    from rstar2.chat.screen import Screen

    screen = Screen(conversation.codec, out, err)
    asked_to_end = False

    def end(number: int, frame: object) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        signal.raise_signal(signal.SIGINT)  # asyncio ends its tasks at this one, in order

    before = signal.signal(signal.SIGTERM, end)
    try:
        trace = runner.run(conversation.ask(text, screen.tokens, screen.result))
    except BaseException:
        screen.stop()
        if asked_to_end:
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    screen.end(trace)
