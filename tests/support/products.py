"""Problems and conversations that ask for a product, as users have them in files, and the commands that take them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from rstar2.tools.python_code_with_standard_io import NAME, SCHEMA


def pairs(count: int) -> list[tuple[int, int]]:
    """Distinct pairs of numbers; the first 40 are held out."""
    every = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    return random.Random(1).sample(every, count)


def question(a: int, b: int) -> str:
    return f"Find the product of {a} and {b}."


def solved(a: int, b: int) -> dict[str, Any]:
    """A conversation of a user's own file: the call, its reply, and the answer."""
    arguments = {"code": f"print({a} * {b})", "input": ""}
    call = {"id": "1", "type": "function", "function": {"name": NAME, "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": question(a, b)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": str(a * b), "tool_call_id": "1"},
        {"role": "assistant", "content": f"<answer>\\boxed{{{a * b}}}</answer>"},
    ]
    return {"messages": messages, "tools": [SCHEMA]}


def programmed(a: int, b: int) -> dict[str, Any]:
    """Magicoder's form; the code becomes a call."""
    return {
        "problem": question(a, b),
        "solution": f"```python\nprint({a} * {b})\n```\nThat prints it.",
        "lang": "python",
    }


def command(*words: object) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "rstar2", *map(str, words)], capture_output=True, text=True, timeout=3600
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
