"""Runs all checks of `rstar2 doctor`, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata

from rstar2.doctor import hardware, isolation, software
from rstar2.doctor.finding import Finding
from rstar2.doctor.hub import hub_cache
from rstar2.errors import UserError
from rstar2.install import install_command, installation_for


def examine() -> list[Finding]:
    """Run all checks. Raises UserError if this package is not installed, because the list of requirements comes from
    the metadata of the installed package.
    """
    try:
        metadata.version("rstar2")
    except metadata.PackageNotFoundError as error:
        raise UserError(
            "rstar2 is on the Python path but not installed", install_command(software.LAPTOP)
        ) from error
    gpus = hardware.gpus()
    return [
        software.python(),
        hardware.processors(),
        hardware.memory(),
        hardware.shared_memory(),
        hardware.open_files(),
        hardware.disk(),
        hub_cache(),
        gpus,
        *software.installed_extras(has_gpus=gpus.state == "ok"),
        *_checked("vLLM", software.vllm, "serve"),
        *_checked("Redis or Valkey", software.redis_server, "judge"),
        isolation.namespaces(),
        isolation.landlock(),
        isolation.seccomp(),
        *harness_environments(),
    ]


def _checked(name: str, check: Callable[[], Finding], verb: str) -> Iterator[Finding]:
    """Yield the result of a check that needs the packages of an optional extra.

    If a package is missing, the result says that the check was not made. The result's command installs the packages
    that `verb` needs, which include the missing package.
    """
    try:
        yield check()
    except ModuleNotFoundError as error:
        result = f"not checked: {error.name} is not installed"
        fix = f"Install {error.name}, which `rstar2 {verb}` needs, and check again."
        commands = tuple(installation_for(error.name or "", [verb]).splitlines())
        yield Finding(name, result, "missing", False, fix, commands)


def harness_environments() -> list[Finding]:
    """Check the environments of benchmark harnesses that were made on this machine.

    An environment that was never made is left out, because only its benchmarks need it. If no benchmark can run on this
    machine, all environments are left out.
    """
    try:
        from rstar2.eval.benchmarks import harnesses
        from rstar2.eval.harnesses.environment import fault
    except ModuleNotFoundError:
        return []
    findings = []
    for harness in harnesses():
        if not harness.folder.is_dir():
            continue
        name, problem = f"harness {harness.name}", fault(harness)
        if problem is None:
            findings.append(Finding(name, ", ".join(harness.packages), "ok", False))
            continue
        fix = f"Needed only for {', '.join(harness.benchmarks)}."
        findings.append(Finding(name, problem, "missing", False, fix, (harness.command,)))
    return findings
