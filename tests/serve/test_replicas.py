"""Several copies of a model behind the real router: stand-ins take the place of vLLM and of the GPUs."""

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
from support.servers.serving import answering
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

    def asked() -> dict[str, Any] | None:
        """Who answered a request; None where nobody did."""
        with suppress(httpx.TransportError):
            body = {"model": "x", "prompt": [1, 2, 3], "max_tokens": 1}
            url = f"http://127.0.0.1:{port}/v1/completions"
            # Loading CA certificates would be most of the work, many times a second.
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
        started = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, env=env)
        assert started.returncode == 0, started.stderr
        assert "2 copies x 2 of 4 GPUs (NVIDIA H100)" in started.stderr
        seen: dict[int, str] = {}
        wait_until(lambda: ((who := asked()) and seen.update({who["pid"]: who["gpus"]})) or len(seen) == 2)
        assert sorted(seen.values()) == ["0,1", "2,3"]
        killed, other = seen
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: (who := asked()) is not None and who["pid"] == other)
        wait_until(lambda: (who := asked()) is not None and who["pid"] not in seen)
        assert answering(env)["restarts"] == 1
    finally:
        down = rstar2("serve", "down", env=env)
    assert down.code == 0, down.stderr
