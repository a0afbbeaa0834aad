"""Writes docs/reference/python.md, the reference of the public Python API, from the names in `rstar2.__all__`.

Run `python docs/generators/python_reference.py` after you change a public name or its docstring. `make docs` runs it
too, and tests/docs/test_docs.py fails if the committed page is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import rstar2

PAGE = Path(__file__).resolve().parents[1] / "reference" / "python.md"
HEAD = """\
# Python

This page is written by `docs/generators/python_reference.py` from the code; do not edit it. `from rstar2 import …`
has these names, with types. Each is loaded when it is first used, so `import rstar2` is fast. Modules that no page
names may change in any version. [Extending](../extending.md) has worked examples.
"""
GROUPS = {
    "Grade answers": ("grade", "extract_answer", "GraderPool", "Verdict"),
    "Run programs": ("JudgeClient", "SyncJudgeClient", "RunRequest", "RunResult"),
    "Read traces": ("read_traces", "Trace", "Turn", "ToolCall"),
    "Run the agent loop": ("open_model", "load_codec", "rollout", "Toolbox", "Limits", "Sampling"),
    "Add a tool": ("tool", "Tool", "ToolContext"),
    "Add a benchmark or data": ("Benchmark", "BenchmarkFiles", "EvalSettings", "Problem", "Source"),
    "Add a selection": ("select", "Group", "Rollout"),
}
WIDTH = 100


def reference() -> str:
    """Return the whole page as Markdown."""
    listed = sorted(name for names in GROUPS.values() for name in names)
    assert listed == sorted(rstar2.__all__), "GROUPS and rstar2.__all__ differ"
    parts = [HEAD]
    for heading, names in GROUPS.items():
        parts.append(f"## {heading}\n")
        parts += [_entry(name, getattr(rstar2, name)) for name in names]
    return "\n".join(parts)


def _entry(name: str, described: Any) -> str:
    parts = [f"### {name}"]
    if isinstance(described, ModuleType):
        parts.append(f"Module `{described.__name__}`.")
    elif inspect.isfunction(described):
        parts.append(f"```python\n{_signature(name, described)}\n```")
    else:
        parts.append(f"Class of `{described.__module__}`.")
    parts.append(_prose(inspect.getdoc(described) or ""))
    if inspect.isclass(described):
        source = _ClassSource(described)
        parts += source.fields or (
            [] if source.is_data else [f"```python\n{_signature(name, described)}\n```"]
        )
        parts += source.members
    return "\n\n".join(parts) + "\n"


def _signature(name: str, described: Any) -> str:
    """Return the signature of a function or class, on one line if it fits, else with one line per parameter."""
    signature = inspect.signature(described)
    text = f"{name}{_plain(str(signature))}".removesuffix(" -> None")
    if len(text) <= WIDTH:
        return text
    parameters = [_plain(str(parameter)) for parameter in signature.parameters.values()]
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        parameters.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
        kinds.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returns = _plain(str(signature.return_annotation))
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f") -> {returns}"


def _plain(text: str) -> str:
    """Remove the quotes that `from __future__ import annotations` leaves around an annotation."""
    return re.sub(r"'([^']*)'", lambda quoted: quoted[1] if quoted[1] else "''", text)


class _ClassSource:
    """The public parts of a class, read from its source: fields with their descriptions, methods and properties."""

    def __init__(self, described: type) -> None:
        self._class = described
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(described))).body
        assert isinstance(tree, ast.ClassDef)
        self._body = tree.body
        decorators = [ast.unparse(decorator) for decorator in tree.decorator_list]
        self.is_data = any("dataclass" in each for each in decorators) or hasattr(described, "model_fields")

    @cached_property
    def fields(self) -> list[str]:
        """The table of fields of a dataclass or a pydantic model."""
        rows = []
        followers = [*self._body[1:], None]
        for node, following in zip(self._body, followers, strict=True):
            if (
                not self.is_data
                or not isinstance(node, ast.AnnAssign)
                or not isinstance(node.target, ast.Name)
            ):
                continue
            if node.target.id.startswith("_"):
                continue
            text = following.value if isinstance(following, ast.Expr) else None
            meaning = str(text.value) if isinstance(text, ast.Constant) else ""
            default = _default(node.value)
            rows.append(
                f"| `{node.target.id}` | `{_cell(_type(node.annotation))}` | {default} | {_cell(meaning)} |"
            )
        return (
            ["\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])] if rows else []
        )

    @cached_property
    def members(self) -> list[str]:
        """The table of methods and properties."""
        rows = []
        for node in self._body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            is_property = bool(decorators & {"property", "cached_property"})
            arguments = [
                each.arg
                for each in (*node.args.args, *node.args.kwonlyargs)
                if each.arg not in ("self", "cls")
            ]
            name = node.name if is_property else f"{node.name}({', '.join(arguments)})"
            prefix = ""
            if any("contextmanager" in each for each in decorators):
                prefix = "async with " if isinstance(node, ast.AsyncFunctionDef) else "with "
            elif isinstance(node, ast.AsyncFunctionDef):
                prefix = "await "
            meaning = (inspect.getdoc(getattr(self._class, node.name)) or "").partition("\n\n")[0]
            rows.append(f"| `{prefix}{name}` | {_cell(meaning)} |")
        return ["\n".join(["| method or property | meaning |", "|---|---|", *rows])] if rows else []


def _type(annotation: ast.expr) -> str:
    """Return an annotation without pydantic's validators."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Annotated"):
        assert isinstance(annotation.slice, ast.Tuple)
        return ast.unparse(annotation.slice.elts[0])
    return ast.unparse(annotation)


def _default(value: ast.expr | None) -> str:
    """Return the default of a field as Markdown, or "required" if there is none."""
    if isinstance(value, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default_factory" in keywords:
            return "empty"
        value = keywords.get("default", value.args[0] if value.args else None)
    return "required" if value is None else f"`{_cell(ast.unparse(value))}`"


def _prose(text: str) -> str:
    """Convert a docstring to Markdown. Its sections become lists."""
    parts = []
    for paragraph in text.split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if re.fullmatch(r"(Args|Returns|Raises|Yields):", first):
            items = re.findall(r"^    (\S.*(?:\n {5,}.*)*)", rest, re.MULTILINE)
            listed = "\n".join(f"- {_item(item)}" for item in items)
            parts.append(f"{ {'Args:': 'Arguments:'}.get(first, first) }\n\n{listed}")
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)


def _item(text: str) -> str:
    """Convert an entry of a docstring's section to Markdown. The name before the colon is formatted as code."""
    name, colon, meaning = text.partition(": ")
    line = f"`{name}`: {meaning}" if colon and re.fullmatch(r"[\w.]+", name) else text
    return " ".join(line.split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
