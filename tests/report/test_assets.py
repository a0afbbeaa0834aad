"""Tests of the report page's source code, for rules that a formatter does not enforce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ASSETS = Path(__file__).resolve().parents[2] / "rstar2" / "report" / "assets"
FUNCTION = re.compile(
    r"^(?P<indent> *)(?:async )?(?:function )?[\w$]+\(.*\{\n(?:.*\n)*?(?P=indent)\}", re.MULTILINE
)


OUR_FILES = sorted(path for path in ASSETS.rglob("*.*") if path.parent.name != "vendor")


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda path: path.name)
def test_lines_and_functions_of_the_page_fit_a_screen(path: Path) -> None:
    text = path.read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    functions = [match.group() for match in FUNCTION.finditer(text)]
    assert [function.splitlines()[0] for function in functions if function.count("\n") >= 60] == []
    assert functions or path.suffix != ".js"
