"""All functions that detect GPUs return only the GPUs that this process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.machine import GPU, GPU_KINDS, gpu_driver, gpu_kind, gpu_names, nvidia_gpus

ROWS = (
    "0, GPU-a1c2, NVIDIA H100 80GB HBM3, 81920, 81000, 9.0",
    "WARNING: infoROM is corrupted at gpu 0000:00:1E.0",
    "1, GPU-b1c2, NVIDIA H100 80GB HBM3, 81920, 40960, 9.0",
)
H100 = "NVIDIA H100 80GB HBM3, 81920 MiB"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, which is the first on PATH."""
    program = tmp_path / "nvidia-smi"
    _answer(program, *ROWS)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("rstar2.machine._DEV", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


def _answer(program: Path, *rows: str) -> None:
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    program.chmod(0o755)


def test_gpus_are_those_that_nvidia_smi_names(nvidia_smi: Path) -> None:
    assert [gpu.free_gib for gpu in nvidia_gpus()] == [81000 / 1024, 40.0]
    assert gpu_names() == [H100, H100]


@pytest.mark.parametrize("visible", ["1", "GPU-b1c2", "GPU-b", " 1 ,7"])
def test_gpus_that_cuda_may_not_use_are_counted_by_nobody(
    visible: str, nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvidia_gpus() == [GPU("NVIDIA H100 80GB HBM3", 80.0, 40.0, 9.0)]
    assert gpu_names() == [H100]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (nvidia_gpus(), gpu_names()) == ([], [])


def test_a_driver_that_does_not_answer_has_no_gpus(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'driver not loaded'; exit 9\n")
    assert (nvidia_gpus(), gpu_names()) == ([], [])


def test_a_gpu_without_memory_of_its_own_has_a_name_only(nvidia_smi: Path) -> None:
    _answer(nvidia_smi, "0, GPU-a, NVIDIA GB10, [N/A], [N/A], 12.1")
    assert gpu_names() == ["NVIDIA GB10"]
    assert nvidia_gpus() == []


@pytest.mark.parametrize("kind", GPU_KINDS)
def test_a_gpu_is_known_by_its_name(kind: str, nvidia_smi: Path) -> None:
    _answer(nvidia_smi, f"0, GPU-a, Maker {kind.upper()} SXM, 81920, 81000, 9.0")
    assert gpu_kind() == kind


def test_a_gpu_of_another_kind_is_not_known(nvidia_smi: Path) -> None:
    _answer(nvidia_smi, "0, GPU-a, NVIDIA RTX 4000, 20475, 20000, 8.9")
    assert gpu_kind() is None


def test_the_driver_is_nvidias_or_amds(
    nvidia_smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(nvidia_smi, "580.65.06", "580.65.06")
    assert gpu_driver() == "580.65.06"
    monkeypatch.setattr("rstar2.machine._AMD_DRIVER", tmp_path / "version")
    nvidia_smi.unlink()
    assert gpu_driver() is None
    (tmp_path / "version").write_text("6.12.12\n")
    assert gpu_driver() == "6.12.12"
