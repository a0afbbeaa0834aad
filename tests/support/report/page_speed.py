"""Measures a report page in Chromium; `benchmarks/report_page.py` runs this file with the page as its argument."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from support.report.browser import open_browser
from support.report.chromium import HINT, find_chromium
from support.report.report_page import open_page, search_for, texts


def show_browser(page: Path) -> None:
    """Print how long Chromium takes to open the page, to filter and search its traces, and to show the longest
    trace."""
    with open_browser() as browser:
        started = time.perf_counter()
        open_page(browser, page.as_uri())
        print(f"open, until the first trace is drawn: {time.perf_counter() - started:.2f} s")
        started = time.perf_counter()
        browser.run(
            "[...document.querySelectorAll('.chips button')]"
            ".find((chip) => chip.innerText.startsWith('wrong')).click()"
        )
        print(f"filter by verdict: {time.perf_counter() - started:.3f} s, {texts(browser, '.count')[0]!r}")
        started = time.perf_counter()
        browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
        browser.wait("document.querySelectorAll('.row')[1].getAttribute('aria-current') === 'true'")
        browser.wait("document.querySelector('.trace .sample').innerText.includes('sample 3')")
        print(f"next trace: {time.perf_counter() - started:.3f} s")
        formulas = browser.run("return document.querySelectorAll('.trace math').length")
        print(f"formulas drawn in it: {formulas}; errors: {browser.errors()}")
        started = time.perf_counter()
        search_for(browser, "no trace says this")
        browser.wait("!document.querySelector('.count').innerText.includes('searched')")
        print(f"search in the whole text of all traces: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    if find_chromium():
        show_browser(Path(sys.argv[1]))
    else:
        print(HINT)
