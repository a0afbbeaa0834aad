"""The command that installs an extra of this package, and which extra has a package that is missing."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import rstar2

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_COMMANDS = {
    **dict.fromkeys(("demo", "sft", "train"), "laptop"),
    "grade": "grade",
    "judge": "judge",
    "judge mcp": "mcp",
}
"""The extra that is enough for a verb, or for one of its commands. For the other verbs it is `eval`."""
_MODULES = {
    "ray": "verl",
    "tensordict": "verl",
    "hydra": "verl",
    "omegaconf": "verl",
    "tokenizers": "transformers",
}
"""Modules of packages that no extra names, and the package that brings them."""


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


def installation_for(module: str, command: Sequence[str] = ()) -> str:
    """What to type to get a missing module.

    It names the extra of the command if that has the module, so that one installation is enough for the command.
    Otherwise it names the smallest extra that has it.

    Args:
        module: as in `import MODULE`; what follows a point does not count.
        command: the words of the command that needs it, from its verb on.
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
    """What each extra for users installs, by the normal names of the packages.

    The packages of the extras that it includes are among them, and those that every installation has are not. This is
    what pyproject.toml says, as the installed package repeats it. Empty if it is not installed but only on the Python
    path.
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
            if "vllm" in each.extras:  # VERL's, which brings both
                yield from (("vllm", Requirement("vllm")), ("torch", Requirement("torch")))

    provided = about.get_all("Provides-Extra") or []
    return {extra: dict(of(extra)) for extra in provided if extra not in ("dev", "docs")}


def _normal(name: str) -> str:
    """A package's or module's name without what may differ between the two, as for TransferQueue's transfer_queue."""
    return re.sub(r"[-_.]", "", name).lower()
