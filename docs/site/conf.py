"""How Sphinx builds the site: `make docs` writes it to build/docs.

The source folder is the repository itself, so that README and its neighbours are pages of the site and
every link is the same on the site as in the repository. Each link to a page, a heading or a file is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MENU = Path(__file__).parent / "menu.md"
"""The site's menu. It is not part of docs/index.md, because Markdown viewers other than this site would show it as
code."""

SHORT_CELL = 14
"""A column whose cells all have at most this many characters, such as a column of numbers, may be narrow."""

LONG_CELL = 45
"""A column with a cell of more characters has sentences or several names, and needs room for a few words a line."""

TEXT_CELL = 200
"""A column with a cell of more characters has paragraphs."""

LONG_WORD = 34
"""Longer words in code, such as names of tests, may break anywhere. Shorter ones, such as recipe keys, stay whole."""

project = "rstar2"
author = "The rstar2 developers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "docs/pictures/*", "examples/*/README.md"]
# Sphinx walks the whole source folder; these would take long.
exclude_patterns = [".*", "build", "runs", "models", "docs/site/menu.md"]

html_theme = "furo"
html_title = "rstar2"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_extra_path = ["index.html"]
html_static_path = ["style.css"]
html_css_files = ["style.css"]

# Options such as --help keep their two hyphens.
smartquotes = False

# The deepest headings that a link may lead to.
myst_heading_anchors = 4


def setup(app: Sphinx) -> None:
    """Append the menu to the landing page when it is read, and give tables and code the classes of style.css."""
    app.connect("source-read", _with_menu)
    app.connect("doctree-resolved", _with_classes)


def _with_menu(app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        app.env.note_dependency(str(MENU))
        source[0] += "\n" + MENU.read_text(encoding="utf-8")


def _with_classes(app: Sphinx, doctree: nodes.document, name: str) -> None:
    for code in doctree.findall(nodes.literal):
        if _has_long_word(code.astext()):
            code["classes"].append("long-words")
    for table in doctree.findall(nodes.table):
        rows = [list(row.findall(nodes.entry)) for row in table.findall(nodes.row)]
        for column in zip(*rows, strict=True):
            classes = _column_classes([cell.astext() for cell in column])
            for cell in column:
                cell["classes"] += classes


def _column_classes(texts: list[str]) -> list[str]:
    longest = max(map(len, texts))
    if longest <= SHORT_CELL:
        width = "short-column"
    elif longest <= LONG_CELL:
        width = "column"
    else:
        width = "long-column" if longest <= TEXT_CELL else "text-column"
    return [width, "long-words"] if any(map(_has_long_word, texts)) else [width]


def _has_long_word(text: str) -> bool:
    return any(len(word) > LONG_WORD for word in text.split())
