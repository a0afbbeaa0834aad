"""The vLLM server of a chat, which starts and ends with the chat if vLLM is installed and fits this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rstar2.chat.model import ModelChoice
from rstar2.chat.recovery import Notice
from rstar2.engines.models import local_model
from rstar2.errors import Failure, UserError
from rstar2.loop.turns.choose import FormatChoice, load_codec
from rstar2.processes import free_port
from rstar2.serve.choose import Choice, choose
from rstar2.serve.hardware import model_size
from rstar2.serve.plan import Endpoint
from rstar2.serve.start import supervised
from rstar2.serve.vllm import VLLM, distribution_here, find_vllm, install_hint, vllm_python

SMALL_GIB = 0.1
"""A model runs in this process if its weights are smaller than this number of GiB. A small model in this process
answers sooner than vLLM, which needs a minute or more to start.
"""
READY_S = 1800.0
RESTARTS = 3
RESTART_S = 300.0
"""Number of seconds for which a chat waits for a vLLM that crashed and is being restarted."""
OnProgress = Callable[[str], None]


@contextmanager
def started_engine(
    choice: ModelChoice, notice: Notice, progress: OnProgress = lambda _: None
) -> Iterator[ModelChoice]:
    """Start vLLM if vLLM should run the model. Yields `choice` with vLLM's URL added, or `choice` unchanged if vLLM is
    not used.

    `progress` is called with a few words about what vLLM is doing while it loads.

    Raises:
        UserError: there is no such model, its chat template does not fit its format, or the engine `vllm` is chosen and
            not installed.
        UserError, Failure: the engine `vllm` is chosen and did not start. If the engine is `auto` and vLLM does not
            start, a notice says so, and the model runs in this process.
    """
    vllm = _vllm_for(choice)
    folder = None if vllm is None or choice.named is None else local_model(choice.named)
    if vllm is None or folder is None or (choice.engine == "auto" and _is_small(folder)):
        yield choice
        return
    # The chat would fail for the same reasons, but only after vLLM has loaded.
    load_codec(folder, choice.format)
    with ExitStack() as stack:
        try:
            url = stack.enter_context(_started_vllm(folder, vllm, choice.format, notice, progress))
        except (Failure, UserError) as error:
            if choice.engine == "vllm":
                raise
            notice(f"vLLM did not start: {error.message}; the model runs in this process instead")
            started = choice
        else:
            started = ModelChoice(
                model=str(folder), url=url, format=choice.format, tool=choice.tool, away_s=RESTART_S
            )
        yield started


def _vllm_for(choice: ModelChoice) -> VLLM | None:
    """Returns the vLLM that should run the model, or None if another engine should run it."""
    if choice.url is not None or choice.engine == "transformers":
        return None
    vllm = find_vllm(vllm_python())
    if vllm is None and choice.engine == "vllm":
        raise UserError("vLLM is not installed", install_hint())
    needs_gpu = vllm is not None and vllm.distribution == "vllm"
    if choice.engine == "auto" and needs_gpu and distribution_here() != "vllm":
        return None
    return vllm


def _is_small(folder: Path) -> bool:
    size = model_size(folder)
    return size is not None and size.weights_gib < SMALL_GIB


@contextmanager
def _started_vllm(
    folder: Path, vllm: VLLM, fmt: FormatChoice, notice: Notice, progress: OnProgress
) -> Iterator[str]:
    """Start a vLLM that ends with the `with` block, and yield its URL. Raises what `choose` and `supervised` raise."""
    endpoint = Endpoint("127.0.0.1", free_port())
    # A chat has one user, so one copy of the model is enough.
    chosen = choose(Choice(str(folder), "vllm", endpoint, vllm.python, fmt, replicas=1))
    settings = chosen.settings(READY_S, RESTARTS, detached=False)
    for note in chosen.notes:
        notice(note)
    notice(
        f"starting {chosen.engine} for {folder}; this takes a minute or more (--engine transformers starts sooner)"
    )
    notice(f"vLLM's log: tail -F {settings.folder}/logs/engine.log")
    progress("starting")
    with closing(supervised(settings)) as events:
        for event in events:
            if event.kind == "ready":
                break
            progress(event.text)
        yield settings.url
    shutil.rmtree(settings.folder, ignore_errors=True)
