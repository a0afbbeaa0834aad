"""Commands that install the extras of this package, for messages about missing packages."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import rstar2
from rstar2.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NOT_INSTALLED = "packages that this command needs are not installed: "
"""The beginning of the message of `NotInstalled`. The names of the packages follow, separated by commas."""
_COMMANDS = {
    **dict.fromkeys(("demo", "sft", "train"), "laptop"),
    "grade": "grade",
    "judge": "judge",
    "judge mcp": "mcp",
}
"""Dict from a verb, or a verb and its subcommand, to the extra that it needs. Verbs that are not listed need the extra
`eval`.
"""
_MODULES = {
    "ray": "verl",
    "tensordict": "verl",
    "hydra": "verl",
    "omegaconf": "verl",
    "tokenizers": "transformers",
}
"""Dict from a module that is in no extra to a package that is in an extra and depends on the module.
"""


class NotInstalled(UserError):
    """Packages that a command needs are not installed.

    Args:
        modules: the names of the missing modules.
        hint: the command that installs them, see `installation_for`.
    """

    def __init__(self, modules: Sequence[str], hint: str) -> None:
        super().__init__(f"{NOT_INSTALLED}{', '.join(modules)}", hint)


def pip_command(*words: str) -> str:
    """Returns the command `pip install WORDS` for this interpreter."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this environment. The command works in every folder."""
    package = Path(rstar2.__file__).parent
    root = package.parent
    # A wheel contains these files with the tested versions too.
    lock = next(
        (file for folder in (package, root) if (file := folder / "constraints" / f"{extra}.txt").is_file()),
        None,
    )
    tested = ["-c", str(lock)] if lock else []
    if (root / "pyproject.toml").is_file():
        return pip_command(*tested, "-e", f"{root}[{extra}]")
    return pip_command(*tested, f"rstar2[{extra}]")


def installation_for(module: str, command: Sequence[str] = ()) -> str:
    """Returns the command that installs a missing module.

    The returned command installs the extra that the user's command needs, so that nothing else will be missing. If that
    extra does not contain the module, the command installs the smallest extra that contains it.

    Args:
        module: the name in `import MODULE`. Only the part before the first dot counts.
        command: the words of the user's command, beginning with the verb.
    """
    packages = extras()
    top = module.partition(".")[0]
    name = _normal(_MODULES.get(top, top))
    having = sorted(
        (extra for extra, names in packages.items() if name in names), key=lambda each: len(packages[each])
    )
    words = [" ".join(command[:2]), *command[:1]]
    extra = next((_COMMANDS[each] for each in words if each in _COMMANDS), "eval")
    if having and extra not in having:
        extra = having[0]
    if extra == "laptop" and (not having or "gpu" in having):
        return f"Without a GPU: {install_command('laptop')}\nWith one: {install_command('gpu')}"
    return install_command(extra)


def extras() -> dict[str, dict[str, Requirement]]:
    """Returns the packages of each extra that is meant for users. The keys are normalized names of packages.

    Packages of included extras are listed too. Packages of the base installation are not listed. The lists come from
    the metadata of the installed package, which were made from pyproject.toml. The lists are empty if the package is
    only on the Python path.
    """
    from packaging.requirements import Requirement

    try:
        about = metadata.metadata("rstar2")
    except metadata.PackageNotFoundError:
        return {}
    required = [Requirement(text) for text in about.get_all("Requires-Dist") or []]

    def of(extra: str) -> Iterator[tuple[str, Requirement]]:
        for each in required:
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                continue
            if not each.marker.evaluate({"extra": extra}):
                continue
            if _normal(each.name) == "rstar2":
                for included in each.extras:
                    yield from of(included)
                continue
            yield _normal(each.name), each
            if "vllm" in each.extras:  # VERL's extra `vllm` installs vLLM and torch
                yield from (("vllm", Requirement("vllm")), ("torch", Requirement("torch")))

    provided = about.get_all("Provides-Extra") or []
    return {extra: dict(of(extra)) for extra in provided if extra not in ("dev", "docs")}


def _normal(name: str) -> str:
    """Returns a name that is the same for a package and its module, such as TransferQueue and transfer_queue."""
    return re.sub(r"[-_.]", "", name).lower()
