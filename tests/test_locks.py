"""The lock files in constraints/ match their extras, and plain pip can resolve the training stack for GPUs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support.optional import needs

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
REQUIRED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
PYTHONS = ("3.11", "3.12")
STACKS = ("laptop", "gpu")


def lock_file(stack: str) -> Path:
    return ROOT / "constraints" / f"{stack}.txt"


def locked_lines(stack: str) -> list[str]:
    return [line for line in lock_file(stack).read_text().splitlines() if not line.startswith("#")]


def locked(stack: str, python: str) -> dict[str, Version]:
    """Return the version of each package in a lock file on Linux. pip would reject two versions of a package."""
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    versions: dict[str, Version] = {}
    for requirement in map(Requirement, locked_lines(stack)):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} has two versions on Python {python}"
            versions[name] = Version(str(requirement.specifier).removeprefix("=="))
    return versions


def named_by(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements of the package, of these extras, and of the extras that they include."""
    for requirement in map(Requirement, [*REQUIRED, *(text for extra in extras for text in EXTRAS[extra])]):
        if requirement.name == "rstar2":
            yield from named_by(*requirement.extras)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement


@pytest.mark.parametrize("stack", STACKS)
def test_a_lock_is_names_and_versions_alone(stack: str) -> None:
    """pip accepts the file as constraints. The address of a package index in it would force this index on all users."""
    for line in locked_lines(stack):
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[\w.]+( ; [\w .'<>=!()-]+)?", line), line


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("stack", STACKS)
def test_a_lock_has_a_fitting_version_of_all_that_its_extras_name(stack: str, python: str) -> None:
    versions = locked(stack, python)
    wrong = [
        str(wanted)
        for wanted in named_by(stack, "dev", "docs")
        if (found := versions.get(canonicalize_name(wanted.name))) is None
        or not wanted.specifier.contains(found, prereleases=True)
    ]
    assert not wrong, f"make lock renews constraints/{stack}.txt"


@needs("verl")
def test_the_lock_for_gpus_has_the_versions_that_verl_asks_for_with_vllm() -> None:
    versions = locked("gpu", "3.11")
    (verl,) = (each for each in named_by("gpu") if each.name == "verl")
    wanted = [
        requirement
        for requirement in map(Requirement, metadata.requires("verl") or [])
        for extra in verl.extras
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    ]
    exact = {each.name: each for each in wanted if "==" in str(each.specifier)}
    assert exact.keys() >= {"torch", "vllm", "transformers"}
    for requirement in exact.values():
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])
    assert "flash-attn" not in versions


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("constraints", [["-c", str(lock_file("gpu"))], []], ids=["locked", "newest"])
def test_plain_pip_finds_a_training_stack_for_gpus_in_a_clean_environment(
    constraints: list[str], tmp_path: Path
) -> None:
    """Runs the recommended command without installing. It needs the network, and downloads a few hundred megabytes."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True, timeout=600)
    pip = [str(tmp_path / "clean" / "bin" / "python"), "-m", "pip"]
    asked = subprocess.run([*pip, "download", "--no-deps", "-d", tmp_path, "packaging==25.0"], timeout=600)
    if asked.returncode:
        pytest.skip("no package index answers here")
    report = tmp_path / "report.json"
    command = [*pip, "install", "--quiet", "--dry-run", "--report", str(report), *constraints, f"{ROOT}[gpu]"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert ran.returncode == 0, ran.stderr
    chosen = {
        canonicalize_name(each["metadata"]["name"]): Version(each["metadata"]["version"])
        for each in json.loads(report.read_text())["install"]
    }
    versions = locked("gpu", f"{sys.version_info.major}.{sys.version_info.minor}")
    fixed = ["verl", "torch", "vllm", "transformers"] if not constraints else chosen.keys() - {"rstar2"}
    assert {name: chosen[name] for name in fixed} == {name: versions[name] for name in fixed}
    assert "flash-attn" not in chosen
