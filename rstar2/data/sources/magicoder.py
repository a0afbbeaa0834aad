"""Magicoder's programming tasks in Python. The code of a solution becomes a call of the Python tool.

Text after the code is left out, because no text can follow a call in the call's message.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rstar2.data.conversations import Tools, call, call_message, conversation_row, text_message
from rstar2.data.rows import Refused, text_of
from rstar2.data.source import HubSet, Row, Source
from rstar2.loop.tools.python_code_with_standard_io import NAME, python_code_with_standard_io

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*")
_BUILTIN_READERS = frozenset({"input", "raw_input"})
_READERS = frozenset(
    {
        "sys.stdin",
        "sys.__stdin__",
        "builtins.input",
        "fileinput.input",
        "fileinput.FileInput",
        "getpass.getpass",
    }
)
"""Names in the standard library that read standard input."""
_OPENERS = frozenset({"open", "io.open", "os.fdopen", "os.read"})
"""Functions that read standard input if their first argument is 0."""
_DEVICES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_TOOLS = Tools([python_code_with_standard_io.schema])


@dataclass(frozen=True)
class _Block:
    """A fenced block of code in a text."""

    before: str
    """The text before the block."""
    language: str
    code: str
    closed: bool


def _read(row: Row) -> dict[str, Any]:
    task, solution = ("problem", "solution") if "problem" in row else ("instruction", "response")
    if "lang" in row and row["lang"] != "python":
        raise Refused("not Python", f"lang is {row['lang']}")
    block = _only_block(text_of(row, solution))
    # A block without a language is Python if the row has a `lang`, which is then `python`.
    if block.language not in ("python", "py", "python3") and not (block.language == "" and "lang" in row):
        raise Refused("not Python", f"the language of the block is {block.language or 'not stated'}")
    if not block.code.strip():
        raise Refused("no code", "the block of code is empty")
    _check_runs(block.code)
    program = call(NAME, {"code": block.code, "input": ""})
    messages = [text_message("user", row.get(task)), call_message([program], block.before)]
    return conversation_row(messages, _TOOLS)


def _only_block(text: str) -> _Block:
    """Returns the block of code in a text.

    Raises Refused if the text has no block of code, more than one block, or an unclosed block.
    """
    blocks = list(_blocks(text))
    if not blocks:
        raise Refused("no code", "the solution has no block of code on lines of its own")
    if len(blocks) > 1:
        raise Refused(
            "several blocks", f"the solution has {len(blocks)} blocks of code, but a call can have only one"
        )
    if not blocks[0].closed:
        raise Refused("no code", "the block of code is not closed")
    return blocks[0]


def _blocks(text: str) -> Iterator[_Block]:
    """Yields the fenced blocks of a text by the rules of CommonMark.

    If a fence is indented, the fence's indentation is removed from the lines of the block.
    """
    opened: re.Match[str] | None = None
    before, code, at = "", [""], 0
    for line in text.split("\n"):
        if opened is None:
            if opened := _FENCE.fullmatch(line.rstrip()):
                before, code = text[:at], []
        elif _closes(line.strip(), opened[2]):
            yield _Block(before, opened[3].lower(), "\n".join(code).removesuffix("\r"), closed=True)
            opened = None
        else:
            code.append(_dedented(line, len(opened[1])))
        at += len(line) + 1
    if opened is not None:
        yield _Block(before, opened[3].lower(), "\n".join(code), closed=False)


def _closes(line: str, fence: str) -> bool:
    """Whether a line closes a block. It does if it consists of the fence's character and is at least as long."""
    return len(line) >= len(fence) and not line.strip(fence[0])


def _dedented(line: str, indent: int) -> str:
    """Returns a line without the first `indent` spaces and tabs at its start."""
    spaces = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, spaces) :]


def _check_runs(code: str) -> None:
    """Raise Refused if the code does not compile, or if it reads standard input, which is empty in the call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree, scopes = ast.parse(code), symtable.symtable(code, "code", "exec")
    except (SyntaxError, ValueError, MemoryError) as error:
        raise Refused("not Python", f"the code does not compile: {error}") from error
    if reading := _reads_input(tree, scopes):
        raise Refused("reads input", f"{reading}, but a call has no input")


def _reads_input(tree: ast.Module, scopes: symtable.SymbolTable) -> str:
    """Returns where and how a program reads standard input.

    Returns an empty text if the program does not read standard input.
    """
    origins = _imported(tree)
    uses_builtin = _uses_global(scopes, _BUILTIN_READERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (reading := _reading(node, origins, uses_builtin)):
            return f"line {node.lineno} reads {reading}"
    return ""


def _reading(node: ast.expr, origins: dict[str, str], uses_builtin: bool) -> str:
    """Returns the reader of standard input that an expression names or calls, such as `sys.stdin` or `input()`.

    Returns an empty text if the expression names and calls no reader of standard input.
    """
    if isinstance(node, ast.Name | ast.Attribute):
        name = _dotted(node, origins)
        return name if name in _READERS or (uses_builtin and name in _BUILTIN_READERS) else ""
    if isinstance(node, ast.Constant):
        return str(node.value) if node.value in _DEVICES else ""
    if isinstance(node, ast.Call):
        name = _dotted(node.func, origins)
        if name in _BUILTIN_READERS:
            return f"{name}()"
        first = [*node.args, *(each.value for each in node.keywords if each.arg in ("file", "fd"))][:1]
        if name in _OPENERS and any(isinstance(each, ast.Constant) and each.value == 0 for each in first):
            return f"{name}(0)"
    return ""


def _imported(tree: ast.Module) -> dict[str, str]:
    """Returns a dict. The keys are the imported names in the program, and the values are the objects' full names."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                origins[each.asname or first] = each.name if each.asname else first
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                origins[each.asname or each.name] = f"{node.module}.{each.name}"
            if "*" in origins:
                del origins["*"]
                prefix = f"{node.module}."
                origins |= {name.removeprefix(prefix): name for name in _READERS if name.startswith(prefix)}
    return origins


def _dotted(node: ast.expr, origins: dict[str, str]) -> str:
    """Returns the full name of the object that an expression names, such as `sys.stdin`.

    Returns an empty text if the expression is not a name.
    """
    if isinstance(node, ast.Name):
        return origins.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (of := _dotted(node.value, origins)):
        return f"{of}.{node.attr}"
    return ""


def _uses_global(scope: symtable.SymbolTable, names: frozenset[str]) -> bool:
    """Whether a scope, or a scope inside it, refers to a Python builtin whose name is in `names`."""
    for symbol in scope.get_symbols():
        is_own = symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter()
        is_builtin = not is_own if scope.get_type() == "module" else symbol.is_global()
        if symbol.get_name() in names and symbol.is_referenced() and is_builtin:
            return True
    return any(_uses_global(child, names) for child in scope.get_children())


SOURCE = Source(
    kind="conversations",
    family="code",
    licence="MIT and Apache-2.0 (their cards; not checked)",
    columns=(("problem", "solution", "lang"), ("instruction", "response")),
    read=_read,
    rows="75K and 110K, of all languages",
    download="about 430 MB, estimated",
    disk="about 900 MB",
    hub=(
        HubSet("ise-uiuc/Magicoder-OSS-Instruct-75K", None, "train"),
        HubSet("ise-uiuc/Magicoder-Evol-Instruct-110K", None, "train"),
    ),
    left_out="the text after the code",
    paper="48K, rewritten as JSON calls",
)
