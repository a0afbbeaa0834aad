"""`rstar2 watch`: how a training run goes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.common import AsJson, examples, out

EPILOG = examples(
    ("follow a run in another terminal or on another machine", "rstar2 watch runs/demo"),
    ("only one stage of it", "rstar2 watch runs/rl/stage1"),
    ("print its steps as JSON, for a script", "rstar2 watch runs/rl --json"),
)

READ_EVERY_S = 2.0
Folder = Annotated[Path, typer.Argument(help="The folder of a run, or of a stage in it.", metavar="RUN")]


def command(run: Folder, as_json: AsJson = False) -> None:
    """Follow a training run: rewards, failed calls, lengths, entropy, the judge, alarms.

    Reads only the files in the run's folder, so the run may be on any machine. Ends when the run ends; Ctrl-C ends it
    earlier and does not affect the run. If the output is not a terminal, it shows the run's current state once.
    """
    from rstar2.watch.snapshot import snapshot
    from rstar2.watch.view import draw

    shown = snapshot(run)
    if as_json:
        typer.echo(json.dumps(shown.record(), indent=2))
        return
    if not out.is_terminal or shown.state != "running":
        out.print(draw(shown, out.width))
        return
    from rich.live import Live

    with Live(draw(shown, out.width), console=out, auto_refresh=False) as live:
        while shown.state == "running":
            time.sleep(READ_EVERY_S)
            shown = snapshot(run)
            live.update(draw(shown, out.width), refresh=True)
