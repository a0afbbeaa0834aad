"""Tests of the import rules: which modules may import which."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from rstar2 import cli

REPOSITORY = Path(__file__).resolve().parents[1]


def _lint(root: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """A copy of the package, in which tests break rules."""
    shutil.copytree(REPOSITORY / "rstar2", tmp_path / "rstar2", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_rules_hold() -> None:
    checked = _lint(REPOSITORY)
    assert checked.returncode == 0, checked.stdout


BROKEN = [
    (
        "judge/schema.py",
        "import rstar2.loop.tools",
        "rstar2.judge is not allowed to import rstar2.loop",
    ),
    ("errors.py", "import rstar2.loop.trace", "rstar2.errors is not allowed to import rstar2.loop"),
    ("judge/schema.py", "import rstar2.cli.common", "rstar2.judge is not allowed to import rstar2.cli"),
    (
        "judge/sandbox/jail.py",
        "import rstar2.judge.sandbox.session",
        "rstar2.judge.sandbox.jail is not allowed to import rstar2.judge.sandbox.session",
    ),
    (
        "judge/sandbox/inside/wire.py",
        "import rstar2.judge.schema",
        "rstar2.judge.sandbox.inside is not allowed to import rstar2.judge.schema",
    ),
    (
        "judge/client/http.py",
        "import rstar2.judge.sandbox.run",
        "rstar2.judge.client is not allowed to import rstar2.judge.sandbox",
    ),
    ("loop/trace.py", "import torch", "rstar2.judge is not allowed to import torch"),
    ("judge/schema.py", "def f():\n    import datasets", "rstar2.judge is not allowed to import datasets"),
    ("loop/agent.py", "import verl", "rstar2 is not allowed to import verl"),
    ("train/launch2.py", "import ray", "rstar2 is not allowed to import ray"),
    ("serve/vllm.py", "import vllm", "rstar2 is not allowed to import vllm"),
    ("unplanned.py", "", "rstar2.unplanned"),
]
"""(file, line that is added to it, message of the check) triples."""


def test_every_broken_rule_is_noticed(package_copy: Path) -> None:
    for file, line, _ in BROKEN:
        with (package_copy / "rstar2" / file).open("a") as source:
            source.write(f"\n{line}\n")
    checked = _lint(package_copy)
    assert checked.returncode != 0
    assert [message for _, _, message in BROKEN if message not in checked.stdout] == []


def test_the_folder_for_verl_may_import_it(package_copy: Path) -> None:
    (package_copy / "rstar2" / "train" / "verl" / "extra.py").write_text("import verl\nimport ray\n")
    assert _lint(package_copy).returncode == 0


@pytest.mark.slow
def test_the_judge_runs_without_torch_datasets_or_transformers() -> None:
    files = sorted((REPOSITORY / "rstar2" / "judge").rglob("*.py"))
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in files]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(*{'torch', 'datasets', 'transformers'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert names
    assert ran.stdout.split() == []


def test_the_command_line_is_only_what_this_repository_holds() -> None:
    assert Path(cli.__file__).is_relative_to(REPOSITORY)


def _modules() -> dict[str, Path]:
    """Return a dict from the dotted name of each module of the package to its file. A folder's name refers to its
    `__init__.py`."""
    files = sorted((REPOSITORY / "rstar2").rglob("*.py"))
    return {_dotted(path): path for path in files}


def _dotted(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, also inside functions, but not those under TYPE_CHECKING."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = {f"{node.module}.{name.name}" for name in node.names}
            yield from inner & modules.keys()
            if inner - modules.keys():
                yield node.module
        waiting += ast.iter_child_nodes(node)


@cache
def _import_graph() -> dict[str, set[str]]:
    modules = _modules()
    return {name: set(_imports(path, modules)) - {name} for name, path in modules.items()}


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _inside(folder: str, graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the import graph between the direct parts of a folder: its files, its folders, and its `__init__`.

    In the folder `rstar2`, the grader is a separate part, because it imports neither the rest of `rstar2.eval` nor
    `rstar2.data`.
    """

    def part(name: str) -> str:
        if folder == "rstar2" and f"{name}.".startswith("rstar2.eval.grader."):
            return "eval.grader"
        return name.removeprefix(folder).lstrip(".").partition(".")[0] or "__init__"

    parts: dict[str, set[str]] = {}
    for name, imported in graph.items():
        if f"{name}.".startswith(f"{folder}."):
            others = {part(other) for other in imported if f"{other}.".startswith(f"{folder}.")}
            parts.setdefault(part(name), set()).update(others - {part(name)})
    return parts


@pytest.mark.slow
def test_no_module_imports_itself_through_others() -> None:
    graph = _import_graph()
    assert any(graph.values())
    assert _cycle(graph) == []


def test_no_two_parts_of_a_folder_import_each_other() -> None:
    graph = _import_graph()
    folders = [name for name, path in _modules().items() if path.name == "__init__.py"]
    assert {folder: cycle for folder in folders if (cycle := _cycle(_inside(folder, graph)))} == {}


def test_a_cycle_would_be_noticed() -> None:
    graph = {"a.b.c": {"a.d.e"}, "a.d.f": {"a.b.g"}, "a.d.e": set[str](), "a.b.g": set[str]()}
    assert _cycle(graph) == []
    assert sorted(set(_cycle(_inside("a", graph)))) == ["b", "d"]


def test_every_module_has_a_docstring() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in _modules().items()}
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
