"""`rstar2 judge`: starts, watches and stops the service that runs model-written programs, and runs one program."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from rich.markup import escape

from rstar2.cli.common import (
    FollowLogs,
    LogLines,
    checked_judge,
    checked_key,
    err,
    examples,
    out,
    show_logs,
)
from rstar2.terminal import counted, fitting, harmless

if TYPE_CHECKING:
    from subprocess import Popen

    from rich.console import RenderableType
    from rich.table import Table

    from rstar2.judge.schema import RunResult
    from rstar2.judge.service.settings import JudgeHandle

app = typer.Typer(
    add_completion=False,
    name="judge",
    help="Start, watch and stop the service that runs model-written programs in isolation.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog=examples(
        ("start a judge in the background", "rstar2 judge up --detach"),
        ("show what it is doing", "rstar2 judge status"),
        ("run one program", "rstar2 judge run prog.py"),
        ("stop the judge", "rstar2 judge down"),
    ),
)

Workers = Annotated[int, typer.Option(min=1, max=4096, help="Number of programs that run at the same time.")]
Tier = Annotated[
    Literal["strict", "landlock", "none"] | None,
    typer.Option(
        help="The isolation tier; by default the strongest tier that works on this machine, never none."
    ),
]
Preload = Annotated[
    bool,
    typer.Option(
        help="Import numpy, sympy, scipy and pandas in idle workers, so that programs start faster."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        callback=checked_judge, help="URL of a judge; by default the one that `judge up` started here."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(envvar="RSTAR2_JUDGE_TOKEN", callback=checked_key, help="The token of the judge at --url."),
]


@app.command(
    epilog=examples(
        ("in the foreground, until Ctrl-C", "rstar2 judge up"),
        ("in the background, with 16 workers", "rstar2 judge up --workers 16 --detach"),
        (
            "reachable from other machines",
            "rstar2 judge up --host 0.0.0.0 --token $TOKEN --redis redis://:$PASSWORD@queue:6379",
        ),
    )
)
def up(
    workers: Workers = 2,
    redis: Annotated[
        str | None,
        typer.Option(
            envvar="RSTAR2_JUDGE_REDIS", help="URL of the Redis queue; by default a Redis server is started."
        ),
    ] = None,
    isolation: Tier = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any address other than loopback needs --token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8088,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="RSTAR2_JUDGE_TOKEN", callback=checked_key, help="The token that clients must send."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="For a judge without a token: accept this host name in requests, in addition to localhost. Repeatable."
        ),
    ] = None,
    preload: Preload = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return as soon as the judge answers.")
    ] = False,
) -> None:
    """Start a judge on this machine."""
    from rstar2.errors import UserError
    from rstar2.judge.service.settings import ServiceSettings
    from rstar2.judge.service.start import start_service, stop_service
    from rstar2.judge.service.state import read_state, state_file
    from rstar2.supervision.state import state_folder

    running = read_state()
    if running is not None:
        raise UserError(
            f"a judge is already running at {running.url} (pid {running.pid})",
            "Stop it with `rstar2 judge down`.",
        )
    folder = state_folder() / "judge"
    settings = ServiceSettings(
        folder=str(folder.resolve()),
        workers=workers,
        host=host,
        port=port,
        redis_url=redis,
        isolation=isolation,
        token=token,
        hosts=allow_host or [],
        preload=preload,
        detached=detach,
    )
    process, judge = start_service(settings)
    state_file().write(judge)
    _announce(judge, workers, folder)
    if detach:
        return
    try:
        _wait_for_end(process, folder)
    finally:
        stop_service(process)
        state_file().clear(judge.pid)


def _wait_for_end(process: Popen[bytes], folder: Path) -> None:
    """Wait until a supervisor ends.

    Raises Failure if the supervisor failed or was killed, but not if the user stopped it.
    """
    from rstar2.errors import Failure

    if code := process.wait():
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise Failure(f"the judge's supervisor {how}", f"See the logs in {folder}/logs.")


def _announce(judge: JudgeHandle, workers: int, folder: Path) -> None:
    number = counted(workers, "worker")
    out.print(
        f"judge at [bold]{escape(judge.url)}[/], {number}, isolation [bold]{judge.isolation}[/]",
        soft_wrap=True,
    )
    if judge.isolation == "none":
        err.print(
            "[yellow]isolation none: programs can read every file that you can read; run only code you trust[/]",
            soft_wrap=True,
        )
    out.print(f"logs: tail -F {folder}/logs/*.log", markup=False, soft_wrap=True)


@app.command(epilog=examples(("stop the judge", "rstar2 judge down")))
def down() -> None:
    """Stop the judge that is running on this machine."""
    from rstar2.judge.service.state import current_judge, end_judge

    end_judge(current_judge())
    out.print("judge stopped")


@app.command(
    epilog=examples(
        ("the judge on this machine, updated every second", "rstar2 judge status"),
        ("once as JSON, for a script", "rstar2 judge status --json"),
        ("a judge on another machine", "rstar2 judge status --url http://judge:8088 --token $TOKEN"),
    )
)
def status(
    once: Annotated[bool, typer.Option("--once", help="Show the status once, even in a terminal.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the judge's answer to GET /status.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show the queue, workers, times and outcomes of a running judge.

    In a terminal, the display is updated every second.
    """
    from rich.live import Live

    address = _address(url, token)
    if json:
        out.print_json(data=_status(*address))
    elif once or not out.is_terminal:
        out.print(_dashboard(address[0], _status(*address)))
    else:
        with Live(_dashboard(address[0], _status(*address)), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(_dashboard(address[0], _status(*address)), refresh=True)


def _dashboard(url: str, status: dict[str, Any]) -> RenderableType:
    """Returns an answer of `/status` as text and a table."""
    from rich.console import Group

    isolation = status["isolation"] or "unknown"
    lines = [
        f"judge at [bold]{escape(url)}[/], isolation [bold]{isolation}[/], {status['num_workers']} workers",
        f"{status['queue']} queued, {status['running']} running, {status['rate']:.0f} programs a second",
        _recent_times(status),
        f"outcomes: {_counts(status['outcomes'])}; restarts: {_counts(status['restarts'])}",
        *(f"[yellow]not enforced: {escape(sentence)}[/]" for sentence in status["exceptions"]),
    ]
    return Group(*lines, fitting(_worker_table(status["workers"], status["isolation"]), out))


def _recent_times(status: dict[str, Any]) -> str:
    """Returns a line about the times of the last programs.

    A judge of an earlier version does not report the number of programs that were timed.
    """
    waiting, running, count = status["queue_time"], status["run_time"], status.get("recent_programs")
    if not waiting:
        return "no program has finished yet"
    of = "" if count is None else f" (last {counted(count, 'program')})"
    return f"waiting: {_times(waiting)}; running: {_times(running)}{of}"


def _times(times: dict[str, float]) -> str:
    return f"median {_ms(times['p50_ms'])}, 99 % below {_ms(times['p99_ms'])}"


def _ms(time: float) -> str:
    return f"{time:,.0f} ms" if time >= 10 else f"{time:.1f} ms"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none yet"


def _worker_table(workers: list[dict[str, Any]], isolation: str | None) -> Table:
    """Returns a table of the workers. The table has a column for isolation only if some worker's isolation differs from
    `isolation`, the isolation of the judge.
    """
    from rich.table import Column, Table

    from rstar2.judge.queue.liveness import DEAD_AFTER_S

    differs = any(worker["isolation"] != isolation for worker in workers)
    columns = ("pid", *(["isolation"] if differs else []), "programs", "mean ms", "running s", "seen s ago")
    table = Table(
        Column("worker", no_wrap=True),  # so that a name can be copied
        *(Column(name, justify="left" if name == "isolation" else "right") for name in columns),
        box=None,
        padding=(0, 2, 0, 0),
        caption="programs: finished so far. mean ms: mean time of a program. running s: time of the program that "
        "runs now. seen s ago: time since the worker's last heartbeat; the line of a dead worker is red.",
        caption_justify="left",
    )
    for worker in workers:
        table.add_row(
            escape(worker["name"]),
            str(worker["pid"]),
            *([worker["isolation"]] if differs else []),
            f"{worker['done']:,}",
            # A worker has a default mean until its first program has finished.
            f"{1000 * worker['mean_s']:,.1f}" if worker["done"] else "–",
            f"{worker['running_s']:.1f}",
            f"{worker['age_s']:.1f}",
            style="red" if worker["age_s"] > DEAD_AFTER_S else None,
        )
    return table


def _address(url: str | None, token: str | None) -> tuple[str, str | None]:
    """Returns URL and token of the judge at `url`, or of the judge that runs on this machine if `url` is None."""
    from rstar2.judge.service.state import current_judge

    if url is not None:
        return url.rstrip("/"), token
    judge = current_judge()
    return judge.url, judge.token


def _status(url: str, token: str | None) -> dict[str, Any]:
    import httpx

    from rstar2.errors import UserError

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.get(f"{url}/status", headers=headers, timeout=30.0, trust_env=False)
        response.raise_for_status()
        status = response.json()
        if not (isinstance(status, dict) and "num_workers" in status):
            raise ValueError("the answer does not come from a judge")
        return status
    except httpx.HTTPStatusError as error:
        unauthorized = error.response.status_code == httpx.codes.UNAUTHORIZED
        hint = (
            "Give the judge's token with --token."
            if unauthorized
            else "See `rstar2 judge logs` on its machine."
        )
        raise UserError(f"the judge at {url} answers HTTP {error.response.status_code}", hint) from error
    except (httpx.HTTPError, ValueError) as error:
        raise UserError(
            f"no judge answers at {url}: {error}", "See `rstar2 judge logs` on its machine."
        ) from error


@app.command(
    epilog=examples(
        ("the last lines of every log", "rstar2 judge logs"),
        ("follow the workers' logs", "rstar2 judge logs worker --follow"),
    )
)
def logs(
    part: Annotated[
        str, typer.Argument(help="Show only the logs whose name starts with this: api, worker or redis.")
    ] = "",
    lines: LogLines = 20,
    follow: FollowLogs = False,
) -> None:
    """Show the logs of the judge that is running on this machine, or of the last one that ran."""
    from rstar2.supervision.state import state_folder

    folder = state_folder() / "judge" / "logs"
    hint = "Start one with `rstar2 judge up`."
    if elsewhere := sorted(map(str, state_folder().glob("worker-*/logs"))):
        hint = f"Logs of `rstar2 judge worker` are in {', '.join(elsewhere)}."
    show_logs(folder, part, lines, follow, "a judge", hint)


@app.command(
    epilog=examples(
        (
            "workers on this machine, for a judge on another machine",
            "rstar2 judge worker --redis rediss://:$PASSWORD@queue:6379",
        ),
        ("one worker for each of 64 cores", "rstar2 judge worker --redis $REDIS --workers 64"),
    )
)
def worker(
    redis: Annotated[str, typer.Option(envvar="RSTAR2_JUDGE_REDIS", help="URL of the judge's Redis queue.")],
    workers: Workers = 2,
    isolation: Tier = None,
    preload: Preload = True,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for logs and work folders; by default a new one in the state folder."),
    ] = None,
) -> None:
    """Run workers on this machine, until Ctrl-C, for a judge whose queue is on another machine."""
    import os

    from rstar2.judge.service.settings import ServiceSettings
    from rstar2.judge.service.start import start_service, stop_service
    from rstar2.supervision.state import state_folder

    place = folder or state_folder() / f"worker-{os.getpid()}"
    settings = ServiceSettings(
        folder=str(place.resolve()),
        workers=workers,
        redis_url=redis,
        isolation=isolation,
        preload=preload,
        api=False,
    )
    process, judge = start_service(settings)
    out.print(f"{counted(workers, 'worker')}, isolation [bold]{judge.isolation}[/]")
    out.print(f"logs: tail -F {place}/logs/*.log", markup=False, soft_wrap=True)
    try:
        _wait_for_end(process, place)
    finally:
        stop_service(process)


