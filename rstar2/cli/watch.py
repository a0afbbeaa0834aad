"""`rstar2 watch`: how a training run goes."""

from __future__ import annotations

import json
import time

import typer

from rstar2.cli.common import AsJson, RunArgument, examples, out

EPILOG = examples(
    ("follow a run; it may run in another terminal, or on another machine", "rstar2 watch runs/demo"),
    ("its steps, for a script", "rstar2 watch runs/rl --json"),
)

READ_EVERY_S = 2.0


def command(run: RunArgument, as_json: AsJson = False) -> None:
    """Follow a training run: rewards, failed calls, lengths, entropy, the judge, alarms.

    Only the files of the run's folder are read, so it may run anywhere. Ends with the run; Ctrl-C ends it earlier and
    leaves the run alone. Where the output is no terminal, the run is shown once as it stands.
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
