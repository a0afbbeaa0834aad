"""Writes docs/pictures/report.png: the top of a demo run's report page, as headless Chromium shows it.

python docs/generators/report_picture.py runs/demo
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "tests"))
WIDTH, HEIGHT = 1200, 915
"""Size of the picture in CSS pixels. It shows the table of phases and two rows of plots."""


def main(run: str) -> None:
    """Write the report page of `run` to a temporary folder, and take a screenshot of it."""
    from support.report.browser import open_browser
    from support.report.report_page import open_page

    from rstar2.report import write_report

    with tempfile.TemporaryDirectory() as folder, open_browser(WIDTH, HEIGHT) as browser:
        browser.resize(WIDTH, HEIGHT)
        open_page(browser, write_report(Path(run), Path(folder) / "report.html").as_uri())
        browser.screenshot(DOCS / "pictures" / "report.png")


if __name__ == "__main__":
    main(sys.argv[1])
