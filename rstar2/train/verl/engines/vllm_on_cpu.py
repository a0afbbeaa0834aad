"""Makes vLLM's CPU build keep the original weights of its layers, so that VERL can replace the weights.

By default, vLLM repacks the weights of each layer and deletes the original weights. VERL's setting
`rollout.engine_kwargs.vllm.worker_extension_cls` names the class `PlainWeights`. Only vLLM's workers import this
module, before they load the model.
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
    """Replaces `dispatch_cpu_unquantized_gemm` (vLLM 0.32), which would make layers use repacked copies of their
    weights."""
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _use_as_they_are


def _end_engine_with_server() -> None:
    """Starts a thread that kills vLLM's engine when VERL's server ends.

    VERL's server has started the engine, and the engine has started this process. Without the thread, the engine would
    keep running and keep its memory after the server was killed. This process ends when the engine ends.
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
    """VERL's worker extension for vLLM, which receives new weights. This class also ends the engine when VERL's server
    ends."""

    def __new__(cls, **kwargs: object) -> PlainWeights:
        _end_engine_with_server()
        worker: PlainWeights = super().__new__(cls, **kwargs)
        return worker
