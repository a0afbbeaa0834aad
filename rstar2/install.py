"""The command that installs an extra of this package, and which extra has a package that is missing."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import rstar2

_TRAINING = ("laptop", "gpu")
_VERBS = {
    **dict.fromkeys(("demo", "sft", "train"), "laptop"),
    **dict.fromkeys(("analyze", "chat", "data", "eval", "plan", "report", "runs", "serve", "watch"), "eval"),
    "grade": "grade",
    "judge": "judge",
}
"""The extra that is enough for the common uses of a verb."""
_MODULES = {"ray": "verl", "tensordict": "verl", "hydra": "verl", "omegaconf": "verl", "tokenizers": "transformers"}
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


def installation_for(module: str, verb: str = "") -> str:
    """What to type to get a missing module.

    It names the extra of the verb if that has the module, so that one installation is enough for the verb. Otherwise it
    names the smallest extra that has it. The result is empty if no extra does.

    Args:
        module: its top-level name, as in `import NAME`.
        verb: the command that needs it.
    """
    packages = extras()
    name = _normal(_MODULES.get(module, module))
    having = [extra for extra, names in packages.items() if name in names]
    if not having:
        return ""
    extra = _VERBS.get(verb, "")
    if extra not in having:
        extra = min(having, key=lambda each: len(packages[each]))
    if extra in _TRAINING:
        return f"Without a GPU: {install_command('laptop')}\nWith one: {install_command('gpu')}"
    return install_command(extra)


def extras() -> dict[str, set[str]]:
    """The packages of each extra for users, by their normal names, those of the extras that it includes among them.

    This is what pyproject.toml says, as the installed package repeats it. Empty if it is not installed but only on the
    Python path.
    """
    from packaging.requirements import Requirement

    try:
        about = metadata.metadata("rstar2")
    except metadata.PackageNotFoundError:
        return {}
    required = [Requirement(text) for text in about.get_all("Requires-Dist") or []]

    def names(extra: str) -> Iterator[str]:
        for each in required:
            if each.marker is None or not each.marker.evaluate({"extra": extra}):
                continue
            if _normal(each.name) != "rstar2":
                yield _normal(each.name)
                if "vllm" in each.extras:  # VERL's, which asks for torch too
                    yield from ("vllm", "torch")
            for inner in each.extras if _normal(each.name) == "rstar2" else ():
                yield from names(inner)

    provided = about.get_all("Provides-Extra") or []
    return {extra: set(names(extra)) for extra in provided if extra not in ("dev", "docs")}


def _normal(name: str) -> str:
    """A package's or module's name without what may differ between the two, as for TransferQueue's transfer_queue."""
    return re.sub(r"[-_.]", "", name).lower()
