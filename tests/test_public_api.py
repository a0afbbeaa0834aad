"""Tests of the public API: `import rstar2` is fast, has all public names, and has types for users of the package."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import rstar2

ROOT = Path(__file__).resolve().parents[1]


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import rstar2; print(*sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) <= {"rstar2", "__future__"}


def test_a_name_is_the_one_of_its_module_and_each_is_typed() -> None:
    tree = ast.parse(Path(rstar2.__file__).read_text())
    typed = {
        name.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rstar2")
        for name in node.names
    }
    assert sorted(typed) == sorted(rstar2.__all__)
    for name, module in typed.items():
        assert getattr(rstar2, name) is getattr(import_module(str(module)), name)
    assert set(rstar2.__all__) <= set(dir(rstar2))


def test_the_judge_and_the_grader_export_theirs() -> None:
    import rstar2.eval.grader
    import rstar2.judge

    for home in (rstar2.judge, rstar2.eval.grader):
        names = set(home.__all__) & set(rstar2.__all__)
        assert len(names) > 2
        assert all(getattr(home, name) is getattr(rstar2, name) for name in names)
    with pytest.raises(AttributeError, match=r"module 'rstar2\.judge' has no attribute 'absent'"):
        rstar2.judge.absent  # noqa: B018


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rstar2' has no attribute 'absent'"):
        rstar2.absent  # noqa: B018
    with pytest.raises(ImportError):
        from rstar2 import absent  # noqa: F401


USERS = '''
from typing import assert_type

from rstar2 import judge as judge_package
from rstar2 import (
    Benchmark,
    GraderPool,
    JudgeClient,
    RunRequest,
    RunResult,
    SyncJudgeClient,
    Tool,
    ToolContext,
    Trace,
    Verdict,
    grade,
    read_traces,
    tool,
)


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


@tool(name="half")
async def halved(number: int, context: ToolContext) -> float:
    """Halve a number.

    Args:
        number: The number.
    """
    assert_type(context.judge, JudgeClient)
    assert_type(await context.judge.run(RunRequest(code="1")), RunResult)
    return number / 2


assert_type(double(2), int)
assert_type(judge_package.RunRequest(code="1"), RunRequest)
assert_type(double.name, str)
assert_type(grade("1", "2"), Verdict)
with GraderPool() as pool:
    assert_type(pool.grade("1", "2"), Verdict)
with SyncJudgeClient("http://127.0.0.1:8088") as judge:
    assert_type(judge.run(RunRequest(code="1")), RunResult)
for trace in read_traces("traces.jsonl"):
    assert_type(trace, Trace)
    assert_type(trace.finish == "answer", bool)
'''
WRONG = {
    "from rstar2 import grade\nx: int = grade('1', '2')\n": "Incompatible types in assignment",
    "from rstar2 import RunRequest\nRunRequest(cod='1')\n": '"RunRequest"',
    "from rstar2 import absent\n": 'has no attribute "absent"',
    "from rstar2 import tool\n@tool\ndef f(x: int) -> int: ...\nf('1')\n": "incompatible type",
}
"""Dict from a program with one error to a part of mypy's message."""


@pytest.mark.slow
def test_the_wheel_gives_its_users_types(tmp_path: Path) -> None:
    """A type checker finds the types when it has only the installed package, not its source."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, timeout=600)
    (wheel,) = tmp_path.glob("rstar2-*.whl")
    assert "rstar2/py.typed" in zipfile.ZipFile(wheel).namelist()

    # What the package needs is the environment's of these tests; the package itself is the wheel's.
    venv.create(tmp_path / "venv", symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")}))
    install = [*pip, "install", "--no-deps", "--no-index", "--no-compile", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=600)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def checked(program: str) -> subprocess.CompletedProcess[str]:
        # A file for each: of one that is written again within a second, mypy may report what it found before.
        file = tmp_path / f"users_{len(list(tmp_path.glob('users_*.py')))}.py"
        file.write_text(program)
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable"]
        environment = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH")
        }
        return subprocess.run(
            [*command, str(tmp_path / "venv" / "bin" / "python"), str(file)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
        )

    right = checked(USERS)
    assert right.returncode == 0, right.stdout + right.stderr
    for program, complaint in WRONG.items():
        wrong = checked(program)
        assert wrong.returncode == 1, wrong.stdout + wrong.stderr
        assert complaint in wrong.stdout
    (site / "rstar2" / "py.typed").unlink()
    shutil.rmtree(tmp_path / ".mypy_cache")
    assert "py.typed" in checked(USERS).stdout
