"""Shared sandboxes: one for each tier that this machine supports. The test report lists the tiers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.judge.ordinary_user import OrdinaryUser, ThisUser

from rstar2.errors import Failure
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation

_tier_reports: dict[str, str] = {}


def _sandbox(root: Path, tier: Isolation) -> Iterator[Sandbox]:
    """Start a sandbox with the bare zygote only. Other zygotes start when a program first needs them."""
    sandbox = Sandbox(root, tier=tier, minimum=tier)
    try:
        sandbox.start()
    except Failure as error:
        _tier_reports[tier] = f"not here: {error.message}"
        pytest.skip(f"this machine does not offer the {tier} tier: {error.message}")
    _tier_reports[tier] = "; ".join(sandbox.exceptions()) or "no exceptions"
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    yield from _sandbox(tmp_path_factory.mktemp("strict"), "strict")


@pytest.fixture(scope="session")
def landlock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    yield from _sandbox(tmp_path_factory.mktemp("landlock"), "landlock")


def _user(tier: Isolation) -> Iterator[OrdinaryUser]:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    try:
        user = OrdinaryUser(tier)
    except Failure as error:
        pytest.skip(f"this machine does not offer users the {tier} tier: {error.message}")
    yield user
    user.close()


@pytest.fixture(scope="session")
def strict_user() -> Iterator[OrdinaryUser]:
    yield from _user("strict")


@pytest.fixture(scope="session")
def landlock_user() -> Iterator[OrdinaryUser]:
    yield from _user("landlock")


@pytest.fixture(params=["strict", "landlock", "strict_user", "landlock_user"])
def worker(request: pytest.FixtureRequest) -> ThisUser | OrdinaryUser:
    """Workers of each tier, run as this user and, if this user is root, also as an ordinary user."""
    sandbox = request.getfixturevalue(request.param)
    return sandbox if isinstance(sandbox, OrdinaryUser) else ThisUser(sandbox)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for tier, report in _tier_reports.items():
        terminalreporter.write_line(f"sandbox tier {tier}: {report}")
