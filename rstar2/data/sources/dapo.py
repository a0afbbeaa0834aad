"""DAPO's problems with integer answers, as its processed set has them or, wrapped and repeated, its raw one."""

from __future__ import annotations

import re
from typing import Any

from rstar2.data.rows import Refused, problem_row, text_of
from rstar2.data.source import HubSet, Row, Source

_RAW_WORDS = re.compile(
    r"^Solve the following math problem step by step\. The last line of your response .*?\n\n"
    r'|\n\nRemember to put your answer on its own line after "Answer:"\.?\s*$',
    re.DOTALL,
)


def _read(row: Row) -> dict[str, Any]:
    prompt, reward = row.get("prompt"), row.get("reward_model")
    if not isinstance(reward, dict):
        raise Refused("malformed", "reward_model is not an object with ground_truth")
    if isinstance(prompt, list):
        wrapped = prompt[0].get("content") if len(prompt) == 1 and isinstance(prompt[0], dict) else None
        text = _RAW_WORDS.sub("", text_of({"prompt": wrapped}, "prompt"))
    else:
        text = text_of(row, "prompt")
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
    paper="17K problems",
)
