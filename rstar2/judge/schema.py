"""The messages between clients and the judge: requests to run programs and cells, and their results.

A request with an unknown field is invalid, so that a user's typo is noticed. Unknown fields of a result are ignored,
because only a later version of the judge sends unknown fields (see `protocol_version`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

Outcome = Literal["ok", "error", "timeout", "memory", "output_limit", "refused", "invalid", "lost"]
"""How a program ended.

- ok: the program ended with exit code 0.
- error: the program raised an exception, or had an exit code other than 0.
- timeout, memory, output_limit: the program reached its limit of time, memory or output.
- refused: the sandbox or the service did not run the program.
- invalid: the request was not valid, for example because a field was wrong.
- lost: the service gave up on the program, and nothing is known about the program's end.
"""

Isolation = Literal["strict", "landlock", "none"]
ISOLATION_ORDER: tuple[Isolation, ...] = ("none", "landlock", "strict")
"""The isolation tiers, from the weakest to the strongest."""

MAX_CODE_BYTES = 1 << 20
MAX_STDIN_BYTES = 32 << 20
MAX_OUTPUT_BYTES = 1 << 20
"""Maximum number of bytes of a program's stdout, and of its stderr, in a result. Output beyond this limit is dropped,
and `stdout_truncated` or `stderr_truncated` is True."""
MAX_OUTPUT_JSON_BYTES = 2 * MAX_OUTPUT_BYTES
"""Maximum number of bytes that a program's stdout, or its stderr, may take as JSON. Only output with many control
characters such as NUL reaches this limit, because a control character takes six bytes as JSON."""
RUN_ID_PATTERN = "[A-Za-z0-9_.:-]{1,128}"
"""Regular expression for the ids that a client may choose for a run."""
MAX_BATCH = 1024
MAX_MESSAGE_BYTES = 64 << 20
"""Maximum number of bytes in the body of an HTTP request, and in a message on a WebSocket."""
MAX_TIMEOUT_S = 300.0
MAX_WAIT_S = 3600.0
"""A program gets the outcome `lost` if it has no result this many seconds after its own time limit."""


def utf8_bytes(text: str) -> bytes:
    """Encodes the text in UTF-8. Raises ValueError if the text contains a lone surrogate."""
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
"""Python source code of at most MAX_CODE_BYTES bytes in UTF-8, without NUL bytes or lone surrogates."""
Stdin = Annotated[str, AfterValidator(lambda text: _checked_size(text, MAX_STDIN_BYTES))]
"""Standard input for a program, of at most MAX_STDIN_BYTES bytes in UTF-8."""
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]
"""A time limit in wall-clock seconds."""
Memory = Annotated[int, Field(ge=16, le=65536)]
"""A memory limit in MiB."""
Lifetime = Annotated[float, Field(gt=0, le=86400)]
"""A limit for a session's lifetime or idle time, in seconds."""


class RunRequest(BaseModel, extra="forbid", strict=True):
    """A request to run one program.

    Raises:
        pydantic.ValidationError: a field is unknown, has a wrong type or is out of bounds.
    """

    code: Code
    """Python source code: at most 1 MiB, without NUL bytes and lone surrogates."""
    stdin: Stdin = ""
    """The program's standard input, at most 32 MiB."""
    timeout_s: Timeout = 10.0
    """The program's time limit in wall-clock seconds. Time in the queue does not count towards the limit."""
    memory_mb: Memory = 1024
    """The memory limit of the program and its child processes in MiB, 16 to 65,536."""


