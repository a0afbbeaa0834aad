"""Tests that pages agree with the repository: links have targets, and generated pages are current."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MENU = ROOT / "docs" / "site" / "menu.md"
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", ".github/**/*.md")
    for page in ROOT.glob(pattern)
    if page != MENU
)

_FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)[ #]*$", re.MULTILINE)


def _prose(page: Path) -> str:
    """Returns a page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and the site's generator create them."""
    titles = [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(_prose(page))
    ]
    anchor_counts: Counter[str] = Counter()
    anchors = set()
    for title in titles:
        anchors.add(f"{title}-{anchor_counts[title]}" if anchor_counts[title] else title)
        anchor_counts[title] += 1
    return anchors


def _broken(page: Path) -> list[str]:
    """Returns the links of a page to files or headings that do not exist. Web addresses are not fetched."""
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


def test_every_page_can_be_reached_from_the_index() -> None:
    """Every page is in the site's menu. The pages in docs/ are also in the index."""
    index = ROOT / "docs" / "index.md"
    entries = re.findall(r"^(?:[^:`\n]*<)?([^:`<>\n]+)>?$", MENU.read_text(encoding="utf-8"), re.MULTILINE)
    listed_pages = {(index.parent / f"{entry}.md").resolve() for entry in entries}
    assert {page for page in PAGES if ".github" not in page.parts} == listed_pages | {index}
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(_prose(index))}
    assert {page for page in PAGES if page.parent == index.parent} - linked == {index}


def test_no_command_has_a_placeholder() -> None:
    """Users copy commands, so a command must contain no placeholders. Values that differ between users, such as the
    address of a package index, belong in the text."""
    placeholders = {
        str(page.relative_to(ROOT)): matches
        for page in PAGES
        for block in _FENCE.finditer(page.read_text(encoding="utf-8"))
        if block[0].startswith(("```\n", "```bash"))
        if (matches := re.findall(r"<\w[^<>\n]* [^<>\n]*>|/path/to\b|\bTODO\b", block[0]))
    }
    assert placeholders == {}


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    target_names = {
        target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))
    }
    assert target_names - targets == set()


@pytest.mark.parametrize("name", ["cli", "recipe", "python"])
def test_a_generated_page_is_current(name: str) -> None:
    generator = runpy.run_path(str(ROOT / f"docs/generators/{name}_reference.py"), run_name=name)
    page = (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
    assert page == generator["reference"](), f"run: python docs/generators/{name}_reference.py"


def test_every_recipe_key_is_described() -> None:
    generator = runpy.run_path(str(ROOT / "docs/generators/recipe_reference.py"), run_name="recipe_reference")
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", generator["reference"](), re.MULTILINE)
    assert rows
    assert [key for key, meaning in rows if not meaning] == []


_CODE_PATH = re.compile(
    r"`((?:rstar2|tests|recipes|examples|benchmarks|docs|deploy)/(?:[\w./-]*(?:/|\.\w+))?)(?::([\w.]+))?`"
)
"""Matches a folder, a file, or `file:name`. It does not match metrics such as `rstar2/lost_calls`."""


def _names(path: Path) -> set[str]:
    """Returns the names that a module defines: functions, classes, methods as `Class.method`, and assigned names."""
    names = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_function_that_is_named_exists(page: Path) -> None:
    """Checks `path` and `path:name` in code font on any page except the changelog, which describes the past."""
    paths_named = [] if page.name == "CHANGELOG.md" else _CODE_PATH.findall(page.read_text(encoding="utf-8"))
    files = {path for path, _ in paths_named}
    assert {path for path in files if not (ROOT / path).exists()} == set()
    missing = [f"{path}:{name}" for path, name in paths_named if name and name not in _names(ROOT / path)]
    assert missing == []


def test_every_row_of_the_comparison_with_the_paper_has_a_test() -> None:
    def rows(page: str) -> dict[str, str]:
        lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
        cells = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in lines if re.match(r"\| [^|*]", line)]
        return {row[0]: row[-1] for row in cells}

    method = (ROOT / "docs/fidelity.md").read_text(encoding="utf-8").partition("| **Training data**")[0]
    tests = rows("fidelity-tests.md")
    for row in re.findall(r"^\| ([^|*]+?) \|", method, re.MULTILINE):
        assert re.search(r"`tests/[\w/]+\.py:test_\w+`", tests[row]), row
