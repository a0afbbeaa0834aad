"""`rstar2 watch`: follows a training run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.common import AsJson, examples, out

EPILOG = examples(
    ("follow a run from another terminal or another machine", "rstar2 watch runs/demo"),
    ("follow one stage of a run", "rstar2 watch runs/rl/stage1"),
    ("print the steps of a run as JSON, for a script", "rstar2 watch runs/rl --json"),
)

READ_EVERY_S = 2.0
Folder = Annotated[
    Path, typer.Argument(help="A run's folder, or the folder of a stage in it.", metavar="RUN")
]


def command(run: Folder, as_json: AsJson = False) -> None:
    """Follow a training run: rewards, failed calls, lengths, entropy, the judge, alarms.

    This command only reads the files in the run's folder, so the run may be on any machine. The command ends when the
    run ends. Ctrl-C ends this command, but not the run. If the output is not a terminal, the current state is shown
    once.
    """
    from rstar2.watch.snapshot import snapshot
    from rstar2.watch.view import draw

    state = snapshot(run)
    if as_json:
        typer.echo(json.dumps(state.record(), indent=2))
        return
    if not out.is_terminal or state.state != "running":
        out.print(draw(state, out.width))
        return
    from rich.live import Live

    with Live(draw(state, out.width), console=out, auto_refresh=False) as live:
        while state.state == "running":
            time.sleep(READ_EVERY_S)
            state = snapshot(run)
            live.update(draw(state, out.width), refresh=True)
