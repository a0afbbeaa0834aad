"""Tests that each extra suffices for its verbs, and that an error names the extra that has a missing package.

Quick tests hide the packages that an extra does not install. The long test installs each extra by itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.model_configs import PUBLISHED

from rstar2.cli.verbs import VERBS
from rstar2.install import extras, installation_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed_by(requirement: Requirement, visited: set[tuple[str, str]]) -> Iterator[str]:
    """Returns the names of all packages that pip installs for a requirement: the required package and its
    dependencies."""
    name = _normal(requirement.name)
    for extra in ("", *requirement.extras):
        if (name, extra) not in visited:
            visited.add((name, extra))
            yield name
            for dependency in map(Requirement, metadata.requires(name) or []):
                if dependency.marker is None or dependency.marker.evaluate({"extra": extra}):
                    yield from _installed_by(dependency, visited)


def _hidden(extra: str) -> set[str]:
    """Returns this environment's top-level modules that are absent if only an extra is installed."""
    installed = set(_installed_by(Requirement(f"rstar2[{extra}]" if extra else "rstar2"), set()))
    modules = metadata.packages_distributions().items()
    return {module for module, owners in modules if installed.isdisjoint(map(_normal, owners))}


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of interpreters that find only the modules of an extra."""
    hidden = _hidden(request.param)
    assert {"torch", "transformers", "datasets", "matplotlib"} <= hidden
    assert not hidden & {"rstar2", "typer"}
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    return {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "80"}


def _rstar2(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rstar2", *words], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("environment", ["grade"], indirect=True)
def test_rows_are_graded_with_the_extra_for_it(environment: dict[str, str], tmp_path: Path) -> None:
    rows = [
        {"gold": 3, "pred": "3"},
        {"gold": "\\frac{\\pi}{4}", "pred": "\\arctan 1"},
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = _rstar2(environment, "grade", str(source), "--verify", "--timeout", "60")
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["verdict"] for line in result.stdout.splitlines()] == ["correct", "correct"]
    assert "100.0 %" in result.stderr


@pytest.mark.parametrize("environment", [""], indirect=True, ids=["base"])
def test_without_the_extra_no_row_is_graded_and_one_line_says_why(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The command must not report a missing package as a verdict."""
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"gold": "\\frac{\\pi}{4}", "pred": "\\arctan 1"}) + "\n")
    result = _rstar2(environment, "grade", str(source))
    assert (result.returncode, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    assert error == "error: packages that this command needs are not installed: mpmath"
    assert "[grade]" in hint


@pytest.mark.parametrize("environment", ["", "judge"], indirect=True, ids=["base", "judge"])
def test_a_verb_names_the_extra_for_all_of_it(environment: dict[str, str]) -> None:
    for words, extra in ((["demo"], "laptop"), (["eval", "builtin", "--oracle"], "eval")):
        result = _rstar2(environment, *words)
        assert (result.returncode, f"[{extra}]" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("environment", [""], indirect=True, ids=["base"])
def test_doctor_works_in_the_base_install(environment: dict[str, str]) -> None:
    result = _rstar2(environment, "doctor", "--json")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert {f"extra {name}" for name in extras()} <= {each["name"] for each in report["findings"]}


@pytest.mark.parametrize(
    ("module", "command", "extras"),
    [
        ("aiohttp", ["judge", "up"], ["judge"]),
        ("aiohttp", ["judge", "mcp"], ["mcp"]),
        ("mcp", ["judge", "mcp"], ["mcp"]),
        ("numpy", ["analyze", "run"], ["eval"]),
        ("torch", ["analyze", "run"], ["laptop", "gpu"]),
        ("torch.nn", ["eval", "aime24"], ["laptop", "gpu"]),
        ("ray", ["train"], ["laptop", "gpu"]),
        ("transfer_queue", ["demo"], ["laptop", "gpu"]),
        ("aiohttp", ["demo"], ["laptop", "gpu"]),
        ("vllm", ["train"], ["gpu"]),
        ("mpmath", ["grade", "rows.jsonl"], ["grade"]),
        ("matplotlib", ["judge", "up"], ["eval"]),
        ("prompt_toolkit", [], ["eval"]),
        ("jsonschema_rs", ["data", "list"], ["eval"]),
    ],
)
def test_the_extra_that_is_named_has_the_package(module: str, command: list[str], extras: list[str]) -> None:
    hint = installation_for(module, command)
    assert re.findall(r"\[(\w+)\]", hint) == extras


WORKS = {
    "": {"doctor"},
    "grade": {"doctor", "grade"},
    "judge": {"doctor", "judge"},
    "mcp": {"doctor", "judge", "judge mcp"},
    "eval": {
        "doctor",
        "grade",
        "judge",
        "eval",
        "analyze",
        "report",
        "data",
        "plan",
        "runs",
        "format",
    },
}
"""The verbs that must succeed with only this extra. Other verbs may need another extra, which their error names."""


def _uses(folder: Path) -> dict[str, list[str]]:
    """Returns a command line for every verb, and for `judge mcp`. Each command ends by itself. Some read the run of
    `eval`."""
    run, absent = str(folder / "run"), str(folder / "absent")
    return {
        "doctor": ["doctor", "--json"],
        "format": ["format", "show", "--format", "rstar2"],
        "data": ["data", "list"],
        "grade": ["grade", str(folder / "rows.jsonl")],
        "judge": ["judge", "run", str(folder / "program.py")],
        "judge mcp": ["judge", "mcp"],
        "eval": ["eval", "builtin", "--oracle", "-n", "1", "--limit", "2", "--run", run],
        "analyze": ["analyze", run],
        "report": ["report", run],
        "runs": ["runs", "list", "--root", str(folder)],
        "watch": ["watch", run, "--json"],
        "plan": ["plan", "--model", str(folder / "model"), "--profile", "1xh200"],
        "chat": ["chat", "--url", "http://127.0.0.1:1", "--prompt", "1 + 1"],
        "serve": ["serve", absent, "--print-command"],
        "sft": ["sft", "--model", absent, "--data", absent, "--run", str(folder / "sft")],
        "train": ["train", "--stage", "1", "--model", absent, "--data", absent, "--run", str(folder / "rl")],
        "demo": ["demo", "--run", str(folder / "demo")],
    }


@pytest.fixture(scope="module", params=WORKS, ids=lambda extra: extra or "base")
def installation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """An extra, and an environment in which pip installed only this extra."""
    folder = tmp_path_factory.mktemp(request.param or "base")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    locked = ["-c", ROOT / "constraints" / "laptop.txt"]
    target = f"{ROOT}[{request.param}]" if request.param else str(ROOT)
    result = subprocess.run(
        [*pip, "install", *locked, "-e", target], capture_output=True, text=True, timeout=1800
    )
    if "No matching distribution" in result.stderr or "Temporary failure in name resolution" in result.stderr:
        pytest.skip("no package index answers here")
    assert result.returncode == 0, result.stderr
    subprocess.run([*pip, "check"], check=True, timeout=600)
    return request.param, folder


@pytest.mark.long
def test_with_an_extra_alone_its_verbs_work_and_the_others_name_what_they_need(
    installation: tuple[str, Path], tmp_path: Path
) -> None:
    extra, folder = installation
    (tmp_path / "rows.jsonl").write_text('{"gold": "\\\\frac{\\\\pi}{4}", "pred": "\\\\arctan 1"}\n')
    (tmp_path / "program.py").write_text("print(6 * 7)")
    (tmp_path / "model").mkdir()
    config = PUBLISHED["Qwen3-4B"][0]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
    } | {"RSTAR2_STATE": str(tmp_path / "state"), "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}

    def rstar2(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "bin" / "rstar2", *words],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )

    uses = _uses(tmp_path)
    assert {use.partition(" ")[0] for use in uses} == {verb for verbs in VERBS.values() for verb in verbs}
    assert rstar2("--help").returncode == 0
    if "judge" in WORKS[extra]:
        assert rstar2("judge", "up", "--port", "0", "--workers", "1", "--detach").returncode == 0
    try:
        for use, words in uses.items():
            result = rstar2(*words)
            assert "Traceback" not in result.stderr, (use, result.stderr)
            missing = re.search(r"packages that this command needs are not installed: (\w+)", result.stderr)
            if use in WORKS[extra]:
                assert result.returncode == 0, (use, result.stderr)
            elif missing is not None:
                extras = re.findall(r"\[(\w+)\]", result.stderr)
                assert extras, (use, result.stderr)
                assert extra not in extras, (use, result.stderr)
                assert result.returncode == 2
            else:
                assert result.returncode in (0, 1, 2), (use, result.stderr)
    finally:
        if "judge" in WORKS[extra]:
            rstar2("judge", "down")
