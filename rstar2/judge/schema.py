"""What clients and the judge say to each other: one program in, one structured result out.

Requests refuse unknown fields, because a user's typo must not be ignored. Results ignore them: only a later version
of our own sends any (`protocol_version`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

Outcome = Literal["ok", "error", "timeout", "memory", "output_limit", "refused", "invalid", "lost"]
"""ok: exit code 0. error: an exception or a non-zero exit. timeout, memory, output_limit: a limit was hit.
refused: the sandbox or the service would not run it. invalid: the request itself was wrong. lost: the service
could not finish it within its bounds; nothing is known about the program."""

Isolation = Literal["strict", "landlock", "none"]
ISOLATION_ORDER: tuple[Isolation, ...] = ("none", "landlock", "strict")
"""Weakest first."""

MAX_CODE_BYTES = 1 << 20
MAX_STDIN_BYTES = 32 << 20
MAX_OUTPUT_BYTES = 1 << 20
"""Kept of stdout and of stderr, each; what comes after is dropped and the truncation flag set."""
MAX_OUTPUT_JSON_BYTES = 2 * MAX_OUTPUT_BYTES
"""The same of what is kept as JSON, where a control character such as NUL takes six bytes. Other text never does."""
CHOSEN_ID = "[A-Za-z0-9_.:-]{1,128}"
"""What clients may call a run."""
MAX_BATCH = 1024
MAX_MESSAGE_BYTES = 64 << 20
"""Of one request, and of one message on a WebSocket."""
MAX_TIMEOUT_S = 300.0
MAX_WAIT_S = 3600.0
"""A program that is not done this long after its own time limit is answered `lost`."""


def encodable(text: str) -> bytes:
    """Text as UTF-8; ValueError where it holds a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate") from error


def _bounded(text: str, most: int) -> str:
    size = len(encodable(text))
    if size > most:
        raise ValueError(f"holds {size} bytes, at most {most} are allowed")
    return text


def _checked_code(code: str) -> str:
    if "\0" in _bounded(code, MAX_CODE_BYTES):
        raise ValueError("holds a NUL byte")
    return code


Code = Annotated[str, AfterValidator(_checked_code)]
"""Python source, at most MAX_CODE_BYTES as UTF-8, without NUL bytes and lone surrogates."""
Stdin = Annotated[str, AfterValidator(lambda text: _bounded(text, MAX_STDIN_BYTES))]
"""At most MAX_STDIN_BYTES as UTF-8."""
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]
"""Wall-clock seconds."""
Memory = Annotated[int, Field(ge=16, le=65536)]
"""MiB."""
Lifetime = Annotated[float, Field(gt=0, le=86400)]
"""Seconds."""


class RunRequest(BaseModel, extra="forbid", strict=True):
    """One program to run.

    Raises:
        pydantic.ValidationError: a field is unknown, of a wrong type or out of bounds.
    """

    code: Code
    stdin: Stdin = ""
    timeout_s: Timeout = 10.0
    """Of the program, once it runs."""
    memory_mb: Memory = 1024


class RunResult(BaseModel):
    """What became of one program."""

    id: str
    outcome: Outcome
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """repr of the last bare expression, as a notebook shows it; None where there is none or it is None."""
    exit_code: int | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    cpu_s: float = 0.0
    """Processor seconds of the whole process tree."""
    wall_s: float = 0.0
    """Wall-clock seconds from start to end of the program."""
    queue_s: float = 0.0
    """Wall-clock seconds the program waited for a worker."""
    isolation: Isolation | None = None
    """The tier that was in force; None where the program never ran."""

    @property
    def ended_while(self) -> Literal["computing", "waiting"] | None:
        """What a program that met its time limit did meanwhile; None for every other.

        It waited if it slept, waited for input or a lock, or the machine gave it less than half of a processor.
        """
        if self.outcome != "timeout":
            return None
        return "computing" if self.cpu_s > 0.5 * self.wall_s else "waiting"


class SessionRequest(BaseModel, extra="forbid", strict=True):
    """A session to open: a Python process that keeps its state from cell to cell."""

    memory_mb: Memory = 1024
    """Of the whole session."""
    idle_s: Lifetime = 600.0
    """If no cell is requested for this long, the session ends."""
    total_s: Lifetime = 3600.0
    """After this long the session ends in any case."""


class SessionInfo(BaseModel):
    """A session that was opened."""

    id: str
    isolation: Isolation
    idle_s: float
    total_s: float


class CellRequest(BaseModel, extra="forbid", strict=True):
    """One cell to run in a session."""

    code: Code
    timeout_s: Timeout = 10.0
    """The cell is interrupted then, and the session ended if it does not stop."""


class CellResult(RunResult):
    """What became of one cell, and of its session."""

    session_alive: bool = True
    """False: the state is gone, and every further cell of this session will be `lost`."""
    session_end: str = ""
    """Why the session ended."""


_IDENTITY = frozenset({"code", "stdin", "timeout_s", "memory_mb", "idle_s", "total_s"})


def identity(request: RunRequest | SessionRequest | CellRequest) -> str:
    """Returns what tells one request from another under the same id, as JSON.

    Fields that a minor version adds later do not belong to it. A client may ask again under the same id after its judge
    was replaced by one of another version, which reads fields that the first one ignored.
    """
    return request.model_dump_json(include=set(_IDENTITY))


class BatchRequest(BaseModel, extra="forbid"):
    """Several programs at once. Items are not checked here, so that a bad one is `invalid` alone."""

    runs: list[object] = Field(max_length=MAX_BATCH)


class StreamRequest(BaseModel, extra="forbid", strict=True):
    """What a client asks for one program, on a WebSocket for many.

    Raises:
        pydantic.ValidationError: see `RunRequest`; or the program is both to be run and to be cancelled.
    """

    id: Annotated[str, Field(pattern=f"^{CHOSEN_ID}$")]
    """Chosen by the client; asked for again under it, the program is not run again."""
    run: object = None
    """The fields of a `RunRequest`. Not checked here, so that a bad one is `invalid` alone."""
    cancel: bool = False
    """Cancel the program instead."""

    @model_validator(mode="after")
    def _either(self) -> StreamRequest:
        if self.cancel and self.run is not None:
            raise ValueError("both run and cancel")
        return self


class StreamResponse(BaseModel):
    """What the judge answers for one program, on a WebSocket for many."""

    id: str
    result: RunResult | None = None
    retry_after_s: float = 0.0
    """Where there is no result: the queue is full, and when to ask again."""
    cancelled: bool = False
    """It was to be cancelled, and there will be no result."""
