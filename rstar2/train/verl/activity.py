"""Reports what the trainer's first rank is doing, for example which micro-batch it computes or which tensor it sends.

An update can take hours and prints nothing. Hooks around methods of VERL's FSDP engine therefore write what the engine
is doing. The hooks are installed only in the process of rank 0, when this process joins its process group.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed

from rstar2.train.records.progress import (
    LOADING_CHECKPOINT,
    LOADING_MODEL,
    SENDING_WEIGHTS,
    Activity,
    ActivityWriter,
)
from rstar2.train.trainer.saving import STAGE_FOLDER

MICRO_BATCHES, TENSORS = "micro-batches", "tensors"
_PHASES = {
    "initialize": LOADING_MODEL,
    "optimizer_step": "optimizer",
    "save_checkpoint": "saving a checkpoint",
    "load_checkpoint": LOADING_CHECKPOINT,
}
"""Dict from a method of VERL's engine to the phase that begins when the method is called."""


def report_after(join: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of VERL that joins a process group. After the wrapped function has run, the first rank reports
    its activity."""

    @functools.wraps(join)
    def joined(*args: Any, **kwargs: Any) -> Any:
        result = join(*args, **kwargs)
        if STAGE_FOLDER in os.environ and torch.distributed.get_rank() == 0:
            report_activity(Path(os.environ[STAGE_FOLDER]))
        return result

    return joined


@functools.cache  # it is called twice if there is a reference model, which joins after the actor
def report_activity(folder: Path) -> None:
    """Installs the hooks, which write the activity of VERL's FSDP engine in this process to `folder/alive.json`."""
    from verl.workers.engine.fsdp import transformer_impl

    hooks = ActivityHooks(ActivityWriter(folder))
    engine, language_model = transformer_impl.FSDPEngine, transformer_impl.FSDPEngineWithLMHead
    transformer_impl.prepare_micro_batches = hooks.count_micro_batches(transformer_impl.prepare_micro_batches)
    engine.forward_backward_batch = hooks.name_batch(engine.forward_backward_batch)
    language_model.forward_step = hooks.begin_micro_batch(language_model.forward_step)
    engine.get_per_tensor_param = hooks.count_sent_tensors(engine.get_per_tensor_param)
    for name, phase in _PHASES.items():
        setattr(engine, name, hooks.begin_phase(getattr(engine, name), phase))


class ActivityHooks:
    """Wrappers for functions of VERL. Each call of a wrapped function writes the trainer's activity."""

    def __init__(self, writer: ActivityWriter) -> None:
        self._write = writer.write
        self._phase = ""
        self._total = 0
        self._begun = 0

    def begin_phase(self, original: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            self._write(Activity(phase))
            return original(*args, **kwargs)

        return method

    def name_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(engine: Any, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
            self._phase = "log-probabilities" if forward_only else "update"
            return original(engine, data, loss_function, forward_only=forward_only)

        return method

    def count_micro_batches(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            micro_batches, rows = original(*args, **kwargs)
            self._total, self._begun = len(micro_batches), 0
            return micro_batches, rows

        return function

    def begin_micro_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            self._write(Activity(self._phase, self._begun, self._total, MICRO_BATCHES))
            self._begun += 1
            return original(*args, **kwargs)

        return method

    def count_sent_tensors(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            tensors, adapter = original(*args, **kwargs)
            return self._with_reports(tensors), adapter

        return method

    def _with_reports(self, tensors: Iterable[Any]) -> Iterator[Any]:
        for count, tensor in enumerate(tensors):
            self._write(Activity(SENDING_WEIGHTS, count, 0, TENSORS))
            yield tensor
