"""One sandbox of each tier for the whole folder, where this machine offers it; the report says which."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.ordinary_user import OrdinaryUser, ThisUser

from rstar2.errors import Failure
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation

_obtained: dict[str, str] = {}


def _sandbox(root: Path, tier: Isolation) -> Iterator[Sandbox]:
    """A sandbox with the bare zygote only; others start when a test's program first needs them."""
    sandbox = Sandbox(root, tier=tier, minimum=tier)
    try:
        sandbox.start()
    except Failure as error:
        _obtained[tier] = f"not here: {error.message}"
        pytest.skip(f"this machine does not offer the {tier} tier: {error.message}")
    _obtained[tier] = "; ".join(sandbox.exceptions()) or "no exceptions"
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    yield from _sandbox(tmp_path_factory.mktemp("strict"), "strict")


@pytest.fixture(scope="session")
def landlock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    yield from _sandbox(tmp_path_factory.mktemp("landlock"), "landlock")


@pytest.fixture(scope="session")
def _users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Isolation], OrdinaryUser]]:
    """Makes a worker of an ordinary user, once for each tier."""
    made: dict[Isolation, OrdinaryUser] = {}

    def user(tier: Isolation) -> OrdinaryUser:
        if os.geteuid() != 0:
            pytest.skip("this is an ordinary user already")
        if tier not in made:
            try:
                made[tier] = OrdinaryUser(tmp_path_factory.mktemp("user"), tier)
            except Failure as error:
                pytest.skip(f"this machine does not offer users the {tier} tier: {error.message}")
        return made[tier]

    yield user
    for worker in made.values():
        worker.close()


@pytest.fixture(params=["strict", "landlock", "strict as a user", "landlock as a user"])
def worker(
    request: pytest.FixtureRequest, _users: Callable[[Isolation], OrdinaryUser]
) -> ThisUser | OrdinaryUser:
    """A worker of each tier, as this user and, where this is root, as an ordinary one."""
    tier = request.param.split()[0]
    return _users(tier) if request.param.endswith("user") else ThisUser(request.getfixturevalue(tier))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for tier, what in _obtained.items():
        terminalreporter.write_line(f"sandbox tier {tier}: {what}")
