"""The command line. Each verb has its own file, and heavy packages are imported only inside commands."""

from __future__ import annotations

import gc
import signal
import sys

import typer

from rstar2 import __version__
from rstar2.cli.verbs import VerbGroup
from rstar2.errors import Failure, RStarError
from rstar2.terminal import write_readably

app = typer.Typer(
    name="rstar2",
    help="Train, serve and measure a small model that thinks in Python.",
    cls=VerbGroup,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"rstar2 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def _exit_on_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run the command line.

    The exit code is 2 after a user error, 1 after a failure, and 130 after Ctrl-C. `rstar2.train.stopping` has the exit
    codes of a training run that a scheduler stopped.
    """
    # SIGTERM of a scheduler ends a run in the same way as Ctrl-C: child processes are stopped and the status is
    # written. SIGHUP of a closed terminal does the same, unless nohup ignores it.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _exit_on_signal)
    write_readably()
    # For speed: the imports of torch and transformers make hundreds of thousands of objects, and nearly all of them
    # stay. Fewer collections do no harm later, because objects are freed without one unless they form cycles.
    gc.set_threshold(20_000, 20, 100)
    try:
        app(prog_name="rstar2")
    except RStarError as error:
        _explain(error)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "rstar2"):
            raise
        from rstar2.install import NotInstalled, installation_for

        _explain(NotInstalled([package], installation_for(package, sys.argv[1:])))
        sys.exit(NotInstalled.exit_code)
    except OSError as error:
        from rstar2.files import DISK_ERRORS, os_failure

        if error.errno not in DISK_ERRORS:
            raise
        _explain(os_failure(error))
        sys.exit(Failure.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _explain(error: RStarError) -> None:
    from rich.markup import escape

    from rstar2.cli.common import err
    from rstar2.terminal import between_words

    message = between_words(err, f"error: {error.message}").removeprefix("error:")
    err.print(f"[bold red]error:[/]{escape(message)}", soft_wrap=True)
    # A hint may hold a command, which a line break would damage.
    if error.hint:
        err.print(f"[dim]{escape(error.hint)}[/dim]", soft_wrap=True)
