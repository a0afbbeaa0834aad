"""Draws docs/pictures/chat.svg: a real chat with the model of a demo run, as the terminal shows it.

python docs/generators/chat_picture.py runs/demo
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "tests"))
QUESTION = "Find the digit sum of (a * b)^(a + b), where a = 55 and b = 43."
COLUMNS = 80


def main(run: str) -> None:
    """Ask the model of `run` the question, and write the terminal's content as SVG."""
    from support.terminal import CTRL_D, terminal

    with terminal("chat", "--run", run, "--seed", "1", columns=COLUMNS, lines=48) as person:
        person.types(QUESTION)
        person.shows("tokens/s")
        person.comes_to_the_prompt()
        rows = person.styled_rows()
        person.press(CTRL_D)
        person.ends_with(0)
    first = next(number for number, row in enumerate(rows) if row.plain.startswith("›"))
    last = max(number for number, row in enumerate(rows) if "tokens/s" in row.plain)
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w"))  # noqa: SIM115
    for row in [Text("$ rstar2 chat --run runs/demo", "bold"), Text(), *rows[first : last + 1]]:
        console.print(row)
    drawn = console.export_svg(title="rstar2 chat")
    # Without this, the picture would load fonts from the web.
    (DOCS / "pictures" / "chat.svg").write_text(
        re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1])
