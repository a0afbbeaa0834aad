"""A small extra is enough for its verb: everything else that is installed here is hidden from the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed_by(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """The names of what pip installs for a requirement, that of its own package included."""
    name = _normal(requirement.name)
    for extra in ("", *requirement.extras):
        if (name, extra) not in seen:
            seen.add((name, extra))
            yield name
            for wanted in map(Requirement, metadata.requires(name) or []):
                if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                    yield from _installed_by(wanted, seen)


def _hidden(extra: str) -> set[str]:
    """The top-level modules of this environment that are not there where only an extra is installed."""
    kept = set(_installed_by(Requirement(f"rstar2[{extra}]" if extra else "rstar2"), set()))
    found = metadata.packages_distributions().items()
    return {module for module, owners in found if kept.isdisjoint(map(_normal, owners))}


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """For this interpreter and those that it starts."""
    hidden = _hidden(request.param)
    assert {"torch", "transformers", "datasets", "matplotlib"} <= hidden
    assert not hidden & {"rstar2", "typer"}
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    return {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "80"}


def _rstar2(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rstar2", *words], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("environment", ["grade"], indirect=True)
def test_rows_are_graded_with_the_extra_for_it(environment: dict[str, str], tmp_path: Path) -> None:
    rows = [
        {"gold": 3, "pred": "3"},
        {"gold": "\\frac{\\pi}{4}", "pred": "\\arctan 1"},
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = _rstar2(environment, "grade", str(source), "--verify", "--timeout", "60")
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)["verdict"] for line in ran.stdout.splitlines()] == ["correct", "correct"]
    assert "100.0%" in ran.stderr


@pytest.mark.parametrize("environment", [""], indirect=True, ids=["base"])
def test_without_the_extra_no_row_is_graded_and_one_line_says_why(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """A missing package must not become a verdict."""
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"gold": "\\frac{\\pi}{4}", "pred": "\\arctan 1"}) + "\n")
    ran = _rstar2(environment, "grade", str(source))
    assert (ran.returncode, ran.stdout) == (2, "")
    error, hint = ran.stderr.splitlines()
    assert error == "error: this command needs mpmath, which is not installed"
    assert "[grade]" in hint


@pytest.mark.parametrize("environment", ["", "judge"], indirect=True, ids=["base", "judge"])
def test_a_verb_names_the_extra_for_all_of_it(environment: dict[str, str]) -> None:
    for words, extra in ((["demo"], "laptop"), (["eval", "builtin", "--oracle"], "eval")):
        ran = _rstar2(environment, *words)
        assert (ran.returncode, f"[{extra}]" in ran.stderr) == (2, True), ran.stderr
