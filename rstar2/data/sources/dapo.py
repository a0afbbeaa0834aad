"""DAPO's problems with integer answers.

The source reads the processed set, and also the raw set, which repeats problems and adds instructions around them.
"""

from __future__ import annotations

import re
from typing import Any

from rstar2.data.rows import Refused, problem_row, text_of
from rstar2.data.source import HubSet, Row, Source

_WRAPPER = re.compile(
    r"^Solve the following math problem step by step\. The last line of your response .*?\n\n"
    r'|\n\nRemember to put your answer on its own line after "Answer:"\.?\s*$',
    re.DOTALL,
)
"""Matches the instructions around a problem in the raw set."""
_PART_OF_WRAPPER = re.compile(
    r"Solve the following math\w* (?:problem|question)"
    r"|\A\W*(?:please )?solve (?:the following|this) (?:problem|question)"
    r"|The last line of your response|Remember to put your answer on its"
    r"|(?:reason|think|solve it|work)\b[^.\n]{0,30}\bstep[ -]by[ -]step"
    r"|(?:with)?in(?:side)?\s+(?:an? )?[$`]*\\+boxed|final answer[^.\n]{0,40}\\+boxed|</?(?:think|answer)>",
    re.IGNORECASE,
)
"""Matches instructions about the form of the answer or the way to think, which are not part of the problem."""


def _read(row: Row) -> dict[str, Any]:
    prompt, reward = row.get("prompt"), row.get("reward_model")
    if not isinstance(reward, dict):
        raise Refused("malformed", "reward_model is not an object with ground_truth")
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], dict):
            raise Refused("malformed", f"prompt has {len(prompt)} messages, not one")
        prompt = prompt[0].get("content")
    text = _WRAPPER.sub("", text_of({"prompt": prompt}, "prompt"))
    if part := _PART_OF_WRAPPER.search(text):
        raise Refused("unknown wrapper", f"the prompt still contains {part[0]!r}")
    return problem_row(text, text_of(reward, "ground_truth"))


SOURCE = Source(
    kind="problems",
    family="math",
    licence="not checked",
    columns=(("prompt", "reward_model"),),
    read=_read,
    rows="14,116; the raw set about 1.8M with repetitions",
    download="under 10 MB, estimated",
    disk="under 20 MB",
    hub=(HubSet("open-r1/DAPO-Math-17k-Processed", "en", "train"),),
    left_out="in the raw form, the instructions around the problem",
    paper="17K problems",
)
