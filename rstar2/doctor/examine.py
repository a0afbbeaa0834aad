"""Runs all checks of `rstar2 doctor`, in the order in which they are shown."""

from __future__ import annotations

from importlib import metadata

from rstar2.doctor import hardware, isolation, software
from rstar2.doctor.finding import Finding
from rstar2.errors import UserError
from rstar2.eval.benchmarks import harnesses
from rstar2.eval.harnesses.environment import fault
from rstar2.install import install_command


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
        hardware.disk(),
        hardware.gpus(),
        *software.training_packages(),
        software.vllm(),
        software.redis_server(),
        isolation.namespaces(),
        isolation.landlock(),
        isolation.seccomp(),
        *harness_environments(),
    ]


def harness_environments() -> list[Finding]:
    """The environments of benchmark harnesses that were made on this machine.

    One that was never made is left out: only its benchmarks need it.
    """
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
