"""Lets VERL replace the weights of vLLM's CPU build, which would pack those of each layer anew and drop the plain ones.

VERL's setting `rollout.engine_kwargs.vllm.worker_extension_cls` names the class; only vLLM's workers import this,
before they load the model.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from threading import Thread

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers import utils


def _use_as_they_are(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stands in for `dispatch_cpu_unquantized_gemm` (vLLM 0.32), whose layers then multiply by copies."""
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _use_as_they_are


def _end_engine_with_server() -> None:
    """Have vLLM's engine, which starts this process, end when VERL's server does, which started the engine.

    By itself it outlives a server that was killed, and keeps its memory; this process ends with the engine.
    """
    engine = os.getppid()
    server = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
    end = select.poll()
    end.register(os.pidfd_open(server), select.POLLIN)

    def wait() -> None:
        end.poll()
        os.kill(engine, signal.SIGKILL)

    Thread(target=wait, daemon=True).start()


class PlainWeights(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """VERL's extension of vLLM's worker, which receives new weights, where layers use the weights that it writes."""

    def __new__(cls, **kwargs: object) -> PlainWeights:
        _end_engine_with_server()
        worker: PlainWeights = super().__new__(cls, **kwargs)
        return worker
