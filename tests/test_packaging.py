"""Tests of the files that an editable install and a wheel install. Both tests get hatchling from a package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = {
    f"rstar2/{path.relative_to(ROOT)}"
    for folder in ("recipes", "constraints")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
}
"""The paths of recipes and lock files in a wheel."""
LOOK = """
import importlib.metadata, pathlib, rstar2
from rstar2.config import recipes_folder
from rstar2.install import install_command
print(pathlib.Path(rstar2.__file__).parent)
print(recipes_folder())
print(install_command("gpu"))
print(*(file for file in importlib.metadata.files("rstar2") if str(file).startswith("rstar2/")), sep="\\n")
"""

pytestmark = [pytest.mark.long, pytest.mark.slow]


def _installed(folder: Path, *target: str) -> list[str]:
    """Installs rstar2 without its dependencies in a new environment. Returns what `LOOK` prints there."""
    # The dependencies are those of this environment.
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=600)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run(
        [*pip, "download", "--no-deps", "-d", folder, "packaging==25.0"], timeout=600
    ).returncode:
        pytest.skip("no package index answers here")
    subprocess.run([*pip, "install", "--quiet", "--no-deps", *target], check=True, timeout=600)
    site = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    look = f"import sys; sys.path.append({str(site)!r})\n{LOOK}"
    ran = subprocess.run([python, "-I", "-c", look], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_an_editable_install_puts_no_part_of_the_package_into_site_packages(tmp_path: Path) -> None:
    package, recipes, command, *files = _installed(tmp_path / "editable", "-e", str(ROOT))
    assert (package, recipes) == (str(ROOT / "rstar2"), str(ROOT / "recipes"))
    assert f"-c {ROOT}/constraints/gpu.txt -e" in command
    assert not [file for file in files if file]


def test_a_wheel_carries_the_package_with_its_recipes_and_locks(tmp_path: Path) -> None:
    package, recipes, command, *files = _installed(tmp_path / "wheel", str(ROOT))
    assert package.startswith(str(tmp_path))
    assert recipes == f"{package}/recipes"
    assert f"-c {package}/constraints/gpu.txt" in command
    tracked = subprocess.run(
        ["git", "ls-files", "rstar2"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    installed = {file for file in files if "__pycache__" not in file}
    assert installed == {*tracked.stdout.splitlines(), *SHIPPED}
