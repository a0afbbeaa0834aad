"""The vLLM that runs a chat's model: started with the chat where it is installed and fits, and ended with it."""

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
"""Of weights. A smaller model has answered in this process before vLLM, which takes a minute or more, is ready."""
READY_S = 1800.0
RESTARTS = 3
RESTART_S = 300.0
"""How long a person waits for a vLLM that crashed and is started again."""
OnProgress = Callable[[str], None]


@contextmanager
def started_engine(
    choice: ModelChoice, notice: Notice, progress: OnProgress = lambda _: None
) -> Iterator[ModelChoice]:
    """The choice with the URL of a vLLM that is started for it, where that is what runs it; else as it is.

    `progress` gets what vLLM does while it loads, in a few words.

    Raises:
        UserError: there is no such model, it cannot be shown its format, or vLLM was asked for and is not installed.
        UserError, Failure: vLLM was asked for and did not start; with `auto` that is said, and the model runs in this
            process.
    """
    vllm = _wanted(choice)
    folder = None if vllm is None or choice.named is None else local_model(choice.named)
    if vllm is None or folder is None or (choice.engine == "auto" and _is_small(folder)):
        yield choice
        return
    # What a chat would refuse once vLLM has loaded.
    load_codec(folder, choice.format)
    with ExitStack() as stack:
        try:
            url = stack.enter_context(_own_vllm(folder, vllm, choice.format, notice, progress))
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


def _wanted(choice: ModelChoice) -> VLLM | None:
    """The vLLM that would run the model; None where that is not vLLM."""
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
def _own_vllm(
    folder: Path, vllm: VLLM, fmt: FormatChoice, notice: Notice, progress: OnProgress
) -> Iterator[str]:
    """The URL of a vLLM that ends with the block; raises what `choose` and `supervised` raise."""
    endpoint = Endpoint("127.0.0.1", free_port())
    # One person asks: a copy on every GPU would be of no use.
    chosen = choose(Choice(str(folder), "vllm", endpoint, vllm.python, fmt, replicas=1))
    settings = chosen.settings(READY_S, RESTARTS, detached=False)
    for note in chosen.notes:
        notice(note)
    notice(
        f"starting {chosen.engine} for {folder}; this takes a minute or more (--engine transformers starts sooner)"
    )
    notice(f"its log: tail -F {settings.folder}/logs/engine.log")
    progress("starting")
    with closing(supervised(settings)) as events:
        for event in events:
            if event.kind == "ready":
                break
            progress(event.text)
        yield settings.url
    shutil.rmtree(settings.folder, ignore_errors=True)
