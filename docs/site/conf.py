"""How Sphinx builds the site: `make docs` writes it to build/docs.

The source folder is the repository itself, so that README and its neighbours are pages of the site and
every link is the same on the site as in the repository. Each link to a page, a heading or a file is checked.
"""

from __future__ import annotations

project = "rstar2"
author = "The rstar2 developers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "docs/pictures/*", "examples/*/README.md"]
# Sphinx walks the whole source folder; these would take long.
exclude_patterns = [".*", "build", "runs", "models"]

html_theme = "furo"
html_title = "rstar2"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_extra_path = ["index.html"]

# The deepest headings that a link may lead to.
myst_heading_anchors = 4
