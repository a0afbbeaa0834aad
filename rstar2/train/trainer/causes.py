"""Finds the cause of a trainer's failure in the trainer's log, and tells the user what to do. Errors that are only a
consequence of another error are skipped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 8_000_000
"""Number of bytes that are searched at the end of a log. A step of a large run prints several thousand bytes."""
OWN_PREFIX = "rstar2: "
"""The prefix of the lines that rstar2 itself writes to a trainer's log, such as warnings."""
_LONGEST = 500
"""Maximum number of characters of a cause."""
_PREFIX = re.compile(r"^\s*(?:\x1b\[[0-9;]*m)*(?:\([^)]*\)|\[rank\d+\]:)?(?:\x1b\[[0-9;]*m)*\s*")
"""The prefix that Ray and torch put before each line that one of their processes prints."""
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Failure)(?::|$)")
_CONSEQUENCE = re.compile(
    r"^(?:ray\.exceptions\.|ray\.)?(?:ActorDiedError|ActorUnavailableError|RayActorError|RayTaskError|WorkerCrashedError|"
    r"ObjectLostError|OwnerDiedError|NodeDiedError|TaskCancelledError)"
    r"|ChildFailedError|^torch\.distributed\.DistBackendError|^BrokenPipeError|^ConnectionResetError|^KeyboardInterrupt"
    r"|^RuntimeError: Sync replay buffer selected terminal groups"
)
"""Errors that are only a consequence of another error: they say that a process has ended or that all rollouts of a step
failed."""
_ENGINE_DIED = "rollout server failed: The actor died"


@dataclass(frozen=True)
class Cause:
    """The cause of a trainer's failure."""

    line: str
    """The line of the log that names the cause, without the prefix of Ray or torch."""
    remedy: str = ""
    """A sentence that says what the user can do; empty if no remedy is known."""


_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"^rstar2\.errors\.Failure: step \d+: rollouts that failed",
        "Remove the cause: the log has each failed rollout's error after 'rollout … failed'. The same command then "
        "continues from the last checkpoint, with new engines.",
    ),
    (
        r"CUDA out of memory|HIP out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        "A GPU is out of memory: set hardware.offload=all or a smaller hardware.engine_memory_share. In a new run, you "
        "can also lower hardware.update_tokens. `rstar2 plan` calculates what fits.",
    ),
    (
        r"No available memory for the cache blocks|KV cache is needed, which is larger",
        "An engine has no room for its KV cache: raise hardware.engine_memory_share. In a new run, you can also raise "
        "hardware.tensor_parallel.",
    ),
    (
        r"not enough disk space for the checkpoint of step \d|No space left on device|Errno 28\]|os error 28\b|"
        r"Disk quota exceeded|Errno 122\]|os error 122\b|OutOfDiskError|Local disk is full",
        "The disk is full: free disk space, or keep fewer checkpoints (checkpoint.keep). The same command then "
        "continues.",
    ),
    (
        # Messages of torch if a file could not be written completely.
        r"basic_ios::clear: iostream error|PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos",
        "A checkpoint could not be written, most often because the disk or a quota is full: free disk space, or keep "
        "fewer checkpoints (checkpoint.keep). The same command then continues.",
    ),
    (
        r"low on memory|memory pressure|OutOfMemoryError: Task was killed|oom-kill|Cannot allocate memory",
        "The machine is out of memory: set hardware.offload=optimizer or none, or use more machines.",
    ),
    (
        r"^(?:\w+\.)*JudgeError\b",
        "Start the judge again, then run the same command: training continues from its last checkpoint.",
    ),
    (
        r"api_key not configured|wandb\.errors|wandb: ERROR",
        "Run `wandb login`, set WANDB_MODE=offline, or remove wandb from `trackers`.",
    ),
    (
        r"Watchdog caught collective operation timeout|NCCL error|ncclSystemError|ncclRemoteError|"
        r"Timed out waiting .*recv operation|DistStoreError",
        "A rank did not answer the other ranks in time: look for an earlier error in the log of its node. If only a "
        "disk or a network is slow, raise hardware.nccl_timeout_s. NCCL_DEBUG=INFO prints more.",
    ),
    (
        r"CUDA error: |device-side assert|uncorrectable ECC|\bXid\b",
        "A GPU failed: `nvidia-smi -q` and the kernel's log show which. CUDA_LAUNCH_BLOCKING=1 finds the operation.",
    ),
    (
        r"^ZeroDivisionError: float division by zero$",
        'With algorithm.correction = "icepop", VERL fails with this error if no token is within the bounds. In this '
        "case, engine and trainer compute different probabilities. Look at mismatch_kl in steps.csv, and check that "
        "the engines have loaded the trainer's model.",
    ),
    (
        r"The current node timed out during startup",
        "The machine is too busy: Ray's own processes must start within 30 s, and no setting changes this. Stop other "
        "work on the machine, then run the same command.",
    ),
    (
        r"failed to register to the raylet|worker_register_timeout",
        "Ray's processes did not start in time, for example because the disk is slow: raise hardware.worker_start_s.",
    ),
)
"""Patterns of root causes with their remedies. If several patterns match a log, the first of them in this list gives
the cause."""


def find_cause(log: Path, start: int = 0, exit_code: int | None = None) -> Cause:
    """Finds the cause of a trainer's failure in its log.

    The cause is the first line that matches a known pattern (`_KNOWN`). If no line matches, the cause is the last
    exception that is not only a consequence of another exception. If every exception is a consequence of another one,
    the cause is the last exception. If the log has no exception, the cause is the last line. Lines that rstar2 itself
    wrote to the log (`OWN_PREFIX`) are skipped.

    Args:
        log: the trainer's log.
        start: the offset in bytes at which the search begins.
        exit_code: the trainer's exit code. A negative exit code means that a signal killed the trainer.
    """
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - READ_BYTES))
        text = file.read().decode(errors="replace")
    bare_lines = (
        _PREFIX.sub("", line).rstrip() for line in text.splitlines() if not line.startswith(OWN_PREFIX)
    )
    lines = [line for line in bare_lines if line]
    for pattern, remedy in _KNOWN:
        known = re.compile(pattern)
        for line in lines:
            if known.search(line):
                return Cause(line[:_LONGEST], remedy)
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    first_hand = [line for line in exceptions if not _CONSEQUENCE.search(line)]
    cause = (first_hand or exceptions or lines or ["no output"])[-1]
    remedy = ""
    if _ENGINE_DIED in cause:
        remedy = (
            "A rollout engine ended. If the log does not say why, check in the kernel's log (dmesg) whether the "
            "machine ran out of memory. The same command continues from the last checkpoint."
        )
    elif exit_code is not None and exit_code < 0 and not first_hand:
        remedy = (
            "The trainer was killed. If nobody killed it on purpose, check in the kernel's log (dmesg) whether the "
            "machine ran out of memory."
        )
    return Cause(cause[:_LONGEST], remedy)
