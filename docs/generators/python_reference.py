"""Writes docs/reference/python.md, the reference of the names that `from rstar2 import …` offers.

Run it after a change of one of them: `python docs/generators/python_reference.py`. `make docs` runs it too, and
tests/docs/test_docs.py fails while the committed page is not current.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import rstar2

PAGE = Path(__file__).resolve().parents[1] / "reference" / "python.md"
HEAD = """\
# Python

This page is written by `docs/generators/python_reference.py` from the code; do not edit it. These are the names of
`from rstar2 import …`. Each has types, and is loaded when it is first used.
"""
GROUPS = {
    "Grade": ("grade", "extract_answer", "GraderPool", "Verdict"),
    "Run programs on a judge": ("JudgeClient", "SyncJudgeClient", "RunRequest", "RunResult"),
    "Read what a run wrote": ("read_traces", "Trace", "Turn", "ToolCall"),
    "Run the agent loop": ("open_model", "load_codec", "rollout", "Toolbox", "Limits", "Sampling"),
    "Add a tool, a benchmark or data": (
        *("tool", "Tool", "ToolContext", "Problem", "Benchmark", "BenchmarkFiles", "EvalSettings", "Source"),
    ),
    "Select rollouts": ("select", "Group", "Rollout"),
}
_WIDTH = 100
"""Characters of a line of a signature."""


def reference() -> str:
    """Returns the page as Markdown. Raises ValueError if the groups do not have each public name once."""
    names = [name for group in GROUPS.values() for name in group]
    if sorted(names) != sorted(rstar2.__all__):
        raise ValueError(f"GROUPS differs from rstar2.__all__ in {set(names) ^ set(rstar2.__all__)}")
    parts = [HEAD]
    for title, group in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in group:
            parts += _entry(name, getattr(rstar2, name))
    return "\n".join(parts)


def _entry(name: str, public: Any) -> Iterator[str]:
    if isinstance(public, ModuleType):
        yield f"### module {name}\n"
        yield _text(public.__doc__)
    elif isinstance(public, type):
        yield f"### class {name}\n"
        yield from _class(public)
    else:
        yield f"### {name}\n"
        yield _signature(name, public)
        yield _text(inspect.getdoc(public))


def _class(public: type) -> Iterator[str]:
    fields = dict(_fields(public))
    if not fields and public.__init__ is not object.__init__:
        yield _signature(public.__name__, public)
    yield _text(inspect.getdoc(public))
    if fields:
        rows = [
            f"| `{name}` | {_code(annotation)} | {_cell(text)} |"
            for name, (annotation, text) in fields.items()
        ]
        yield "\n".join(["| field | type | meaning |", "|---|---|---|", *rows]) + "\n"
    members = list(_members(public))
    if members:
        yield "\n".join(["| member | does |", "|---|---|", *members]) + "\n"


def _fields(public: type) -> Iterator[tuple[str, tuple[str, str]]]:
    """The annotated fields of a dataclass or a pydantic model, with type, default and the text below each."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(public))).body
    assert isinstance(node, ast.ClassDef)
    for item, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if item.target.id.startswith("_"):
            continue
        annotation = ast.unparse(item.annotation)
        if item.value is not None and "field(" not in (default := ast.unparse(item.value)).lower():
            annotation += f" = {default}"
        text = following.value.value if _is_text(following) else ""
        yield item.target.id, (annotation, text)


def _is_text(node: ast.stmt | None) -> Any:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _members(public: type) -> Iterator[str]:
    """A row for each public method and property of the class itself."""
    for name, member in vars(public).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not isinstance(function, FunctionType):
            continue
        call = "" if isinstance(member, property) else _arguments(function)
        paragraph = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
        yield f"| {_code(name + call)} | {_cell(paragraph)} |"


def _arguments(function: FunctionType) -> str:
    """The names of a method's parameters, without `self` and types."""
    names = [parameter.name for parameter in inspect.signature(function).parameters.values()]
    return f"({', '.join(name for name in names if name not in ('self', 'cls'))})"


def _signature(name: str, public: Any) -> str:
    """The call with types and defaults, in a code block; a line for each parameter if it is long."""
    signature = inspect.signature(public)
    if isinstance(public, type):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    line = f"{name}{_plain(str(signature))}"
    if len(line) > _WIDTH:
        parts = [_plain(str(each)) for each in _with_star(signature)]
        end = _plain(str(signature)).rpartition(")")[2]
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return f"```python\n{line}\n```\n"


def _with_star(signature: inspect.Signature) -> list[Any]:
    """The parameters, with the bare `*` before those that are keyword-only."""
    parts: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(parameter)
    return parts


def _plain(text: str) -> str:
    """A signature without the quotes around annotations and the addresses of default values."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r"<(?:function|class|object) ?'?([\w.]+)[^>]*>", r"\1", text)


def _text(docstring: str | None) -> str:
    """A docstring as Markdown: its sections Args, Returns and Raises become lists."""
    lines: list[str] = []
    section, fenced = "", False
    for line in inspect.cleandoc(docstring or "").splitlines():
        fenced ^= line.startswith("```")
        if (heading := re.fullmatch(r"(Args|Returns|Raises|Yields):", line)) and not fenced:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif section and (item := re.match(r"    (\*{0,2}[\w.]+): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section and line.startswith("    "):
            lines.append(f"  {line.strip()}" if section != "Returns" else line.strip())
        else:
            section = section if not line else ""
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`".replace("|", r"\|")


def _cell(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
