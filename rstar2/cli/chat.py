"""`rstar2 chat`: talk to a model, and watch it think in Python."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.common import err, examples, out

if TYPE_CHECKING:
    import asyncio

    from rstar2.agent import ToolRunner
    from rstar2.chat.model import Opened
    from rstar2.chat.session import Chat
    from rstar2.trace import ToolCall, Trace

app = typer.Typer(name="chat", add_completion=False, rich_markup_mode="rich")


@app.command(
    epilog=examples(
        ("the model that a run trained", "rstar2 chat --run runs/demo"),
        ("any model folder", "rstar2 chat --model models/tiny"),
        ("a model that vLLM serves", "rstar2 chat --url http://127.0.0.1:8000"),
        ("one question, one answer", 'rstar2 chat --run runs/demo --question "Compute 37 * 91."'),
        ("the question from a pipe", "cat problem.txt | rstar2 chat --run runs/demo"),
    )
)
def chat(
    run: Annotated[Path | None, typer.Option(help="A run's folder: the model it made.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model folder; with --url, only its tokenizer is used.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="A vLLM server, as http://host:port.")] = None,
    model_name: Annotated[str | None, typer.Option(help="Which of the server's models.")] = None,
    judge: Annotated[
        str | None, typer.Option(help="URL of a judge; without it one is started for the chat.")
    ] = None,
    judge_token: Annotated[
        str | None, typer.Option(envvar="RSTAR2_JUDGE_TOKEN", help="What that judge asks for.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="Ask this, show the answer and end.")] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.6,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of one answer, tool output included.")
    ] = 8192,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns of the model in one answer.")] = 10,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed says the same.")] = None,
) -> None:
    """Talk to a model that thinks in Python.

    /reset begins anew, /quit leaves. Ctrl-C stops an answer; the next one leaves.
    """
    import asyncio

    from rstar2.agent import Limits
    from rstar2.chat.session import Chat
    from rstar2.engines.base import Sampling

    _one_model(run, model, url)
    question = _given(question)
    with asyncio.Runner() as runner, ExitStack() as stack:
        opened = _open(runner, run, model, url, model_name)
        stack.callback(lambda: runner.run(opened.engine.aclose()))
        err.print(f"model: {opened.what}", soft_wrap=True, markup=False)
        session = Chat(
            opened.engine,
            opened.codec,
            _tools(runner, stack, judge, judge_token),
            Limits(max_turns=max_turns, max_tokens=max_tokens),
            Sampling(temperature=temperature, top_p=top_p, seed=seed),
        )
        if question is not None:
            _answer(runner, session, question)
        else:
            _converse(runner, session)


def _one_model(run: Path | None, model: Path | None, url: str | None) -> None:
    from rstar2.errors import UserError

    if run is None and model is None and url is None:
        raise UserError(
            "no model named", "Give --run RUN, --model DIR, or --url URL; `rstar2 runs list` shows the runs."
        )
    if run is not None and (model is not None or url is not None):
        raise UserError("--run names a model by itself", "Leave out --model and --url, or --run.")


def _given(question: str | None) -> str | None:
    """The question from the command line or a pipe; None where a person sits at a terminal."""
    from rstar2.errors import UserError

    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read()
    if question is not None and not question.strip():
        raise UserError("there is no question", "Give it with --question or on standard input.")
    return question.strip() if question else None


def _open(
    runner: asyncio.Runner, run: Path | None, model: Path | None, url: str | None, model_name: str | None
) -> Opened:
    from rstar2.chat.model import ask_server, open_model, open_server, run_model

    if url is not None:
        return open_server(url, runner.run(ask_server(url, model_name)), model)
    folder = run_model(run) if run is not None else model
    assert folder is not None
    return open_model(folder)


def _tools(runner: asyncio.Runner, stack: ExitStack, url: str | None, token: str | None) -> ToolRunner:
    """The Python tool, behind the judge that was named or one of our own."""
    import tempfile

    from rstar2.judge.client import JudgeClient
    from rstar2.judge.client.python_tool import PythonTool
    from rstar2.judge.service.start import running_judge

    if url is None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-chat-")))
        judge = stack.enter_context(running_judge(folder, workers=1))
        url, token = judge.url, judge.token
        if judge.isolation == "none":
            err.print("[yellow]isolation none: the model's programs can read what you can read[/]")
    client = JudgeClient(url, token, patience_s=30.0)
    stack.callback(lambda: runner.run(client.aclose()))
    return PythonTool(client)


def _converse(runner: asyncio.Runner, session: Chat) -> None:
    import readline  # noqa: F401 - gives input() a history and arrow keys

    from rstar2.errors import RStarError

    err.print("[dim]/reset begins anew, /quit leaves; Ctrl-C stops an answer[/dim]")
    while True:
        try:
            text = out.input("[bold cyan]›[/] ").strip()
        except EOFError:
            return
        if text == "/quit":
            return
        if text == "/reset":
            session.reset()
            err.print("[dim]everything said is forgotten[/dim]")
        elif text.startswith("/"):
            err.print("there are /reset and /quit")
        elif text:
            try:
                _answer(runner, session, text)
            except KeyboardInterrupt:
                out.print()
                err.print("[dim]stopped; that question is forgotten, Ctrl-C again leaves[/dim]")
            except RStarError as error:
                err.print(str(error), style="red", markup=False, soft_wrap=True)


def _answer(runner: asyncio.Runner, session: Chat, text: str) -> None:
    from rstar2.agent import Callbacks

    screen = Screen(session)
    trace = runner.run(session.ask(text, Callbacks(screen.tokens, screen.result)))
    screen.end(trace)


class Screen:
    """Shows one answer as it comes: text, the code of each call, each result."""

    def __init__(self, session: Chat) -> None:
        from rstar2.chat.stream import CallSplitter, TextStream

        self._text = TextStream(session.codec)
        self._pieces = CallSplitter()
        self._at_margin = True

    def tokens(self, token_ids: list[int]) -> None:
        self._show(self._text.add(token_ids), False)

    def result(self, call: ToolCall) -> None:
        from rich.panel import Panel
        from rich.text import Text

        self._show("", True)
        style = "red" if call.failed else "green"
        title = f"{call.status}, {call.wall_s:.2f} s"
        self._panel(Panel(Text(call.output), title=title, title_align="left", border_style=style))

    def end(self, trace: Trace) -> None:
        self._show("", True)
        self._margin()
        if trace.finish != "answer":
            limit = "tokens" if trace.finish == "max_tokens" else "turns"
            err.print(f"[yellow]the answer was cut: it is out of {limit}[/]")

    def _show(self, text: str, whole: bool) -> None:
        pieces = self._pieces.add(text) + (self._pieces.end() if whole else [])
        for piece in pieces:
            if piece.kind == "call":
                self._call(piece.content)
            elif piece.content.strip() or not self._at_margin:
                out.print(piece.content, end="", markup=False, soft_wrap=True)
                self._at_margin = piece.content.endswith("\n")

    def _call(self, body: str) -> None:
        from rich.panel import Panel
        from rich.syntax import Syntax
        from rich.text import Text

        from rstar2.agent import parse_calls

        (call,) = parse_calls(f"<tool_call>{body}")
        if not isinstance(call, tuple):
            self._panel(Panel(Text(body.strip()), title="not a call", title_align="left", border_style="red"))
            return
        name, arguments = call
        code = Syntax(arguments["code"], "python", background_color="default", word_wrap=True)
        self._panel(Panel(code, title=name, title_align="left", border_style="cyan"))

    def _panel(self, panel: object) -> None:
        self._margin()
        out.print(panel)

    def _margin(self) -> None:
        if not self._at_margin:
            out.print()
            self._at_margin = True
