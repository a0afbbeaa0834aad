"""The messages between clients and the judge: requests to run programs and cells, and their results.

Requests refuse unknown fields, so that a user's typo is not ignored. Results ignore unknown fields, because only a
later version of the judge sends any (see `protocol_version`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

Outcome = Literal["ok", "error", "timeout", "memory", "output_limit", "refused", "invalid", "lost"]
"""How a program ended.

- ok: exit code 0.
- error: an exception, or an exit code other than 0.
- timeout, memory, output_limit: the program reached that limit.
- refused: the sandbox or the service did not run the program.
- invalid: the request was wrong.
- lost: the service gave up; nothing is known about the program.
"""

Isolation = Literal["strict", "landlock", "none"]
ISOLATION_ORDER: tuple[Isolation, ...] = ("none", "landlock", "strict")
"""Isolation tiers, weakest first."""

MAX_CODE_BYTES = 1 << 20
MAX_STDIN_BYTES = 32 << 20
MAX_OUTPUT_BYTES = 1 << 20
"""Limit for stdout and for stderr separately. Later output is dropped, and the truncation flag is set."""
MAX_OUTPUT_JSON_BYTES = 2 * MAX_OUTPUT_BYTES
"""Limit for the same output as JSON. Only control characters such as NUL can reach it: each takes six bytes there."""
RUN_ID_PATTERN = "[A-Za-z0-9_.:-]{1,128}"
"""The ids that a client may choose for a run."""
MAX_BATCH = 1024
MAX_MESSAGE_BYTES = 64 << 20
"""Limit for the body of one HTTP request, and for one message on a WebSocket."""
MAX_TIMEOUT_S = 300.0
MAX_WAIT_S = 3600.0
"""A program that has no result this long after its own time limit gets the outcome `lost`."""


def utf8_bytes(text: str) -> bytes:
    """Returns the text in UTF-8. Raises ValueError if it contains a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate") from error


def _checked_size(text: str, max_bytes: int) -> str:
    size = len(utf8_bytes(text))
    if size > max_bytes:
        raise ValueError(f"has {size} bytes, at most {max_bytes} are allowed")
    return text


def _checked_code(code: str) -> str:
    if "\0" in _checked_size(code, MAX_CODE_BYTES):
        raise ValueError("contains a NUL byte")
    return code


Code = Annotated[str, AfterValidator(_checked_code)]
"""Python source of at most MAX_CODE_BYTES in UTF-8, without NUL bytes or lone surrogates."""
Stdin = Annotated[str, AfterValidator(lambda text: _checked_size(text, MAX_STDIN_BYTES))]
"""Standard input of at most MAX_STDIN_BYTES in UTF-8."""
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]
"""A time limit in wall-clock seconds."""
Memory = Annotated[int, Field(ge=16, le=65536)]
"""A memory limit in MiB."""
Lifetime = Annotated[float, Field(gt=0, le=86400)]
"""A session's lifetime in seconds."""


class RunRequest(BaseModel, extra="forbid", strict=True):
    """One program to run.

    Raises:
        pydantic.ValidationError: a field is unknown, has a wrong type or is out of bounds.
    """

    code: Code
    stdin: Stdin = ""
    timeout_s: Timeout = 10.0
    """The program's time limit in wall-clock seconds. Time in the queue does not count."""
    memory_mb: Memory = 1024


class RunResult(BaseModel):
    """The result of one program."""

    id: str
    outcome: Outcome
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """The repr of the program's last expression, as in a notebook.

    The value is None if the last statement is not an expression, or if that expression's value is None.
    """
    exit_code: int | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    cpu_s: float = 0.0
    """CPU seconds of the program and all its child processes."""
    wall_s: float = 0.0
    """Wall-clock seconds from the program's start to its end."""
    queue_s: float = 0.0
    """Wall-clock seconds that the program waited for a worker."""
    isolation: Isolation | None = None
    """The isolation tier under which the program ran, or None if the program never ran."""

    @property
    def ended_while(self) -> Literal["computing", "waiting"] | None:
        """Whether a program that reached its time limit was computing or waiting, or None for all other programs.

        A program counts as waiting if it used less than half of a processor: the program slept, the program waited for
        input or a lock, or the machine was too busy.
        """
        if self.outcome != "timeout":
            return None
        return "computing" if self.cpu_s > 0.5 * self.wall_s else "waiting"


class SessionRequest(BaseModel, extra="forbid", strict=True):
    """The limits of a new session. A session is a Python process that keeps its state from cell to cell."""

    memory_mb: Memory = 1024
    """The memory limit of the whole session in MiB."""
    idle_s: Lifetime = 600.0
    """The session ends if no cell is requested for this long (seconds)."""
    total_s: Lifetime = 3600.0
    """The session ends after this long in any case (seconds)."""


class SessionInfo(BaseModel):
    """An open session."""

    id: str
    isolation: Isolation
    idle_s: float
    total_s: float


class CellRequest(BaseModel, extra="forbid", strict=True):
    """One cell to run in a session."""

    code: Code
    timeout_s: Timeout = 10.0
    """The cell is interrupted after this long. If it does not stop, the session ends."""


class CellResult(RunResult):
    """The result of one cell, and whether its session still lives."""

    session_alive: bool = True
    """If False, the session's state is gone, and every further cell of this session will be `lost`."""
    session_end: str = ""
    """Why the session ended."""


_IDENTITY_FIELDS = frozenset({"code", "stdin", "timeout_s", "memory_mb", "idle_s", "total_s"})


def identity(request: RunRequest | SessionRequest | CellRequest) -> str:
    """Returns the fields, as JSON, in which two requests with the same id must agree.

    Fields that a later minor version adds are left out. A client may repeat a request under the same id after its judge
    was updated, and the new judge reads fields that the old judge ignored.
    """
    return request.model_dump_json(include=set(_IDENTITY_FIELDS))


class BatchRequest(BaseModel, extra="forbid"):
    """Several programs in one request. Items are validated one by one later, so that a bad item is `invalid` alone."""

    runs: list[object] = Field(max_length=MAX_BATCH)


class StreamRequest(BaseModel, extra="forbid", strict=True):
    """A request on the WebSocket: run one program, or cancel it.

    Raises:
        pydantic.ValidationError: a field is unknown or has a wrong type, or both `run` and `cancel` are set.
    """

    id: Annotated[str, Field(pattern=f"^{RUN_ID_PATTERN}$")]
    """An id that the client chooses. A request that is repeated under the same id does not run the program again."""
    run: object = None
    """The fields of a `RunRequest`. The fields are validated later, so that a bad program is `invalid` alone."""
    cancel: bool = False
    """Whether to cancel the program instead of running it."""

    @model_validator(mode="after")
    def _check_run_or_cancel(self) -> StreamRequest:
        if self.cancel and self.run is not None:
            raise ValueError("both run and cancel are set")
        return self


class StreamResponse(BaseModel):
    """A response on the WebSocket: the result of one program, a request to retry, or a confirmed cancellation."""

    id: str
    result: RunResult | None = None
    retry_after_s: float = 0.0
    """Seconds after which to send the request again. Set if the queue is full and the program was not queued."""
    cancelled: bool = False
    """Whether the program was cancelled. A cancelled program has no result."""
