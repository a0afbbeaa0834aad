"""Makes, records and checks the Python environments of benchmark harnesses, in the user's data folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import Failure, UserError
from rstar2.files import home_folder, read_json, whole_path, write_json, write_text
from rstar2.runs import GRADER_SECRET

INSTALLER = "uv==0.13.8"
"""uv resolves these packages in seconds. pip takes half an hour for the same packages."""
_INSTALL_S = 3600.0
_INSPECT_S = 300.0
_RECORD = "environment.json"
_LOG = "setup.log"
_INSPECTION = """
import importlib.metadata, importlib.util, json, sys
versions = {each.name.lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()}
absent = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({"python": sys.version.split()[0], "installed": versions, "absent": absent}))
"""
"""A program that runs in an environment. It prints the environment's Python version, its packages, and which of the
modules in the program's arguments are absent."""


@dataclass(frozen=True)
class Harness:
    """A benchmark's own program, in a Python environment of its own."""

    name: str
    """Name of the environment."""
    benchmarks: tuple[str, ...]
    """Benchmarks that use the harness."""
    packages: tuple[str, ...]
    """Packages to install, with exact versions."""
    modules: tuple[str, ...]
    """Modules that must be importable."""
    data_packages: tuple[str, ...] = ()
    """Packages with exact versions that are installed without their dependencies, because only files in these packages
    are read."""
    left_out: tuple[str, ...] = ()
    """Dependencies that are not installed, because no code that runs here imports them."""

    @property
    def command(self) -> str:
        """The command that makes the environment."""
        return f"rstar2 eval setup {self.benchmarks[0]}"

    @property
    def folder(self) -> Path:
        return environments_folder() / self.name

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def pins(self) -> list[str]:
        return [*self.packages, *self.data_packages, *(f"without {name}" for name in self.left_out)]


def environments_folder() -> Path:
    """Returns the folder of all environments: `rstar2/harnesses` in XDG_DATA_HOME, which is `~/.local/share` by
    default."""
    home = os.environ.get("XDG_DATA_HOME") or home_folder() / ".local" / "share"
    return Path(home) / "rstar2" / "harnesses"


def set_up(harness: Harness) -> bool:
    """Make the environment, unless it exists and is in order. Returns whether this call made the environment.

    The installer's output goes to `setup.log` in the environment. If the environment is incomplete, the next call
    removes it and makes it again.

    Raises:
        Failure: a package cannot be installed.
    """
    if fault(harness) is None:
        return False
    shutil.rmtree(harness.folder, ignore_errors=True)
    try:
        harness.folder.mkdir(parents=True)
        venv.create(harness.folder, symlinks=True)
        uv = _installer(harness)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(
            f"cannot make {harness.folder}: {error}", "Check that the folder is writable."
        ) from error
    # NLTK refuses to read data files that are hard links into a cache.
    install = [uv, "pip", "install", "--link-mode", "copy", "--python", str(harness.python)]
    overrides = harness.folder / "left_out.txt"
    write_text(overrides, "".join(f"{name}; python_version < '3'\n" for name in harness.left_out))
    if harness.packages:
        _install(harness, [*install, "--override", str(overrides)], harness.packages)
    if harness.data_packages:
        _install(harness, [*install, "--no-deps"], harness.data_packages)
    content = _inspect(harness)
    if content["absent"]:
        raise Failure(
            f"{harness.name} was installed but lacks the module {content['absent'][0]}", _see_log(harness)
        )
    record = {"packages": harness.pins, "python": content["python"], "installed": content["installed"]}
    write_json(harness.folder / _RECORD, record)
    return True


def require(harness: Harness, benchmark: str) -> None:
    """Raises UserError, with the command to run, if the environment is missing or not in order."""
    problem = fault(harness)
    if problem is not None:
        raise UserError(f"{benchmark} needs the harness {harness.name}: {problem}", f"Run: {harness.command}")


