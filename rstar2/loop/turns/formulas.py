"""Where the LaTeX formulas in a text of a model stand."""

from __future__ import annotations

import re

_CHARACTER = r"(?:\\.|[^$\\\n]|\n(?!\s*\n))"
_BOXED = r"\{(?:\\.|[^{}\\]|" * 5 + r"(?!)" + r")*+\}" * 5
# Possessive, and no alternative begins where another one can: the time is linear in the length of a text, which a
# model wrote and may be hostile. Each begins with its letters, by which the search skips the rest quickly.
FORMULA = re.compile(
    rf"\$\$(?<!\\\$\$)(?P<dollars>{_CHARACTER}++)\$\$"
    rf"|\$(?<![\\$]\$)(?=\S)(?P<inline>{_CHARACTER}++)(?<!\s)\$(?!\d)"
    r"|\\\[(?<!\\\\\[)(?P<brackets>(?:\\\\|\\(?![\[\]])|[^\\])++)\\\]"
    r"|\\\((?<!\\\\\()(?P<parentheses>(?:\\\\|\\(?![()])|[^\\])++)\\\)"
    rf"|\\(?P<boxed>boxed{_BOXED})",
    re.DOTALL,
)
"""`$…$`, `$$…$$`, `\\(…\\)`, `\\[…\\]` and `\\boxed{…}`; the name of the group says which."""
