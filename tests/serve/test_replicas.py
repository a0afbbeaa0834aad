"""Several copies of a model behind the real router. Stand-ins replace vLLM and the GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import rstar2
from support.optional import needs
from support.servers.serving import wait_for_server
from support.servers.vllm_program import vllm_environment
from support.waiting import TIMEOUT_S, wait_until

from rstar2.processes import free_port

pytestmark = [needs("vllm_router"), pytest.mark.slow, pytest.mark.timeout(1800)]


def test_copies_share_the_requests_and_one_that_dies_leaves_the_others(tmp_path: Path) -> None:
    python = vllm_environment(tmp_path / "vllm", "vllm")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    gpus = "".join(f"{i}, GPU-{i}, NVIDIA H100, 81920, 81000, 9.0\\n" for i in range(4))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{gpus}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    env = {
        **os.environ,
        "RSTAR2_STATE": str(tmp_path / "state"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    port = free_port()

    def answering_copy() -> dict[str, Any] | None:
        """Send a request. Returns the answer with the copy's process id and GPUs, or None if no copy answered."""
        with suppress(httpx.TransportError):
            body = {"model": "x", "prompt": [1, 2, 3], "max_tokens": 1}
            url = f"http://127.0.0.1:{port}/v1/completions"
            # Without verification: loading the CA certificates for each request would take most of the time.
            answer = httpx.post(url, json=body, trust_env=False, timeout=TIMEOUT_S, verify=False)
            return dict(answer.json()) if answer.status_code == 200 else None
        return None

    try:
        words = (
            str(tmp_path / "model"),
            "--python",
            str(python),
            "--tp",
            "2",
            "--port",
            str(port),
            "--detach",
        )
        command = [sys.executable, "-m", "rstar2", "serve", *words]
        process = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, env=env)
        assert process.returncode == 0, process.stderr
        assert "2 copies x 2 of 4 GPUs (NVIDIA H100)" in process.stderr
        gpus_by_pid: dict[int, str] = {}

        def both_answered() -> bool:
            if copy := answering_copy():
                gpus_by_pid[copy["pid"]] = copy["gpus"]
            return len(gpus_by_pid) == 2

        wait_until(both_answered)
        assert sorted(gpus_by_pid.values()) == ["0,1", "2,3"]
        killed, survivor = gpus_by_pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: (copy := answering_copy()) is not None and copy["pid"] == survivor)
        wait_until(lambda: (copy := answering_copy()) is not None and copy["pid"] not in gpus_by_pid)
        assert wait_for_server(env)["restarts"] == 1
    finally:
        down = rstar2("serve", "down", env=env)
    assert down.code == 0, down.stderr