def fault(harness: Harness) -> str | None:
    """Returns what is wrong with the environment, or None if it is in order. In order means that its Python runs, the
    installed versions are the recorded versions, and the modules can be imported.

    The contents of files are not compared, since hashing up to 4,000 files would take 0.3 to 2 seconds before each run.
    """
    record = _recorded(harness)
    if record is None:
        return "incomplete" if harness.folder.is_dir() else "not set up"
    if record["packages"] != harness.pins:
        return f"made for {', '.join(record['packages'])}, but now needs {', '.join(harness.pins)}"
    try:
        content = _inspect(harness)
    except Failure as error:
        return error.message
    changed = [
        f"{name} is {content['installed'].get(name, 'gone')}, was {version}"
        for name, version in record["installed"].items()
        if content["installed"].get(name) != version
    ]
    changed += [f"no module {name}" for name in content["absent"]]
    return changed[0] if changed else None


def installed(harness: Harness) -> dict[str, str]:
    """Dict from the name of each package in the environment to its recorded version."""
    return dict((_recorded(harness) or {"installed": {}})["installed"])


def decides(harness: Harness) -> dict[str, Any]:
    """Returns what decides a harness's results: the versions that the harness requires, and a digest of all versions in
    its environment."""
    versions = json.dumps(sorted(installed(harness).items()))
    return {"harness": harness.pins, "harness_sha256": hashlib.sha256(versions.encode()).hexdigest()}


def _recorded(harness: Harness) -> dict[str, Any] | None:
    """Returns the record that `set_up` wrote as its last step. Returns None if `set_up` did not finish, or if the
    record is damaged."""
    try:
        record = read_json(harness.folder / _RECORD)
    except UserError:
        return None
    kinds = {"packages": list, "installed": dict}
    is_valid = isinstance(record, dict) and all(isinstance(record.get(key), kinds[key]) for key in kinds)
    return record if is_valid else None


def _installer(harness: Harness) -> str:
    """Returns the path of the installer, which is in the folder of all environments.

    The installer is downloaded once for all environments.
    """
    uv = environments_folder() / INSTALLER.replace("==", "-")
    if not uv.exists():
        with tempfile.TemporaryDirectory(dir=uv.parent) as folder, whole_path(uv) as part:
            venv.create(folder, symlinks=True, with_pip=True)
            pip = [f"{folder}/bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
            _install(harness, pip, [INSTALLER])
            shutil.copy2(f"{folder}/bin/uv", part)
    return str(uv)


def _install(harness: Harness, command: Sequence[str], packages: Sequence[str]) -> None:
    """Run an installer's command with `packages` as its last arguments.

    The command's output goes to the harness's log.
    """
    with (harness.folder / _LOG).open("ab") as log:
        try:
            process = subprocess.run(
                [*command, *packages], stdout=log, stderr=log, timeout=_INSTALL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failure(f"cannot install {' '.join(packages)}: {error}", _see_log(harness)) from error
    if process.returncode:
        lines = (harness.folder / _LOG).read_text(errors="replace").splitlines()
        errors = (
            [line for line in lines if line.startswith(("ERROR:", "error:"))] or lines[-1:] or ["it failed"]
        )
        raise Failure(f"cannot install {' '.join(packages)}: {errors[-1]}", _see_log(harness))


def _see_log(harness: Harness) -> str:
    return f"See the log of {INSTALLER.partition('=')[0]}: {harness.folder / _LOG}. Then run again: {harness.command}"


def _inspect(harness: Harness) -> dict[str, Any]:
    """Returns the content of the environment, as `_INSPECTION` prints it.

    Raises Failure if the environment's Python does not run.
    """
    command = [str(harness.python), "-I", "-c", _INSPECTION, *harness.modules]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_INSPECT_S, check=True)
        return dict(json.loads(process.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        last_line = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise Failure(f"its Python does not run: {''.join(last_line)}", f"Run: {harness.command}") from error


def isolated(more: dict[str, str]) -> dict[str, str]:
    """The environment variables for a harness's program, which may run code that a model wrote.

    The program gets the variables in `more` and those of this process, except for the grader's secret and the variables
    that configure our own Python.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name != GRADER_SECRET
    }
    return {**inherited, "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1", **more}
