"""README names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

from rstar2.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_link_to_a_file_leads_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_nothing_is_left_to_be_filled_in() -> None:
    assert re.findall(r"\b[A-Z]+_(?:TABLE|FIGURE|HERE)\b", README) == []


def test_every_verb_is_named_and_no_other() -> None:
    known = {verb for verbs in VERBS.values() for verb in verbs}
    code = re.findall(r"`([^`\n]+)`", README) + re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
    named = {verb for text in code for verb in re.findall(r"(?:^|\n)rstar2 +([a-z]+)\b", text)}
    assert named <= known, "a verb that does not exist"
    assert known - named == {"runs"}, "`runs list|show` stands beside `report`, without its program's name"
