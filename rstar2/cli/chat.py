"""`rstar2 chat`: chat with a model, and watch it use Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rstar2.cli import common
from rstar2.cli.common import err, examples, out, progress

if TYPE_CHECKING:
    import asyncio

    from rstar2.chat.conversation import Conversation
    from rstar2.chat.judge import NamedJudge
    from rstar2.chat.model import ModelChoice, OpenModel
    from rstar2.chat.transcript import Transcript
    from rstar2.loop.agent import Limits
    from rstar2.loop.engine import Sampling

EPILOG = examples(
    ("the model that a run trained", "rstar2 chat --run runs/demo"),
    ("the model of one of its stages", "rstar2 chat --model runs/demo/stage1"),
    ("a model from the hub", "rstar2 chat --model Qwen/Qwen3-0.6B"),
    ("a model that vLLM serves", "rstar2 chat --url http://127.0.0.1:8000"),
    (
        "any OpenAI-compatible endpoint; the key is in RSTAR2_API_KEY",
        "rstar2 chat --url http://127.0.0.1:8000/v1 --api chat --model-name scripted",
    ),
    ("save the chat, and continue it next time", "rstar2 chat --run runs/demo --transcript chats/lamps"),
    (
        "one question, one answer",
        'rstar2 chat --model runs/demo --prompt "Find a * b, where a = 37 and b = 91."',
    ),
    (
        "the question from a pipe, the answer as JSON",
        "cat problem.txt | rstar2 chat --model runs/demo --json",
    ),
)


def command(
    run: Annotated[Path | None, typer.Option(help="A run's folder; chat with the model it trained.")] = None,
    model: common.Model = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="A server, as http://host:port: vLLM, or any OpenAI-compatible endpoint with --api chat."
        ),
    ] = None,
    model_name: common.ModelName = None,
    api: common.Api = "tokens",
    api_key: common.ApiKey = None,
    engine: Annotated[
        Literal["auto", "vllm", "transformers"],
        typer.Option(
            help="The engine for a model on this machine; auto: vLLM, if it is installed and the model is large "
            "enough to justify its start-up."
        ),
    ] = "auto",
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    tool: Annotated[
        str | None,
        typer.Option(
            metavar="program|notebook|MODULE:OBJECT",
            help="program: Python starts afresh in each call. notebook: Python keeps its variables. Or a tool of your "
            "own. By default, what the format says.",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            callback=common.checked_judge, help="URL of a judge; by default one is started for the chat."
        ),
    ] = None,
    judge_token: common.JudgeToken = None,
    prompt: Annotated[str | None, typer.Option(help="Ask this question, show the answer and exit.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --prompt or a pipe: print the answer as one JSON object.")
    ] = False,
    transcript: Annotated[
        Path | None, typer.Option(help="Save the chat in this folder; a chat already there is continued.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system text.")] = None,
    thoughts: Annotated[
        Literal["on", "off", "fold"], typer.Option(help="How the model's thought is shown.")
    ] = "on",
    temperature: common.Temperature = 0.6,
    top_p: common.TopP = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Token budget of one answer, tool output included.")
    ] = 8192,
    max_turns: Annotated[int, typer.Option(min=1, help="Most model turns in one answer.")] = 10,
    max_seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Time limit of one answer, in seconds.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Sampling seed; the same seed gives the same output.")
    ] = None,
) -> None:
    """Chat with a model that solves problems with Python.

    A judge is started unless --judge names one, and so is an engine for a model on this machine. /help lists the
    commands; Ctrl-C stops an answer, Ctrl-D exits. Exit code 0 with an answer, 1 on failure, 2 for bad input, 130
    after Ctrl-C.
    """
    from rstar2.chat.keys import keys_unseen

    # What is typed during the imports and while the model loads is shown by the prompt, not by the terminal too.
    with keys_unseen() if prompt is None else nullcontext():
        import asyncio

        from rstar2.chat.judge import refuse_wrong_token
        from rstar2.chat.model import ModelChoice
        from rstar2.chat.server import started_engine
        from rstar2.errors import UserError
        from rstar2.loop.agent import Limits
        from rstar2.loop.engine import Sampling
        from rstar2.loop.turns.choose import FormatChoice

        if top_p <= 0:
            raise UserError(
                "--top-p must be above 0, not 0",
                "Give 1 to turn it off, or --temperature 0 for greedy answers.",
            )
        choice = ModelChoice(
            run, model, url, model_name, api, api_key, FormatChoice(format, force_format), engine, tool
        )
        question = _single_question(prompt, as_json)
        say = _Notices()
        with asyncio.Runner() as runner, ExitStack() as stack:
            if judge is not None:
                # Before an engine is started, which takes minutes.
                runner.run(refuse_wrong_token(judge, judge_token))
            with progress() as show:
                choice = stack.enter_context(started_engine(choice, say, show))
            opened, judge_client = _open(runner, stack, choice, judge, judge_token, say)
            conversation = _conversation(
                opened,
                judge_client,
                say,
                Limits(max_turns=max_turns, max_tokens=max_tokens),
                Sampling(temperature=temperature, top_p=top_p, seed=seed),
            )
            stack.callback(lambda: runner.run(conversation.aclose()))
            conversation.seconds, conversation.system = max_seconds, system
            if not as_json:
                err.print(f"model: {opened.checkpoint}", soft_wrap=True, markup=False)
                if format is not None or tool is not None:
                    err.print(f"format: {opened.codec.source}", soft_wrap=True, markup=False)
            transcript_stack = stack.enter_context(ExitStack())
            saved = _transcript(runner, transcript_stack, transcript, conversation, opened.checkpoint, say)
            if question is not None:
                _answer(runner, conversation, opened, question, as_json, saved, thoughts, say)
                return

            from rstar2.chat.repl import Repl

            describe = (opened.checkpoint, judge_client.described)
            repl = Repl(runner, transcript_stack, conversation, (out, err), describe, thoughts, saved)
            say.show = repl.notice
            repl.run()


@dataclass
class _Notices:
    """Shows notices, such as that a server is away, by the screen that is in use."""

    show: Callable[[str], None] | None = None
    """None prints them to standard error."""

    def __call__(self, text: str) -> None:
        if self.show is not None:
            self.show(text)
        else:
            err.print(text, style="yellow", soft_wrap=not err.is_terminal, markup=False)


def _single_question(question: str | None, as_json: bool) -> str | None:
    """The question of the command line or a pipe; None if a person types at a terminal.

    Raises UserError if it is empty or not UTF-8, or if `as_json` needs one and there is none.
    """
    from rstar2.errors import UserError

    try:
        # Standard input may be closed.
        if question is None and not (sys.stdin and sys.stdin.isatty()):
            question = sys.stdin.read() if sys.stdin else ""
        (question or "").encode()
    except UnicodeError as error:
        raise UserError(f"the question is not UTF-8: {error}", "Save it as UTF-8.") from error
    if question is None and as_json:
        raise UserError(
            "--json prints one answer and needs a question", "Give it with --prompt or on standard input."
        )
    if question is not None and not question.strip():
        raise UserError("there is no question", "Give it with --prompt or on standard input.")
    return question.strip() if question else None


def _open(
    runner: asyncio.Runner,
    stack: ExitStack,
    choice: ModelChoice,
    judge: str | None,
    token: str | None,
    say: _Notices,
) -> tuple[OpenModel, NamedJudge]:
    """The model, and the judge: the one at the URL `judge`, or one that is started here."""
    from rstar2.chat.judge import open_judge
    from rstar2.chat.model import open_model

    opened = runner.run(open_model(choice, say))
    if choice.api == "tokens":
        _silence_libraries()
    opened_judge = stack.enter_context(open_judge(judge, token))
    stack.callback(lambda: runner.run(opened_judge.client.aclose()))
    if judge is not None:
        for notice in runner.run(opened_judge.check(opened.codec.format)):
            say(notice)
    if opened_judge.isolation == "none":
        say("isolation none: the model's programs can read what you can read")
    return opened, opened_judge


def _silence_libraries() -> None:
    """Turn off the warnings of libraries, which would appear between questions and answers."""
    import warnings

    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()


def _conversation(
    opened: OpenModel,
    judge: NamedJudge,
    say: _Notices,
    limits: Limits,
    sampling: Sampling,
) -> Conversation:
    from rstar2.chat.conversation import Conversation
    from rstar2.chat.recovery import RecoveringTools
    from rstar2.loop.toolbox import Toolbox

    tools = RecoveringTools(Toolbox(judge.client, opened.codec.format), judge, say)
    return Conversation(opened.engine, opened.codec, tools, limits, sampling)


def _transcript(
    runner: asyncio.Runner,
    stack: ExitStack,
    folder: Path | None,
    conversation: Conversation,
    model: str,
    say: _Notices,
) -> Transcript | None:
    """The transcript in a folder, None without a folder. A chat that is already there is continued."""
    from rstar2.chat.transcript import TRACES, open_transcript, read_transcript

    if folder is None:
        return None
    if (folder / TRACES).exists():
        remark = runner.run(conversation.resume(read_transcript(folder, conversation.codec)))
        if remark:
            say(remark)
    return stack.enter_context(open_transcript(folder, conversation.codec, model))


def _answer(
    runner: asyncio.Runner,
    conversation: Conversation,
    opened: OpenModel,
    question: str,
    as_json: bool,
    saved: Transcript | None,
    thoughts: Literal["on", "off", "fold"],
    say: _Notices,
) -> None:
    """Ask one question and show the answer.

    Raises KeyboardInterrupt if Ctrl-C stopped the answer, after the part that was written is shown.
    """
    from rstar2.chat.answer import answer, as_object
    from rstar2.chat.screen import Screen

    screen = None if as_json else Screen(conversation.codec, out, err, thoughts)
    say.show = None if screen is None else screen.notice
    trace = answer(runner, conversation, question, screen, transcript=saved)
    if as_json:
        answer_object = as_object(trace, opened, None if saved is None else str(saved.folder))
        out.out(json.dumps(answer_object, ensure_ascii=False))
    if trace.finish == "stopped" and not conversation.timed_out:
        raise KeyboardInterrupt
