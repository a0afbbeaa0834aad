"""Tests that a model of the demo correctly answers the questions that docs/chat.md asks it.

RSTAR2_DEMO names a finished run of the demo. If it is not set, the test runs the demo as `rstar2 demo` does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from support.commands import rstar2
from support.optional import needs
from support.train.demo_run import finish, start

from rstar2.data.builtin import ANSWER_DIGITS, FAMILIES
from rstar2.judge.service.start import JudgeHandle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "chat.md"
LINES = re.findall(
    r"^(?:cat problem\.txt \| )?rstar2 chat --run runs/demo(?: .*)?$", PAGE.read_text("utf-8"), re.M
)
ASKING = [line for line in LINES if "--prompt" in line or line.startswith("cat ")]
[QUESTION] = {shlex.split(line)[-1] for line in ASKING if "--prompt" in line}


def test_the_page_asks_what_the_demo_teaches() -> None:
    numbers = {name: int(value) for name, value in re.findall(r"\b(a|b) = (\d+)", QUESTION)}
    product = FAMILIES["product"]
    assert f"Find {product.ask}, where a = {numbers['a']} and b = {numbers['b']}." == QUESTION
    assert len(str(numbers["a"] * numbers["b"])) == ANSWER_DIGITS
    assert len(ASKING) >= 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that contains `runs/demo`."""
    folder = tmp_path_factory.mktemp("documented")
    (folder / "runs").mkdir()
    demo_folder = os.environ.get("RSTAR2_DEMO")
    if demo_folder:
        (folder / "runs" / "demo").symlink_to(Path(demo_folder).resolve())
    else:
        run = folder / "runs" / "demo"
        finish(start(run, []), run)
    (folder / "problem.txt").write_text(f"{QUESTION}\n")
    return folder


@pytest.mark.long
@pytest.mark.timeout(10800)
@needs("verl")
@pytest.mark.parametrize("line", ASKING)
def test_the_demos_model_answers_the_documented_question(
    line: str, folder: Path, judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = shlex.split(line)
    chat_words = words[words.index("chat") :]
    result = rstar2(*chat_words, "--judge", judge.url, stdin=QUESTION if words[0] == "cat" else "")
    assert result.code == 0, result.stderr
    a, b = map(int, re.findall(r"= (\d+)", QUESTION))
    answer = json.loads(result.stdout)["answer"] if "--json" in words else result.stdout
    assert f"\\boxed{{{a * b}}}" in answer
