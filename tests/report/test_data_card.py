"""The report page of prepared data: its data card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import rstar2
from support.report.browser import Browser
from support.report.report_page import all_tooltips, await_drawing, open_report, texts

pytestmark = pytest.mark.slow

CONTEST = "Every morning Aya goes for a nine-kilometre walk and stops at a coffee shop."
PROBLEMS = [
    ("What is one plus one?", "2"),
    ("How long is the diagonal <b>x</b>?", "\\sqrt{2}"),
    ("Which number is meant here?", "1"),
    ("Which number is meant here?", "2"),
    (f"Long ago: {CONTEST} How far?", "9"),
]


@pytest.fixture(scope="module")
def prepared_set(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    root = tmp_path_factory.mktemp("data")
    rows = [json.dumps({"problem": text, "answer": answer}) for text, answer in PROBLEMS]
    (root / "mine.jsonl").write_text("\n".join([*rows, '{"problem": null, "answer": "1"}', ""]))
    (root / "contest.jsonl").write_text(json.dumps({"problem": CONTEST, "answer": "204"}) + "\n")
    tokenizer.save_pretrained(root / "model")
    (root / "model" / "config.json").write_text("{}")
    words = ("--against", root / "contest.jsonl", "--tokenizer", root / "model", "--output", root / "rl")
    result = rstar2("data", "prepare", root / "mine.jsonl", *words)
    assert result.code == 0, result.stderr
    return root / "rl"


def test_the_page_shows_counts_reasons_examples_licences_and_lengths(
    browser: Browser, prepared_set: Path
) -> None:
    open_report(browser, prepared_set)
    assert texts(browser, "h1") == ["rl: mine"]
    assert texts(browser, ".card b")[:4] == ["1", "6", "1", "4"]
    (source,) = texts(browser, ".panel.data:nth-of-type(1) tbody tr")
    assert source.split("\t")[:6] == ["mine", "math", "6", "1 malformed", "1", "1"]
    steps = [row.split("\t") for row in texts(browser, ".panel.data:nth-of-type(2) tbody tr")]
    dropped = {name: count for name, count, _ in steps if count != "0"}
    assert dropped == {"contradicted": "2", "integer": "1", "grams": "1"}
    notes = "\n".join(texts(browser, ".data li"))
    assert json.loads((prepared_set / "card.json").read_text())["sha256"] in notes
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    examples = "\n".join(texts(browser, ".dropped"))
    assert "answers: 1 and 2" in examples
    assert "How long is the diagonal <b>x</b>?" in examples
    assert "every morning aya goes for a nine kilometre" in "\n".join(texts(browser, "details table"))
    await_drawing(browser)
    assert any(tip.endswith("1 problems") for tip in all_tooltips(browser))
    assert browser.errors() == []


def test_the_page_fits_a_telephone(browser: Browser, prepared_set: Path) -> None:
    browser.resize(390, 844)
    open_report(browser, prepared_set)
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.devtools("Emulation.clearDeviceMetricsOverride")


def test_a_damaged_card_is_named(prepared_set: Path, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{")
    result = rstar2("report", tmp_path)
    assert (result.code, f"no prepared data at {tmp_path}" in result.stderr) == (2, True)