@app.command(
    epilog=examples(
        ("the command for an assistant's configuration", "rstar2 judge mcp"),
        ("with a judge on another machine", "rstar2 judge mcp --url http://judge:8088 --token $TOKEN"),
    )
)
def mcp(url: Url = None, token: Token = None) -> None:
    """Serve the judge's Python tools to an assistant.

    The command is a server of the Model Context Protocol (MCP) on standard input and output. Without --url, the server
    uses the judge that is running on this machine, or else starts a judge.
    """
    import tempfile
    from contextlib import ExitStack

    from rstar2.judge.client.mcp_server import mcp_server
    from rstar2.judge.service.start import running_judge
    from rstar2.judge.service.state import read_state

    with ExitStack() as stack:
        if url is None:
            judge = read_state()
            if judge is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-mcp-")))
                judge = stack.enter_context(running_judge(folder))
            url, token = judge.url, judge.token
        err.print(f"tools of the judge at {url}", markup=False, soft_wrap=True)
        mcp_server(url, token).run()


@app.command(
    epilog=examples(
        ("run a program", "rstar2 judge run prog.py"),
        ("with input and a shorter time limit", "rstar2 judge run prog.py --timeout 2 < input.txt"),
        ("on a judge on another machine", "rstar2 judge run prog.py --url http://judge:8088 --token $TOKEN"),
    )
)
def run(
    file: Annotated[Path, typer.Argument(help="The Python program to run.", metavar="FILE.py")],
    timeout: Annotated[float, typer.Option(min=0.01, max=300, help="Time limit, in seconds.")] = 10.0,
    memory: Annotated[int, typer.Option(min=16, max=65536, help="Memory limit, in MiB.")] = 1024,
    url: Url = None,
    token: Token = None,
) -> None:
    """Run one program on the judge and show its output; the exit code is 1 unless the outcome is ok."""
    from pydantic import ValidationError

    from rstar2.errors import UserError, as_user_error
    from rstar2.judge.client import SyncJudgeClient
    from rstar2.judge.schema import RunRequest

    try:
        code = file.read_bytes().decode()
        stdin = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read().decode()
        request = RunRequest(code=code, stdin=stdin, timeout_s=timeout, memory_mb=memory)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", "Give the path of a Python file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} or its input is not UTF-8: {error}", "Save it as UTF-8.") from error
    except ValidationError as error:
        raise UserError(f"{file} cannot be run: {error.errors()[0]['msg']}") from error
    with SyncJudgeClient(*_address(url, token), wait_s=60) as client:
        with as_user_error():
            client.health()
        result = client.run(request)
    _show(result)
    if result.outcome != "ok":
        raise typer.Exit(1)


def _write(text: str, stream: TextIO) -> None:
    """Write the output of a program. On a terminal, control sequences are shown as text and have no effect."""
    stream.write(harmless(text) if stream.isatty() else text)
    stream.flush()


def _show(result: RunResult) -> None:
    _write(result.stdout, sys.stdout)
    if result.value is not None:
        _write(f"{result.value}\n", sys.stdout)
    _write(result.stderr, sys.stderr)
    seconds = f"{result.wall_s:.3f} s, {result.cpu_s:.3f} s CPU, {result.queue_s:.3f} s queued"
    during = f" while {result.ended_while}" if result.ended_while else ""
    err.print(
        f"[dim]{result.outcome}{during}, exit code {result.exit_code}, {seconds}, "
        f"isolation {result.isolation}[/dim]",
        soft_wrap=True,
    )
