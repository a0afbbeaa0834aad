"""How Sphinx builds the site: `make docs` writes it to build/docs.

The source folder is the repository itself, so that README and its neighbours are pages of the site and
every link is the same on the site as in the repository. Each link to a page, a heading or a file is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MENU = Path(__file__).parent / "menu.md"
"""The site's menu. It is not in docs/index.md because other viewers of Markdown show it as code."""

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

# The deepest headings that a link may lead to.
myst_heading_anchors = 4


def setup(app: Sphinx) -> None:
    """Append the menu to the landing page when it is read."""
    app.connect("source-read", _with_menu)


def _with_menu(app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        app.env.note_dependency(str(MENU))
        source[0] += "\n" + MENU.read_text(encoding="utf-8")
