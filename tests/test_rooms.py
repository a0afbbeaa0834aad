"""The house's rules about who may import whom, held by import-linter's contracts in pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
        timeout=120,
    )


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the package, to break rules in."""
    shutil.copytree(REPOSITORY / "rstar2", tmp_path / "rstar2", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_house_keeps_its_rules() -> None:
    checked = _lint(REPOSITORY)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("agent.py", "import rstar2.judge.schema", "rstar2.agent is not allowed to import rstar2.judge"),
        ("errors.py", "import rstar2.trace", "rstar2.errors is not allowed to import rstar2.trace"),
        ("judge/schema.py", "import rstar2.cli.common", "rstar2.judge is not allowed to import rstar2.cli"),
        ("trace.py", "import torch", "rstar2.judge is not allowed to import torch"),
        (
            "judge/schema.py",
            "def f():\n    import datasets",
            "rstar2.judge is not allowed to import datasets",
        ),
        ("agent.py", "import verl", "rstar2 is not allowed to import verl"),
        ("train/launch2.py", "import ray", "rstar2 is not allowed to import ray"),
        ("serve.py", "import vllm", "rstar2 is not allowed to import vllm"),
        ("attic.py", "", "rstar2.attic"),
    ],
)
def test_a_broken_rule_is_noticed(house: Path, file: str, line: str, told: str) -> None:
    with (house / "rstar2" / file).open("a") as source:
        source.write(f"\n{line}\n")
    checked = _lint(house)
    assert checked.returncode != 0
    assert told in checked.stdout


def test_the_folder_for_verl_may_import_it(house: Path) -> None:
    (house / "rstar2" / "train" / "verl" / "extra.py").write_text("import verl\nimport ray\n")
    assert _lint(house).returncode == 0


def test_the_judge_runs_without_torch_datasets_or_transformers() -> None:
    files = sorted((REPOSITORY / "rstar2" / "judge").rglob("*.py"))
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in files]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(*{'torch', 'datasets', 'transformers'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert len(names) > 50
    assert ran.stdout.split() == []


def test_the_command_line_is_only_what_this_repository_holds() -> None:
    assert Path(cli.__file__).is_relative_to(REPOSITORY)
