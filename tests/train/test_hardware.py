"""Tests of the choice of a profile, and of the check that a recipe's GPUs exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.optional import needs

from rstar2.errors import Unavailable, UserError
from rstar2.processes import free_port
from rstar2.train import hardware
from rstar2.train.recipe import Hardware


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(hardware, "gpu_names", lambda: ["H200"] * count)


@pytest.mark.parametrize(
    ("size", "gpus", "profile"),
    [(1, 0, "laptop"), (hardware.TINY_BYTES + 1, 0, None), (1, 1, None), (0, 0, None)],
)
def test_a_tiny_model_takes_the_laptop_profile_where_there_is_no_gpu(
    size: int, gpus: int, profile: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, gpus)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    assert hardware.default_profile(tmp_path) == profile
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert hardware.default_profile(tmp_path) is None


@pytest.mark.parametrize(
    ("requested", "gpus", "message"),
    [
        ([Hardware()], 0, "needs 8 GPUs on this machine, but it has none\n.*--profile laptop"),
        ([Hardware(device="cpu"), Hardware(gpus_per_node=4)], 2, "needs 4 .* it has 2\n.*gpus_per_node=2"),
    ],
)
def test_missing_gpus_are_told_with_what_to_type(
    requested: list[Hardware], gpus: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, gpus)
    with pytest.raises(UserError) as excinfo:
        hardware.check_hardware(requested)
    assert re.search(message, f"{excinfo.value.message}\n{excinfo.value.hint}")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(UserError):
        hardware.check_hardware(requested)


def test_what_needs_no_gpu_here_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 8)
    hardware.check_hardware([Hardware()])
    with_gpus(monkeypatch, 0)
    hardware.check_hardware([Hardware(device="cpu")])


def test_several_nodes_need_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 8)
    with pytest.raises(UserError, match="needs 8 nodes, but RAY_ADDRESS names no Ray cluster"):
        hardware.check_hardware([Hardware(nodes=8)])


@pytest.mark.slow
@needs("ray")
def test_what_a_ray_cluster_lacks_is_said_at_once(
    ray_cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ray_cluster.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hardware, "CLUSTER_S", 600.0)
    hardware.check_hardware([Hardware(nodes=2, gpus_per_node=2), Hardware(device="cpu")])
    for requested, message in (
        (
            Hardware(gpus_per_node=8),
            "needs 1 nodes with 8 GPUs each, .* has 0 such nodes: its 2 nodes have 2, 2 GPUs",
        ),
        (Hardware(nodes=3, gpus_per_node=2), "needs 3 nodes with 2 GPUs each, .* has 2 such"),
    ):
        with pytest.raises(Unavailable, match=message):
            hardware.check_hardware([requested])
        assert re.search(message, hardware.cluster_shortage([requested]) or "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another" * 10)
    with pytest.raises(UserError, match="no Ray cluster answers"):
        hardware.check_hardware([Hardware()])


@pytest.mark.slow
@needs("ray")
def test_a_cluster_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(hardware, "CLUSTER_S", 5.0)
    with pytest.raises(Unavailable, match=f"no Ray cluster answers at RAY_ADDRESS = {address}"):
        hardware.check_hardware([Hardware()])
    monkeypatch.setattr(hardware, "CLUSTER_S", 600.0)
    monkeypatch.setenv("RAY_ADDRESS", "no-port")
    with pytest.raises(UserError, match="Invalid address format"):
        hardware.check_hardware([Hardware()])
