"""Runs inside the fresh interpreter: executes one program as `__main__`, showing its last bare expression.

Started as `python -I child.py CODE_FILE RESULT_FD`. Writes one JSON line `{"value", "memory"}` on RESULT_FD.
Imports nothing of this package: it runs with a clean path.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import traceback
import types

MAX_VALUE_CHARS = 20_000


def _report(fd: int, value: str | None, memory: bool) -> None:
    os.write(fd, json.dumps({"value": value, "memory": memory}).encode() + b"\n")


def _execute(source: str) -> str | None:
    tree = ast.parse(source, "<program>")
    last = tree.body[-1] if tree.body else None
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<program>", "exec"), module.__dict__)
        return None
    tree.body.pop()
    exec(compile(tree, "<program>", "exec"), module.__dict__)
    value = eval(compile(ast.Expression(last.value), "<program>", "eval"), module.__dict__)
    return None if value is None else repr(value)[:MAX_VALUE_CHARS]


def main() -> int:
    path, fd = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(fd, False)
    with open(path, encoding="utf-8", newline="") as file:
        source = file.read()
    sys.argv = ["<program>"]
    try:
        _report(fd, _execute(source), False)
    except MemoryError:
        _report(fd, None, True)
        traceback.print_exc()
        return 1
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is shown
        kept = error.__traceback__
        while kept is not None and kept.tb_frame.f_code.co_filename == __file__:
            kept = kept.tb_next
        traceback.print_exception(type(error), error, kept)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
