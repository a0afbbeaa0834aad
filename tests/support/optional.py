"""Tests of parts that need an optional package."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

_REMEDY = {"torch": "pip install 'rstar2[laptop]'", "verl": "pip install 'rstar2[laptop]'"}


def needs(package: str) -> pytest.MarkDecorator:
    """Skips where `package` is not installed; unlike importorskip, collecting the tests does not import it."""
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed: {_REMEDY[package]}"
    )
