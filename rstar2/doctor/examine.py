"""Runs all checks of `rstar2 doctor`, in the order in which they are shown."""

from __future__ import annotations

from importlib import metadata

from rstar2.doctor import hardware, harnesses, isolation, software
from rstar2.doctor.finding import Finding
from rstar2.errors import UserError
from rstar2.install import install_command


def examine() -> list[Finding]:
    """The results; a UserError where this package is not installed, so that nothing says what it needs."""
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
        *harnesses.environments(),
    ]
