"""One strict sandbox for the whole folder, where this machine gives one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2.errors import Failure
from rstar2.judge.sandbox.host import Sandbox


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    sandbox = Sandbox(Path(tmp_path_factory.mktemp("strict")), tier="strict")
    try:
        sandbox.start()
    except Failure as error:
        pytest.skip(f"this machine gives no strict tier: {error.message}")
    sandbox.warm()
    yield sandbox
    sandbox.close()
