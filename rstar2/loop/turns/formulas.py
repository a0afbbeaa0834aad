"""A pattern that finds LaTeX formulas in a text."""

from __future__ import annotations

import re

_CHARACTER = r"(?:\\.|[^$\\\n]|\n(?!\s*\n))"
_BOXED = r"\{(?:\\.|[^{}\\]|" * 5 + r"(?!)" + r")*+\}" * 5
# A model wrote the text, and it may be hostile. The search takes linear time, because all quantifiers are possessive
# and no two alternatives can match at the same place. Each alternative begins with fixed characters, so that the search
# skips other text quickly.
FORMULA = re.compile(
    rf"\$\$(?<!\\\$\$)(?P<dollars>{_CHARACTER}++)\$\$"
    rf"|\$(?<![\\$]\$)(?=\S)(?P<inline>{_CHARACTER}++)(?<!\s)\$(?!\d)"
    r"|\\\[(?<!\\\\\[)(?P<brackets>(?:\\\\|\\(?![\[\]])|[^\\])++)\\\]"
    r"|\\\((?<!\\\\\()(?P<parentheses>(?:\\\\|\\(?![()])|[^\\])++)\\\)"
    rf"|\\(?P<boxed>boxed{_BOXED})",
    re.DOTALL,
)
"""Matches `$…$`, `$$…$$`, `\\(…\\)`, `\\[…\\]` and `\\boxed{…}`. The name of the matching group says which of these
forms it is."""