class RunResult(BaseModel):
    """The result of one program."""

    id: str
    """The id of the run."""
    outcome: Outcome
    """How the program ended; `Outcome` explains the values."""
    stdout: str = ""
    """The first MiB of what the program wrote to standard output."""
    stderr: str = ""
    """The first MiB of what the program wrote to standard error."""
    value: str | None = None
    """The repr of the program's last expression, as in a notebook.

    `value` is None if the program's last statement is not an expression, or if the value of the last expression is
    None.
    """
    exit_code: int | None = None
    """The program's exit code, or minus the number of the signal that ended it. The value is None if it is not known
    how the program ended."""
    stdout_truncated: bool = False
    """Whether the program wrote more to standard output than `stdout` contains."""
    stderr_truncated: bool = False
    """Whether the program wrote more to standard error than `stderr` contains."""
    cpu_s: float = 0.0
    """CPU seconds that the program and all its child processes used."""
    wall_s: float = 0.0
    """Wall-clock seconds from the program's start to its end."""
    queue_s: float = 0.0
    """Wall-clock seconds that the program spent waiting for a worker."""
    isolation: Isolation | None = None
    """The isolation tier under which the program ran, or None if the program never ran."""

    @property
    def ended_while(self) -> Literal["computing", "waiting"] | None:
        """Whether the program was computing or waiting when it reached its time limit.

        `ended_while` is None if the program did not reach its time limit.

        A program counts as waiting if it used at most half of a CPU on average. A waiting program slept, waited for
        input or a lock, or ran on a machine that was too busy.
        """
        if self.outcome != "timeout":
            return None
        return "computing" if self.cpu_s > 0.5 * self.wall_s else "waiting"


class SessionRequest(BaseModel, extra="forbid", strict=True):
    """The limits of a new session. A session is a Python process that keeps its state from cell to cell."""

    memory_mb: Memory = 1024
    """The memory limit of the whole session in MiB."""
    idle_s: Lifetime = 600.0
    """The session ends if no cell is requested for this many seconds."""
    total_s: Lifetime = 3600.0
    """The session ends this many seconds after its start, even if it is in use."""


class SessionInfo(BaseModel):
    """Describes an open session."""

    id: str
    isolation: Isolation
    idle_s: float
    total_s: float


class CellRequest(BaseModel, extra="forbid", strict=True):
    """A request to run one cell in a session."""

    code: Code
    timeout_s: Timeout = 10.0
    """The cell is interrupted after this many seconds. If the interrupted cell does not stop, the session ends."""


class CellResult(RunResult):
    """The result of one cell, and whether the cell's session is still alive."""

    session_alive: bool = True
    """Whether the session is still alive. If False, the session's variables are gone, and every further cell of the
    session gets the outcome `lost`."""
    session_end: str = ""
    """Why the session ended, or empty if the session is alive."""


_IDENTITY_FIELDS = frozenset({"code", "stdin", "timeout_s", "memory_mb", "idle_s", "total_s"})


def identity(request: RunRequest | SessionRequest | CellRequest) -> str:
    """Returns as JSON those fields of a request that must be equal in all requests with the same id.

    Fields that a later minor version adds are left out: a client may repeat a request under the same id after the judge
    was updated, and the updated judge reads fields that the old judge ignored.
    """
    return request.model_dump_json(include=set(_IDENTITY_FIELDS))


class BatchRequest(BaseModel, extra="forbid"):
    """A request to run several programs.

    The items are validated one by one later, so that a bad item makes only its own result `invalid`.
    """

    runs: list[object] = Field(max_length=MAX_BATCH)


class StreamRequest(BaseModel, extra="forbid", strict=True):
    """A request on the WebSocket: to run one program, or to cancel it.

    Raises:
        pydantic.ValidationError: a field is unknown or has a wrong type, or both `run` and `cancel` are set.
    """

    id: Annotated[str, Field(pattern=f"^{RUN_ID_PATTERN}$")]
    """An id that the client chooses. If the client repeats a request under the same id, the program does not run
    again."""
    run: object = None
    """The fields of a `RunRequest`. The fields are validated later, so that a bad program makes only its own result
    `invalid`."""
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
    """Seconds after which to send the request again, if the queue was full and the program was not queued."""
    cancelled: bool = False
    """Whether the program was cancelled. A cancelled program has no result."""
