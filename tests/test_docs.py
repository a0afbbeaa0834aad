"""The pages are true of the repository: links lead somewhere, and what is generated is current."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")])

_FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)[ #]*$", re.MULTILINE)


def _prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site's generator make them."""
    titles = [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(_prose(page))
    ]
    seen: Counter[str] = Counter()
    anchors = set()
    for title in titles:
        anchors.add(f"{title}-{seen[title]}" if seen[title] else title)
        seen[title] += 1
    return anchors


def _broken(page: Path) -> list[str]:
    """The links of a page to files or headings that do not exist. Addresses on the web are not fetched."""
    broken = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", _prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_or_heading(page: Path) -> None:
    assert _broken(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, two\n## One, two\n"
        "[ok](page.md) [ok](#one-two) [ok](page.md#one-two-1) [ok](https://example.org/x) `[code](no.md)`\n"
        "```\n[code](no.md)\n```\n[bad](no.md) [bad](#three) [bad](page.md#one-two-2)\n"
    )
    assert _broken(page) == ["no.md", "#three", "page.md#one-two-2"]


def test_every_page_is_listed_in_the_index() -> None:
    listed = re.findall(r"```\{toctree\}\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    names = {line for block in listed for line in block.split("\n") if line and not line.startswith(":")}
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert names == pages | {"../README", "../CONTRIBUTING", "../CHANGELOG"}


def test_the_reference_of_the_command_line_is_current() -> None:
    generator = runpy.run_path(str(ROOT / "docs/generate_cli_reference.py"), run_name="cli_reference")
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert page == generator["reference"](), "run: python docs/generate_cli_reference.py"
