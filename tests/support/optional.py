"""Tests of parts that need an optional package."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Return a marker that skips tests if a package of the `laptop` extra is not installed.

    Unlike with importorskip, collecting the tests does not import the package.
    """
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed: pip install 'rstar2[laptop]'"
    )
