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
        "rstar2 chat --url http://127.0.0.1:8000/v1 --api chat --model-name gpt-oss-120b",
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
    run: Annotated[
        Path | None,
        typer.Option(help="The folder of a run. The chat uses the model that the run trained."),
    ] = None,
    model: common.Model = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Address of a server, as http://host:port. The server is vLLM, or with --api chat "
            "any OpenAI-compatible endpoint."
        ),
    ] = None,
    model_name: common.ModelName = None,
    api: common.Api = "tokens",
    api_key: common.ApiKey = None,
    engine: Annotated[
        Literal["auto", "vllm", "transformers"],
        typer.Option(
            help="The engine for a model on this machine. auto selects vLLM if vLLM is installed and "
            "the model is large enough to justify vLLM's start-up time, else transformers."
        ),
    ] = "auto",
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    tool: Annotated[
        str | None,
        typer.Option(
            metavar="program|notebook|MODULE:OBJECT",
            help="program: Python starts afresh in each call. notebook: Python keeps its variables. "
            "MODULE:OBJECT: a tool of your own. The default is the tool of the format.",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            callback=common.checked_judge, help="URL of a judge; by default a judge is started for the chat."
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
    system: Annotated[
        str | None, typer.Option(help="Text of the system message; by default the text in the format.")
    ] = None,
    thoughts: Annotated[
        Literal["on", "off", "fold"],
        typer.Option(
            help="How to show the model's thoughts. on: in full; off: not at all; fold: only how long "
            "each thought is."
        ),
    ] = "on",
    temperature: common.Temperature = 0.6,
    top_p: common.TopP = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens in one answer, tool output included.")
    ] = 8192,
    max_turns: Annotated[int, typer.Option(min=1, help="Maximum number of model turns in one answer.")] = 10,
    max_seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Time limit of one answer, in seconds.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Sampling seed; the same seed gives the same output.")
    ] = None,
) -> None:
    """Chat with a model that solves problems with Python.

    A judge is started unless --judge names one. If the model is on this machine, an engine is started to run it. In the
    chat, /help lists the commands, Ctrl-C stops an answer, and Ctrl-D exits. The exit code is 0 after an answer, 1
    after a failure, 2 for bad input, and 130 after Ctrl-C.
    """
    from rstar2.chat.keys import keys_unseen

    # Keys that are pressed during the imports and while the model loads are shown by the prompt, not also by the
    # terminal.
    with keys_unseen() if prompt is None else nullcontext():
        from rstar2.chat.model import ModelChoice
        from rstar2.errors import UserError
        from rstar2.loop.agent import Limits
        from rstar2.loop.engine import Sampling
        from rstar2.loop.turns.choose import FormatChoice

        if top_p <= 0:
            raise UserError(
                "--top-p must be above 0, not 0",
                "Give --top-p 1 to sample from all tokens, or --temperature 0 for greedy answers.",
            )
        request = _ChatRequest(
            ModelChoice(
                run, model, url, model_name, api, api_key, FormatChoice(format, force_format), engine, tool
            ),
            (judge, judge_token),
            Limits(max_turns=max_turns, max_tokens=max_tokens),
            Sampling(temperature=temperature, top_p=top_p, seed=seed),
            max_seconds,
            system,
            transcript,
            thoughts,
            as_json,
        )
        _chat(request, _single_question(prompt, as_json))


@dataclass(frozen=True)
class _ChatRequest:
    """The options of `rstar2 chat`."""

    choice: ModelChoice
    judge: tuple[str | None, str | None]
    """URL and token of a judge. Without a URL, a judge is started for the chat."""
    limits: Limits
    sampling: Sampling
    max_seconds: float | None
    """Time limit of one answer."""
    system: str | None
    transcript: Path | None
    """The folder in which the chat is saved."""
    thoughts: Literal["on", "off", "fold"]
    as_json: bool


