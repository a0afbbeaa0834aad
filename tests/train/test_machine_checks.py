"""Tests of the checks before training: GPUs, the run's folder, W&B's key, and a cluster's nodes."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.optional import needs
from support.small_disk import small_disk

from rstar2.errors import Unavailable, UserError
from rstar2.judge.service.start import JudgeHandle
from rstar2.processes import free_port
from rstar2.train import machine_checks
from rstar2.train.machine_checks import check_folder, check_gpus, check_login, check_nodes, node_faults
from rstar2.train.recipe import Hardware

GOOD_KEY = "g" * 40


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.slow
@needs("torch")
def test_gpus_that_pytorch_cannot_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    here = torch.cuda.device_count()
    with pytest.raises(UserError, match=f"needs {here + 1} GPUs on this machine, but PyTorch can use {here}"):
        check_gpus([Hardware(gpus_per_node=here + 1)])
    check_gpus([Hardware(device="cpu")])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_gpus([Hardware()])


def test_a_gpu_that_fails_is_told_with_what_pytorch_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program stands in for GPUs. The first two work."""
    program = "print(0)\nprint(1)\nraise RuntimeError('CUDA error: uncorrectable ECC error')"
    monkeypatch.setattr(machine_checks, "_MULTIPLY", program)
    check_gpus([Hardware(gpus_per_node=2)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(UserError) as excinfo:
        check_gpus([Hardware(gpus_per_node=3)])
    assert excinfo.value.message == (
        "the recipe needs 3 GPUs on this machine, but PyTorch can use 2 of them (CUDA_VISIBLE_DEVICES=0,1,2): "
        "RuntimeError: CUDA error: uncorrectable ECC error"
    )
    monkeypatch.setattr(machine_checks, "_MULTIPLY", "import time; time.sleep(3600)")
    monkeypatch.setattr(machine_checks, "GPUS_S", 0.5)
    with pytest.raises(Unavailable, match="no result within"):
        check_gpus([Hardware(gpus_per_node=3)])


def test_a_run_folder_is_written_to_and_nothing_is_left(tmp_path: Path) -> None:
    check_folder(tmp_path / "runs" / "new")
    assert list(tmp_path.iterdir()) == []
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(UserError, match=f"cannot write to {disk}: Read-only file system"):
            check_folder(disk / "runs")
    with small_disk(tmp_path / "full", 1 << 20) as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk / "a").write_bytes(bytes(2 << 20))
        with pytest.raises(UserError, match=f"cannot write to {disk}: No space left on device"):
            check_folder(disk)


@pytest.fixture
def wandb_server() -> Iterator[str]:
    """A server that answers the login of W&B's client. It knows one key."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            credentials = base64.b64decode(self.headers.get("authorization", "").partition(" ")[2]).decode()
            if credentials == f"api:{GOOD_KEY}":
                viewer = {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
                status, answer = 200, {"data": {"viewer": viewer}}
            else:
                status, answer = 401, {"errors": [{"message": "user is not logged in"}]}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.mark.slow
@needs("wandb")
def test_a_key_that_wandb_refuses_is_found_before_training(wandb_server: str, tmp_path: Path) -> None:
    environ = {**os.environ, "WANDB_BASE_URL": wandb_server, "HOME": str(tmp_path), "WANDB_MODE": "online"}
    check_login(["console", "wandb"], environ={**environ, "WANDB_API_KEY": GOOD_KEY})
    wrong = {**environ, "WANDB_API_KEY": "b" * 40}
    with pytest.raises(
        UserError, match=r"reports to Weights & Biases, but logging in failed: .*user is not logged in"
    ) as excinfo:
        check_login(["wandb"], environ=wrong)
    assert "wandb login" in excinfo.value.hint
    check_login(["wandb"], environ={**wrong, "WANDB_MODE": "offline"})
    check_login(["console", "tensorboard"], environ=wrong)


@pytest.mark.slow
@needs("wandb")
def test_a_wandb_server_that_does_not_answer_is_no_wrong_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "WANDB_MODE": "online", "WANDB_API_KEY": GOOD_KEY}
    environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        Unavailable, match=r"its server does not answer: .*did not respond in time"
    ) as excinfo:
        check_login(["wandb"], environ=environ)
    assert "wandb login" not in excinfo.value.hint
    monkeypatch.setattr(machine_checks, "LOGIN_S", 0.01)
    with pytest.raises(Unavailable, match="no result within"):
        check_login(["wandb"], environ=environ)


HERE = {
    "node": "here",
    "versions": {"rstar2": "1.0", "verl": "0.9.1", "vllm": None},
    "sources": "a",
    "faults": [],
}


def test_a_node_with_other_packages_is_told_by_what_differs() -> None:
    assert node_faults(HERE, {**HERE, "node": "n1"}) == []
    old = {**HERE, "versions": {**HERE["versions"], "verl": "0.9.0"}, "sources": "b"}
    assert node_faults(HERE, old) == ["has verl 0.9.0, but this machine has 0.9.1"]
    bare = {**HERE, "versions": dict.fromkeys(HERE["versions"]), "faults": ["cannot import rstar2"]}
    assert node_faults(HERE, bare)[0] == "has rstar2 (not installed), but this machine has 1.0"
    assert "cannot import rstar2" in node_faults(HERE, bare)
    assert node_faults(HERE, {**HERE, "sources": "b"}) == [
        "has a different version of rstar2's source than this machine"
    ]


@needs("ray")
def test_every_node_of_a_cluster_is_tried(
    ray_cluster: dict[str, str], token_judge: JudgeHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ray_cluster.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine_checks, "_MULTIPLY", "print(0, 1)")  # a stand-in for two GPUs
    run, hardware = tmp_path / "runs" / "rl", [Hardware(worker_start_s=3000)]
    check_nodes(hardware, run, (token_judge.url, token_judge.token))
    check_nodes([Hardware(device="cpu")], run, ("http://127.0.0.1:1", None))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="refused the token") as excinfo:
        check_nodes(hardware, run, (token_judge.url, "another"))
    assert len(re.findall("node ", excinfo.value.message)) >= 2, "the message names each node"
    with pytest.raises(Unavailable, match=r"node .*no judge answers"):
        check_nodes(hardware, run, (f"http://127.0.0.1:{free_port()}", None))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(machine_checks, "NODES_S", 1.0)
    monkeypatch.setattr(machine_checks, "GPUS_S", 1.0)
    with pytest.raises(
        Unavailable, match=r"the nodes of the Ray cluster at 127\.0\.0\.1:1 could not be tested"
    ):
        check_nodes([Hardware(worker_start_s=1)], run, None)
    assert list(tmp_path.iterdir()) == []


@needs("ray")
def test_the_gpus_of_every_node_of_a_cluster_are_tried(
    ray_cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program stands in for GPUs. The first GPU of each node works."""
    for name, value in ray_cluster.items():
        monkeypatch.setenv(name, value)
    hardware = [Hardware(worker_start_s=3000)]
    program = "print(0)\nraise RuntimeError('CUDA error: uncorrectable ECC error')"
    monkeypatch.setattr(machine_checks, "_MULTIPLY", program)
    with pytest.raises(UserError) as excinfo:
        check_nodes(hardware, tmp_path, None)
    fault = (
        "has 2 GPUs according to Ray, but PyTorch can use 1 of them: "
        "RuntimeError: CUDA error: uncorrectable ECC error"
    )
    assert excinfo.value.message.count(fault) == 2, "both nodes fail, and Ray hides no GPU from the program"
    monkeypatch.setattr(machine_checks, "_MULTIPLY", "import time; print(0, flush=True); time.sleep(3600)")
    monkeypatch.setattr(machine_checks, "GPUS_S", 1.0)
    with pytest.raises(UserError, match="PyTorch can use 1 of them: the GPU test did not finish within 1 s"):
        check_nodes(hardware, tmp_path, None)
    hidden = "import os; print(*os.environ.get('CUDA_VISIBLE_DEVICES', '0,1').replace(',', ' ').split())"
    monkeypatch.setattr(machine_checks, "GPUS_S", 60.0)
    monkeypatch.setattr(machine_checks, "_MULTIPLY", hidden)
    check_nodes(hardware, tmp_path, None)
