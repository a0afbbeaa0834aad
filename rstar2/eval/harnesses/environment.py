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
"""Resolves in seconds what takes pip half an hour."""
_INSTALL_S = 3600.0
_LOOK_S = 300.0
_RECORD = "environment.json"
_LOG = "setup.log"
_LOOK = """
import importlib.metadata, importlib.util, json, sys
versions = {each.name.lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()}
absent = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({"python": sys.version.split()[0], "installed": versions, "absent": absent}))
"""
"""Reports what an environment contains. It runs in that environment."""


@dataclass(frozen=True)
class Harness:
    """A benchmark's program: what is installed for it, and what runs it."""

    name: str
    """Of its environment."""
    benchmarks: tuple[str, ...]
    """That are run with it."""
    packages: tuple[str, ...]
    """Exactly pinned."""
    modules: tuple[str, ...]
    """What must be importable."""
    data_packages: tuple[str, ...] = ()
    """Exactly pinned, installed without what they need, since only their files are read."""
    left_out: tuple[str, ...] = ()
    """What the packages ask for and nothing that is run here imports."""

    @property
    def command(self) -> str:
        """What makes its environment."""
        return f"rstar2 eval setup {self.benchmarks[0]}"

    @property
    def folder(self) -> Path:
        return environments_folder() / self.name

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / "bin" / "python"

    @property
    def pins(self) -> list[str]:
        return [*self.packages, *self.data_packages, *(f"without {name}" for name in self.left_out)]


def environments_folder() -> Path:
    """Where all of them are: `rstar2/harnesses` in the user's data folder, as XDG_DATA_HOME says it."""
    home = os.environ.get("XDG_DATA_HOME") or home_folder() / ".local" / "share"
    return Path(home) / "rstar2" / "harnesses"


def set_up(harness: Harness) -> bool:
    """Make the environment, or leave one that is in order; whether it was made.

    The installer writes to `setup.log` there. A Failure where something cannot be installed; what is half-made is made
    anew by the next call.
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
    seen = _look(harness)
    if seen["absent"]:
        raise Failure(
            f"{harness.name} was installed but cannot be used: no module {seen['absent'][0]}",
            _see_log(harness),
        )
    record = {"packages": harness.pins, "python": seen["python"], "installed": seen["installed"]}
    write_json(harness.folder / _RECORD, record)
    return True


def require(harness: Harness, benchmark: str) -> None:
    """UserError, with the command that makes it, where the environment is not there or not in order."""
    wrong = fault(harness)
    if wrong is not None:
        raise UserError(f"{benchmark} needs the harness {harness.name}: {wrong}", f"Run: {harness.command}")


def fault(harness: Harness) -> str | None:
    """What is wrong with the environment, or None if its Python runs and has the recorded versions and the modules.

    The contents of its files are not compared: to hash up to 4,000 of them took 0.3 to 2 seconds before every run.
    """
    record = _recorded(harness)
    if record is None:
        return "incomplete" if harness.folder.is_dir() else "not set up"
    if record["packages"] != harness.pins:
        return f"made for {', '.join(record['packages'])}, but now needs {', '.join(harness.pins)}"
    try:
        seen = _look(harness)
    except Failure as error:
        return error.message
    changed = [
        f"{name} is {seen['installed'].get(name, 'gone')}, was {version}"
        for name, version in record["installed"].items()
        if seen["installed"].get(name) != version
    ]
    changed += [f"no module {name}" for name in seen["absent"]]
    return changed[0] if changed else None


def installed(harness: Harness) -> dict[str, str]:
    """The recorded version of every package in the environment, by its name."""
    return dict((_recorded(harness) or {"installed": {}})["installed"])


def decides(harness: Harness) -> dict[str, Any]:
    """What tells two results of a harness apart: its pins, and a digest of every version in the environment."""
    versions = json.dumps(sorted(installed(harness).items()))
    return {"harness": harness.pins, "harness_sha256": hashlib.sha256(versions.encode()).hexdigest()}


def _recorded(harness: Harness) -> dict[str, Any] | None:
    """What `set_up` recorded at its end; None where it did not come to that, or the record is damaged."""
    try:
        record = read_json(harness.folder / _RECORD)
    except UserError:
        return None
    kinds = {"packages": list, "installed": dict}
    whole = isinstance(record, dict) and all(isinstance(record.get(key), kinds[key]) for key in kinds)
    return record if whole else None


def _installer(harness: Harness) -> str:
    """The program that installs, beside the environments; it is fetched once for all of them."""
    uv = environments_folder() / INSTALLER.replace("==", "-")
    if not uv.exists():
        with tempfile.TemporaryDirectory(dir=uv.parent) as folder, whole_path(uv) as part:
            venv.create(folder, symlinks=True, with_pip=True)
            pip = [f"{folder}/bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
            _install(harness, pip, [INSTALLER])
            shutil.copy2(f"{folder}/bin/uv", part)
    return str(uv)


def _install(harness: Harness, command: Sequence[str], packages: Sequence[str]) -> None:
    """Run an installer's command with these packages at its end, and write what it says to the harness's log."""
    with (harness.folder / _LOG).open("ab") as log:
        try:
            made = subprocess.run(
                [*command, *packages], stdout=log, stderr=log, timeout=_INSTALL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failure(f"cannot install {' '.join(packages)}: {error}", _see_log(harness)) from error
    if made.returncode:
        said = (harness.folder / _LOG).read_text(errors="replace").splitlines()
        errors = (
            [line for line in said if line.startswith(("ERROR:", "error:"))] or said[-1:] or ["it failed"]
        )
        raise Failure(f"cannot install {' '.join(packages)}: {errors[-1]}", _see_log(harness))


def _see_log(harness: Harness) -> str:
    return f"See the log of {INSTALLER.partition('=')[0]}: {harness.folder / _LOG}. Then run again: {harness.command}"


def _look(harness: Harness) -> dict[str, Any]:
    """What is in the environment; a Failure where its Python does not run."""
    command = [str(harness.python), "-I", "-c", _LOOK, *harness.modules]
    try:
        looked = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=True)
        return dict(json.loads(looked.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise Failure(f"its Python does not run: {''.join(said)}", f"Run: {harness.command}") from error


def isolated(more: dict[str, str]) -> dict[str, str]:
    """This process's environment variables for a program of a harness, which may run what a model wrote.

    Left out are the grader's secret and what points into our own packages.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name != GRADER_SECRET
    }
    return {**kept, "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1", **more}