def _chat(request: _ChatRequest, question: str | None) -> None:
    """Open the model and the judge, then answer one question, or chat at the terminal if `question` is None."""
    import asyncio

    from rstar2.chat.judge import refuse_wrong_token
    from rstar2.chat.server import started_engine

    say = _Notices()
    with asyncio.Runner() as runner, ExitStack() as stack:
        judge_url, judge_token = request.judge
        if judge_url is not None:
            # Before an engine is started, which takes minutes.
            runner.run(refuse_wrong_token(judge_url, judge_token))
        with progress() as show:
            choice = stack.enter_context(started_engine(request.choice, say, show))
        opened, judge = _open(runner, stack, choice, request.judge, say)
        conversation = _conversation(opened, judge, say, request)
        stack.callback(lambda: runner.run(conversation.aclose()))
        if not request.as_json:
            err.print(f"model: {opened.checkpoint}", soft_wrap=True, markup=False)
            if request.choice.format.named is not None or request.choice.tool is not None:
                err.print(f"format: {opened.codec.source}", soft_wrap=True, markup=False)
        transcript_stack = stack.enter_context(ExitStack())
        saved = _transcript(
            runner, transcript_stack, request.transcript, conversation, opened.checkpoint, say
        )
        if question is not None:
            _answer(runner, conversation, opened, question, request, saved, say)
            return

        from rstar2.chat.repl import Repl

        describe = (opened.checkpoint, judge.described)
        repl = Repl(runner, transcript_stack, conversation, (out, err), describe, request.thoughts, saved)
        say.show = repl.notice
        repl.run()


@dataclass
class _Notices:
    """Shows notices, for instance that a server does not answer, on the screen that is in use."""

    show: Callable[[str], None] | None = None
    """Function that shows one notice. If the function is None, notices are printed to standard error."""

    def __call__(self, text: str) -> None:
        if self.show is not None:
            self.show(text)
        else:
            from rstar2.terminal import print_notice

            print_notice(err, text, "yellow")


def _single_question(question: str | None, as_json: bool) -> str | None:
    """Returns the question from the command line or a pipe, or None if a person types at a terminal.

    Raises UserError if the question is empty or not UTF-8, or if `as_json` is true and there is no question.
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
            "--json prints one answer and needs a question",
            "Give the question with --prompt or on standard input.",
        )
    if question is not None and not question.strip():
        raise UserError("there is no question", "Give the question with --prompt or on standard input.")
    return question.strip() if question else None


def _open(
    runner: asyncio.Runner,
    stack: ExitStack,
    choice: ModelChoice,
    judge_address: tuple[str | None, str | None],
    say: _Notices,
) -> tuple[OpenModel, NamedJudge]:
    """Open the model and a judge: the judge at `judge_address` (URL and token), or a judge started for the chat."""
    from rstar2.chat.judge import open_judge
    from rstar2.chat.model import open_model

    opened = runner.run(open_model(choice, say))
    if choice.api == "tokens":
        _silence_libraries()
    judge = stack.enter_context(open_judge(*judge_address))
    stack.callback(lambda: runner.run(judge.client.aclose()))
    if judge_address[0] is not None:
        for notice in runner.run(judge.check(opened.codec.format)):
            say(notice)
    if judge.isolation == "none":
        say("isolation none: the model's programs can read every file that you can read")
    return opened, judge


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
    request: _ChatRequest,
) -> Conversation:
    from rstar2.chat.conversation import Conversation
    from rstar2.chat.recovery import RecoveringTools
    from rstar2.loop.toolbox import Toolbox

    tools = RecoveringTools(Toolbox(judge.client, opened.codec.format), judge, say)
    conversation = Conversation(opened.engine, opened.codec, tools, request.limits, request.sampling)
    conversation.seconds, conversation.system = request.max_seconds, request.system
    return conversation


def _transcript(
    runner: asyncio.Runner,
    stack: ExitStack,
    folder: Path | None,
    conversation: Conversation,
    model: str,
    say: _Notices,
) -> Transcript | None:
    """Open the transcript in a folder, and continue a chat that is already there.

    Returns None if no folder is given.
    """
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
    request: _ChatRequest,
    saved: Transcript | None,
    say: _Notices,
) -> None:
    """Ask one question and show the answer.

    If Ctrl-C stopped the answer, the part that was written is shown, and then KeyboardInterrupt is raised.
    """
    from rstar2.chat.answer import answer, as_object
    from rstar2.chat.screen import Screen

    screen = None if request.as_json else Screen(conversation.codec, out, err, request.thoughts)
    say.show = None if screen is None else screen.notice
    trace = answer(runner, conversation, question, screen, transcript=saved)
    if request.as_json:
        answer_object = as_object(trace, opened, None if saved is None else str(saved.folder))
        out.out(json.dumps(answer_object, ensure_ascii=False))
    if trace.finish == "stopped" and not conversation.timed_out:
        raise KeyboardInterrupt
