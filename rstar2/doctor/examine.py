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
    """All findings. Raises UserError if this package is not installed, because then nothing says what it needs."""
    try:
        metadata.version("rstar2")
    except metadata.PackageNotFoundError as error:
        raise UserError(
            "rstar2 is on the Python path but not installed", install_command(software.LAPTOP)
        ) from error
    return [
        software.python(),
        hardware.processors(),
        hardware.memory(),
        hardware.shared_memory(),
        hardware.open_files(),
        hardware.disk(),
        hub_cache(),
        hardware.gpus(),
        *software.installed_extras(),
        *_checked("vLLM", software.vllm, "serve"),
        *_checked("Redis or Valkey", software.redis_server, "judge"),
        isolation.namespaces(),
        isolation.landlock(),
        isolation.seccomp(),
        *harness_environments(),
    ]


def _checked(name: str, check: Callable[[], Finding], verb: str) -> Iterator[Finding]:
    """The finding of a check that needs packages of an extra; without them, that it was not made.

    The command that is named installs what `verb` needs, which includes them.
    """
    try:
        yield check()
    except ModuleNotFoundError as error:
        found = f"not checked: {error.name} is not installed"
        fix = f"Checked once {error.name} is installed, which `rstar2 {verb}` needs."
        commands = tuple(installation_for(error.name or "", [verb]).splitlines())
        yield Finding(name, found, "missing", False, fix, commands)


def harness_environments() -> list[Finding]:
    """The environments of benchmark harnesses that were made on this machine.

    One that was never made is left out: only its benchmarks need it. So are all if no benchmark can run here.
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
        name, wrong = f"harness {harness.name}", fault(harness)
        if wrong is None:
            findings.append(Finding(name, ", ".join(harness.packages), "ok", False))
            continue
        fix = f"Needed only for {', '.join(harness.benchmarks)}."
        findings.append(Finding(name, wrong, "missing", False, fix, (harness.command,)))
    return findings
