"""Helpers for tests of a report page in a browser."""

from __future__ import annotations

import json
from pathlib import Path

from support.report.browser import Browser

from rstar2.report import write_report


def open_report(browser: Browser, run: Path) -> None:
    """Write the report page of a run, and open it."""
    open_page(browser, write_report(run).as_uri())


def open_page(browser: Browser, address: str) -> None:
    """Open a page, and wait until everything that needs no click is visible."""
    browser.open(address)
    browser.wait("document.body.dataset.ready")
    await_drawing(browser)


def await_drawing(browser: Browser) -> None:
    """Wait until all plots and the selected trace are drawn, which happens after the rest of the page."""
    browser.wait(
        "[...document.querySelectorAll('.plots svg')].every((svg) => svg.children.length || !svg.checkVisibility())"
    )
    browser.wait(
        "!document.querySelector('.row[aria-current=true]') || document.querySelector('.trace .problem')"
    )


def search_for(browser: Browser, words: str) -> None:
    """Type words into the search box of the list, without waiting for results."""
    browser.run(
        "const input = document.querySelector('.filters input'); input.value = arguments[0]; "
        "input.dispatchEvent(new Event('input'))",
        words,
    )


def texts(browser: Browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText)"
    return [str(text) for text in browser.run(script, selector)]


def click(browser: Browser, selector: str, words: str = "") -> None:
    """Wait for an element of the selector that contains these words, and click on the first one."""
    element = (
        f"[...document.querySelectorAll({json.dumps(selector)})].find((node) => "
        f"!{json.dumps(words)} || node.innerText?.includes({json.dumps(words)}))"
    )
    browser.wait(element)
    browser.run(f"{element}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")


def all_tooltips(browser: Browser) -> list[str]:
    return list(
        browser.run(
            "return [...document.querySelectorAll('.hit, circle, .range, .card')].map((node) => {"
            "const tip = document.getElementById('tip'); tip.textContent = ' '; "
            "node.dispatchEvent(new PointerEvent('pointermove')); return tip.textContent})"
        )
    )
