"""The command that installs an extra of this package, for an installed wheel and for a checkout."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import rstar2


def pip_command(*words: str) -> str:
    """`pip install WORDS`, for the interpreter that runs this."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def install_command(extra: str) -> str:
    """The command that adds an extra to the environment that runs this; it works in every folder."""
    package = Path(rstar2.__file__).parent
    root = package.parent
    # A wheel carries the tested versions of the two training stacks too.
    lock = next(
        (file for folder in (package, root) if (file := folder / "constraints" / f"{extra}.txt").is_file()),
        None,
    )
    tested = ["-c", str(lock)] if lock else []
    if (root / "pyproject.toml").is_file():
        return pip_command(*tested, "-e", f"{root}[{extra}]")
    return pip_command(*tested, f"rstar2[{extra}]")


def installation_for(verb: str) -> str:
    """What to type for all that a verb needs."""
    if verb in ("demo", "sft", "train"):
        return f"Without a GPU: {install_command('laptop')}\nWith one: {install_command('gpu')}"
    return install_command(verb if verb in ("grade", "judge") else "eval")
