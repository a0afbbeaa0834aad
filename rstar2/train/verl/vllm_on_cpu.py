"""Lets VERL replace the weights of vLLM's CPU build, which would pack those of each layer anew and drop the plain ones.

VERL's setting `rollout.engine_kwargs.vllm.worker_extension_cls` names the class; only vLLM's workers import this,
before they load the model.
"""

from __future__ import annotations

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers import utils


def _use_as_they_are(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stands in for `dispatch_cpu_unquantized_gemm` (vLLM 0.32), whose layers then multiply by copies."""
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _use_as_they_are


class PlainWeights(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """VERL's extension of vLLM's worker, which receives new weights, where layers use the weights that it writes."""
