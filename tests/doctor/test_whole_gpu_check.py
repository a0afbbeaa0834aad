"""`rstar2 doctor --gpu-check` on a machine without a GPU: the same checks, on the CPU stack with a tiny model."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.optional import needs

from rstar2.doctor.gpu_check.checks import CHECKS

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 10_000.0
LIMIT_S = "3000"
"""Seconds that each check may take, enough for a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_000)]


def _run(
    python: str | Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", *words],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        env={**os.environ, **(env or {})},
    )


def _record(folder: Path) -> dict[str, dict[str, Any]]:
    checks = json.loads((folder / "gpu-check.json").read_text())["checks"]
    return {each["name"]: each for each in checks}


def _numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in result["measured"]["numbers"]}


@needs("verl")
@pytest.mark.long
def test_all_checks_pass_without_a_gpu_and_the_report_has_nothing_private(tmp_path: Path) -> None:
    words = ("--gpu-check", "--device", "cpu", "--limit", LIMIT_S, "--output", str(tmp_path))
    process = _run(sys.executable, "rstar2", "doctor", *words)
    assert process.returncode == 0, process.stdout + process.stderr
    results = _record(tmp_path)
    assert list(results) == list(CHECKS)
    with_vllm = "RSTAR2_VLLM_PYTHON" in os.environ
    for name, result in results.items():
        expected = "passed" if name != "serve" or with_vllm else "not run"
        assert result["outcome"] == expected, result
    if not with_vllm:
        assert results["serve"]["reason"] == "not installed: vllm"
    rl, resumed = _numbers(results["rl"]), _numbers(results["resume"])
    assert rl["steps before the kill"] == resumed["last checkpoint before the kill"] == 2
    assert (resumed["first step after it"], resumed["last step"]) == (3, 4)
    assert rl["mean difference of a token's probability, engine and trainer"] < 1e-4
    assert rl["last step: weights to the engine"] > 0
    page = (tmp_path / "gpu-check.md").read_text()
    assert "# GPU check: CPU stack, no GPU" in page
    for file in ("gpu-check.md", "gpu-check.json"):
        report = (tmp_path / file).read_text()
        assert str(tmp_path) not in report
        assert str(Path.home()) + "/" not in report
        assert not re.search(rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])", report)
    assert not (tmp_path / "gpu-check-work").exists()


def _needed(*names: str) -> set[str]:
    """Returns these distributions and all distributions that they need."""
    packages: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in packages:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        packages.add(key)
        requirements = map(Requirement, required)
        waiting += [
            each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})
        ]
    return packages


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter whose environment has only torch, transformers, numpy and their requirements."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    for name in _needed("torch", "transformers", "numpy"):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return folder / "bin" / "python"


@needs("torch")
def test_with_torch_and_transformers_alone_the_first_checks_run_and_the_rest_says_what_it_needs(
    bare_python: Path, tmp_path: Path
) -> None:
    env = {"PYTHONPATH": str(ROOT)}
    words = ("--device", "cpu", "--limit", LIMIT_S, "--output", str(tmp_path))
    process = _run(bare_python, "rstar2.doctor.gpu_check", *words, env=env)
    assert process.returncode == 0, process.stdout + process.stderr
    results = _record(tmp_path)
    passed = [name for name, result in results.items() if result["outcome"] == "passed"]
    assert passed == ["environment", "attention", "update"]
    for name in set(CHECKS) - set(passed):
        assert results[name]["outcome"] == "not run"
        assert results[name]["reason"].startswith("not installed: ")
        assert "pip install" in results[name]["remedy"]
    assert _numbers(results["update"])["speed of an update"] > 0
