"""`rstar2 report`: writes the results of a run, or the card of prepared data, as one static page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.common import RunArgument, examples, out, write_page

EPILOG = examples(
    ("the page of a run, in its folder", "rstar2 report runs/demo"),
    ("the data card of prepared data", "rstar2 report data/rl"),
    ("write the page to another file", "rstar2 report runs/night --output night.html"),
)


def command(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; by default report.html in the folder."),
    ] = None,
) -> None:
    """Make one static page of a run, or of prepared data.

    The page has the numbers, the plots and every trace, and needs no network.
    """
    page = write_page(run, output)
    out.print(f"{page} ({page.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True)
