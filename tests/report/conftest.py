"""The browser that the tests of the report page share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.report.browser import Browser, open_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as new_browser:
        yield new_browser
