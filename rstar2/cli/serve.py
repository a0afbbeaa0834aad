"""`rstar2 serve`: starts, watches and stops servers of models."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from rstar2.cli import common
from rstar2.cli.common import RUN, RunGroup, err, examples, out, progress, show_logs
from rstar2.terminal import counted, percent

if TYPE_CHECKING:
    from rstar2.serve.choose import Choice
    from rstar2.serve.settings import ServerHandle, SupervisorSettings

app = typer.Typer(name="serve", cls=RunGroup, rich_markup_mode="rich", add_completion=False)
Port = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="The server's port; required if several servers run on this machine."
    ),
]


@app.command(
    RUN,
    epilog=examples(
        ("serve a trained model on this machine", "rstar2 serve runs/demo"),
        ("serve it in the background", "rstar2 serve runs/demo --detach"),
        ("serve the agent with its tools, for any chat program", "rstar2 serve runs/demo --with-tools"),
        (
            "one copy on 4 GPUs, with a context of 32K tokens",
            "rstar2 serve Qwen/Qwen3-14B --tp 4 --max-model-len 32768",
        ),
        (
            "under a short name, for a web page in a browser",
            "rstar2 serve runs/demo --with-tools --name demo --cors http://localhost:3000",
        ),
        ("the agent without vLLM, on the CPU", "rstar2 serve runs/demo --with-tools --engine transformers"),
        (
            "with a vLLM in an environment of its own",
            "rstar2 serve runs/demo --python .venv-vllm/bin/python",
        ),
        ("with further arguments for vLLM", "rstar2 serve runs/demo -- --enforce-eager --dtype bfloat16"),
        ("print the command, start nothing", "rstar2 serve runs/demo --print-command"),
        ("chat with the served model", "rstar2 chat --url http://127.0.0.1:8000"),
    ),
)
def run(
    model: common.ModelArgument,
    extra: Annotated[
        list[str] | None, typer.Argument(help="Arguments for vLLM, after --.", metavar="[-- ARGS]")
    ] = None,
    engine: Annotated[
        Literal["vllm", "transformers"],
        typer.Option(
            help="transformers needs no vLLM. The engine transformers is slow, because it runs on the "
            "CPU, and it needs --with-tools."
        ),
    ] = "vllm",
    with_tools: Annotated[
        bool,
        typer.Option("--with-tools", help="Serve the agent: run the model's Python, and return the answer."),
    ] = False,
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RSTAR2_SERVE_KEY",
            callback=common.checked_key,
            help="The key that clients must send. Required for --with-tools on an address other than loopback.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The model's name for clients; by default its absolute folder or hub id."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages of this origin send requests, such as http://localhost:3000; * allows every page. "
            "Repeatable.",
        ),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of GPUs per copy of the model; by default the smallest number with enough memory.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Number of copies of the model; by default as many as fit on the GPUs."),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens of prompt and answer together; by default the model's context, or as "
            "much as the memory allows.",
        ),
    ] = None,
    kv_gib: Annotated[
        int | None,
        typer.Option(
            min=1, help="Size of the KV cache in GiB, on a machine without a GPU; by default at most 4."
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            envvar="RSTAR2_VLLM_PYTHON", help="The Python interpreter of the environment with vLLM."
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            callback=common.checked_judge,
            help="With --with-tools: URL of a judge; by default a judge is started.",
        ),
    ] = None,
    judge_token: common.JudgeToken = None,
    max_turns: Annotated[
        int, typer.Option(min=1, help="With --with-tools: maximum number of turns of an answer.")
    ] = 10,
    max_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="With --with-tools: maximum number of tokens of an answer, tool output included."
        ),
    ] = 8192,
    ready_s: Annotated[float, typer.Option(min=1, help="Seconds the model may take to load.")] = 900.0,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of restarts of a crashed process within ten minutes; after one more crash, the "
            "server ends.",
        ),
    ] = 3,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return as soon as the server answers.")
    ] = False,
    print_command: Annotated[
        bool,
        typer.Option(
            "--print-command",
            help="Print the command of each process that `serve` would start, and start nothing.",
        ),
    ] = False,
) -> None:
    """Serve a model, or the agent with its tools, over an OpenAI-compatible HTTP API.

    `rstar2 serve status` shows the servers on this machine, `rstar2 serve down` stops one, and `rstar2 serve logs`
    shows its logs.
    """
    from rstar2.loop.turns.choose import FormatChoice
    from rstar2.serve.choose import Choice, choose
    from rstar2.serve.plan import Endpoint
    from rstar2.serve.vllm import check_port

    choice = Choice(
        model=model,
        engine=engine,
        endpoint=Endpoint(host, port, api_key, tuple(each.removesuffix("/") for each in cors or ())),
        name=name,
        format=FormatChoice(format, force_format),
        python=str(python or sys.executable),
        tp=tp,
        replicas=replicas,
        max_model_len=max_model_len,
        kv_gib=kv_gib,
        extra=tuple(extra or ()),
        with_tools=with_tools,
        judge=(judge, judge_token),
        max_turns=max_turns,
        max_tokens=max_tokens,
    )
    if print_command:
        _print_commands(choice)
        return
    check_port(host, port)
    chosen = choose(choice)
    for note in chosen.notes:
        err.print(note, soft_wrap=True, markup=False)
    settings = chosen.settings(ready_s=ready_s, restarts=restarts, detached=detach)
    _watch(settings, has_key=api_key is not None)


def _print_commands(choice: Choice) -> None:
    from rstar2.serve.choose import choose

    chosen = choose(choice, without_vllm=True)
    for note in chosen.notes:
        err.print(note, soft_wrap=True, markup=False)
    for process in (process for wave in chosen.waves for process in wave):
        words = [f"{name}={value}" for name, value in process.environment.items()]
        line = shlex.join([*words, *process.command])
        if process.settings:
            line = f"printf '%s\\n' {shlex.quote(process.settings.strip())} | {line}"
        typer.echo(line)


def _watch(settings: SupervisorSettings, has_key: bool) -> None:
    """Show the server's progress until the server ends.

    A detached server's progress is shown until the server answers.
    """
    from rstar2.serve.start import supervised

    began = time.monotonic()
    err.print(
        f"{settings.engine} loads {settings.model}; logs: tail -F {settings.folder}/logs/*.log",
        soft_wrap=True,
        markup=False,
    )
    with ExitStack() as starting:
        show = starting.enter_context(progress())
        show("starting")
        for event in supervised(settings):
            if event.kind == "progress":
                show(event.text)
            elif event.kind == "restart":
                err.print(f"[yellow]{escape(event.text)}[/]\n{escape(event.hint)}", soft_wrap=True)
            else:
                starting.close()
                _announce(settings, f"{time.monotonic() - began:.0f} s", has_key)


def _announce(settings: SupervisorSettings, seconds: str, has_key: bool) -> None:
    end = f"rstar2 serve down --port {settings.port}" if settings.detached else "Ctrl-C"
    out.print(
        f"[bold]{escape(settings.url)}[/] is ready after {seconds}; {end} stops the server", soft_wrap=True
    )
    if settings.with_tools:
        key = "your API key" if has_key else "any key"
        out.print(
            f"for chat programs: base URL [cyan]{escape(settings.url)}/v1[/], model {escape(settings.name)}, {key}",
            soft_wrap=True,
        )
    else:
        key = "  (with the API key in RSTAR2_API_KEY)" if has_key else ""
        out.print(f"next: [cyan]rstar2 chat --url {escape(settings.url)}[/]{key}", soft_wrap=True)


@app.command(
    epilog=examples(
        ("the servers on this machine", "rstar2 serve status"), ("for a script", "rstar2 serve status --json")
    )
)
def status(json: common.AsJson = False) -> None:
    """Show the servers on this machine and their load. Servers that failed are included.

    The exit code is 0 if all servers answer, 1 if one does not, and 2 if there is no server.
    """
    from rstar2.serve.figures import figures
    from rstar2.serve.state import no_server, read_states

    servers = read_states()
    if not servers:
        raise no_server()
    rows = [(server, figures(server)) for server in servers]
    if json:
        out.print_json(data=[{**server.model_dump(), **load} for server, load in rows])
    else:
        for server, load in rows:
            out.print(_line(server, load), soft_wrap=True)
    if any(load["state"] != "answers" for _, load in rows):
        raise typer.Exit(1)


def _line(server: ServerHandle, load: dict[str, Any]) -> str:
    """Returns a line with a server's state and load, in rich markup."""
    style = "bold" if load["state"] == "answers" else "bold red"
    tools = ", with tools" if server.with_tools else ""
    model = escape(f"{server.model} by {server.engine}{tools}")
    line = f"[{style}]{escape(server.url)} {load['state']}[/]: {model}"
    line += f"; up {(time.time() - server.started) / 60:.0f} min, {counted(server.restarts, 'restart')}"
    if load["running"] is not None:
        line += f"; {load['running']} requests in flight, {load['waiting']} waiting"
    if load["kv_cache"] is not None:
        line += f", KV cache {percent(load['kv_cache'], 0)} full"
    return line + (f"\n{escape(server.error)}" if server.error else "")


@app.command(
    epilog=examples(
        ("stop the server", "rstar2 serve down"),
        ("stop one of several", "rstar2 serve down --port 8001"),
    )
)
def down(port: Port = None) -> None:
    """Stop a server that is running on this machine."""
    from rstar2.serve.state import end_server, one_server

    server = one_server(port)
    end_server(server)
    out.print(f"the server at {server.url} stopped", markup=False, soft_wrap=True)


@app.command(
    epilog=examples(
        ("the last lines of every log", "rstar2 serve logs"),
        ("follow the engine's log", "rstar2 serve logs engine --follow"),
    )
)
def logs(
    part: Annotated[
        str, typer.Argument(help="Show only the logs whose name starts with this: engine, router or agent.")
    ] = "",
    port: Port = None,
    lines: common.LogLines = 20,
    follow: common.FollowLogs = False,
) -> None:
    """Show the logs of the running server. With --port, show those of the last server on that port."""
    from rstar2.serve.state import one_server, server_folder

    folder = server_folder(port if port is not None else one_server(None).port) / "logs"
    show_logs(folder, part, lines, follow, "a server", "Start one with `rstar2 serve MODEL`.")
