"""Makes a tool of a typed Python function: its JSON schema, the check of a call's arguments, and the call itself.

```python
from rstar2 import tool

@tool
async def population(city: str, year: int = 2020) -> str:
    \"\"\"Return the number of people who live in a city.

    Args:
        city: The city's name, in English.
        year: The year to look up.
    \"\"\"
```
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import logging
import re
import textwrap
import threading
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, NotRequired, ParamSpec, Protocol, TypeVar, overload

from pydantic import Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaError
from typing_extensions import TypedDict

from rstar2.config import Strict
from rstar2.errors import UserError
from rstar2.judge.schema import MAX_TIMEOUT_S, RunResult

if TYPE_CHECKING:  # what needs a format alone needs no HTTP client
    from rstar2.judge.client import JudgeClient

P = ParamSpec("P")
R = TypeVar("R")
SESSION_S = 86400.0
"""How long a session may last, in use or not."""
_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE
)
_ARGUMENT = re.compile(r"^(\w+)(?: \([^)]*\))?:\s*(.*(?:\n(?:[ \t]+.*|[ \t]*))*)", re.MULTILINE)
log = logging.getLogger(__name__)


class ToolLimits(Strict):
    """What a call may take, and how much of its result the model sees."""

    seconds: float = Field(10.0, gt=0, le=MAX_TIMEOUT_S)
    """Wall-clock time of a program, a cell, or a call of another tool."""
    memory_mb: int = Field(1024, ge=16, le=65536)
    """MiB of a program or a notebook."""
    characters: int = Field(4000, ge=2)
    """The longest reply in characters. A longer one is shown without its middle."""
    traceback_lines: int = Field(20, ge=1)
    """Last lines of a traceback that are shown."""


class Resource(Protocol):
    """What a tool keeps open from call to call of one rollout, such as a notebook."""

    async def aclose(self) -> None:
        """Called once, at the end of the rollout."""
        ...


ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True)
class ToolContext:
    """What the tools of one rollout may use. A tool's function gets it as the parameter that has this type."""

    judge: JudgeClient
    """Runs programs in a sandbox."""
    limits: ToolLimits
    """The format's."""
    sessions: asyncio.Semaphore
    """Held for as long as a session of the judge is open; all rollouts of a process share it."""
    session_wait_s: float = SESSION_S
    """How long a rollout waits for a free session. Its call is lost if none becomes free."""
    _resources: dict[Any, Any] = field(default_factory=dict)

    def resource(self, make: Callable[[ToolContext], ResourceT]) -> ResourceT:
        """Returns this rollout's resource of a class. The first call makes it, and the rollout's end closes it."""
        if make not in self._resources:
            self._resources[make] = make(self)
        return typing.cast(ResourceT, self._resources[make])

    @property
    def has_resources(self) -> bool:
        """Whether a tool has made a resource for this rollout."""
        return bool(self._resources)

    async def aclose(self) -> None:
        """Close the rollout's resources, each of them even if another one fails."""
        for resource in self._resources.values():
            try:
                await resource.aclose()
            except Exception as error:  # noqa: BLE001 - a resource may raise anything, the run continues
                log.warning("%s was not closed: %s: %s", type(resource).__name__, type(error).__name__, error)


class ArgumentsError(ValueError):
    """A call's arguments do not fit its tool. The message is for the model."""


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call; `tool` makes one. Calling it calls the function."""

    name: str
    schema: dict[str, Any]
    """What the model is shown, as OpenAI's API writes it."""
    function: Callable[P, R]
    aliases: tuple[str, ...]
    """Other names by which a call may name it."""
    _arguments: TypeAdapter[dict[str, Any]]
    _nullable: frozenset[str]
    """Parameters whose type includes None."""
    _context: str | None
    """The parameter that gets the `ToolContext`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the arguments."""
        return typing.cast("dict[str, Any]", self.schema["function"]["parameters"])

    @property
    def empty_texts(self) -> dict[str, str]:
        """An empty text for each required argument that is a text."""
        properties = self.parameters["properties"]
        return {key: "" for key in self.parameters["required"] if properties[key].get("type") == "string"}

    def fitting(self, arguments: Any) -> dict[str, Any]:
        """Returns the arguments of a call that the function reads, checked against its types.

        Left out are names that the function does not have, and null for a parameter that has a default and whose type
        does not include None.

        Raises:
            ArgumentsError: they are no object, one that is required is missing, or one has another type.
        """
        if not isinstance(arguments, dict):
            raise ArgumentsError(self._needed())
        self._converted(arguments)
        return self._read(arguments)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> RunResult:
        """Run a call in this process; a function that is not async runs in a thread.

        A function that takes a `ToolContext` limits its time by itself; any other may take `context.limits.seconds`.

        Raises:
            ArgumentsError: as of `fitting`.
            Exception: what the function raises; what it returned is no text and cannot be written as JSON.
        """
        values, started = self._converted(arguments), time.monotonic()
        if self._context is not None:
            returned = await self._called({**values, self._context: context})
            return _result(returned, time.monotonic() - started)
        try:
            async with asyncio.timeout(context.limits.seconds) as limit:
                returned = await self._called(values)
        except TimeoutError:
            if not limit.expired():
                raise
            return RunResult(id="", outcome="timeout", wall_s=time.monotonic() - started)
        return _result(returned, time.monotonic() - started)

    async def _called(self, values: dict[str, Any]) -> Any:
        function: Callable[..., Any] = self.function
        if inspect.iscoroutinefunction(function):
            return await function(**values)
        return await _in_thread(function, values)

    def _read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function reads, see `fitting`."""
        properties, required = self.parameters["properties"], self.parameters["required"]
        return {
            key: value
            for key, value in arguments.items()
            if key in properties and (value is not None or key in required or key in self._nullable)
        }

    def _converted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function reads, with its Python types, such as an Enum for its value."""
        try:
            # JSON, since in it an array may be a tuple and a text a date, even though no text may be a number.
            return self._arguments.validate_json(json.dumps(self._read(arguments)), strict=True)
        except ValidationError as error:
            required = self.parameters["required"]
            faults = [
                f'"{".".join(map(str, fault["loc"]))}": {fault["msg"]}.'
                for fault in error.errors(include_url=False, include_input=False)
                if len(fault["loc"]) != 1
                or fault["loc"][0] not in required
                or not (fault["type"] == "missing" or fault["type"].endswith("_type"))
            ]
            raise ArgumentsError(" ".join([self._needed(), *faults])) from error

    def _needed(self) -> str:
        properties, required = self.parameters["properties"], self.parameters["required"]
        if not required:
            return f"{self.name} takes an object as its arguments."
        needs = " and ".join(f'"{key}" ({properties[key].get("type", "see its schema")})' for key in required)
        return f"{self.name} needs {needs} in its arguments."


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, aliases: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, aliases: tuple[str, ...] = ()
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function, as the decorator `@tool` or `@tool(name=…)`.

    The function may be async. Each parameter has a type that pydantic can check in JSON, and a line under `Args:` in
    the docstring; one with a default is not required. A parameter of type `ToolContext` is not shown to the model. The
    function returns text, a `RunResult` of the judge, or what `json` can write.

    Args:
        function: the function, if the decorator has no arguments of its own.
        name: by default the function's.
        aliases: other names by which a call may name it.

    Raises:
        UserError: a description or a type is missing, or a type has no JSON schema.
    """
    if function is None:
        return lambda decorated: _made(decorated, name, aliases)
    return _made(function, name, aliases)


_NO_SCHEMA = (PydanticUserError, PydanticUndefinedAnnotation, SchemaError, TypeError)
"""What pydantic raises for a type that it cannot check, or not with what its `Field` asks."""


def _made(function: Callable[P, R], name: str | None, aliases: tuple[str, ...]) -> Tool[P, R]:
    name = name or function.__name__
    hint = "See “A tool” in docs/extending.md."

    def refused(reason: str) -> UserError:
        return UserError(f"the tool {name} in {function.__module__}: {reason}", hint)

    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise refused(f"the type of a parameter cannot be read: {error}") from error
    description, described = _documented(inspect.getdoc(function) or "")
    if not description:
        raise refused("its docstring does not say what it does")
    context: str | None = None
    fields: dict[str, Any] = {}
    nullable: set[str] = set()
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise refused(f"the parameter {key} cannot be given by name")
        if key not in hints:
            raise refused(f"the parameter {key} has no type")
        if hints[key] is ToolContext:
            context = key
            continue
        if not described.get(key):
            raise refused(f"its docstring does not describe {key} under Args:")
        try:
            TypeAdapter(hints[key]).json_schema()
        except _NO_SCHEMA as error:
            shown = hints[key].__qualname__ if inspect.isclass(hints[key]) else str(hints[key])
            raise refused(
                f"the parameter {key} has the type {shown}, which pydantic cannot check in JSON; use int, str, list, "
                "Literal, an Enum or a dataclass, for example"
            ) from error
        kind = Annotated[hints[key], Field(description=described[key])]  # type: ignore[valid-type]
        fields[key] = kind if parameter.default is parameter.empty else NotRequired[kind]
        if _takes_null(hints[key]):
            nullable.add(key)
    if unknown := described.keys() - fields.keys() - {context}:
        raise refused(f"its docstring describes {min(unknown)}, which is no parameter")
    try:
        arguments: Any = TypeAdapter(TypedDict(name, fields))  # type: ignore[operator]
        whole = arguments.json_schema(schema_generator=_PlainSchema)
    except _NO_SCHEMA as error:
        why = str(error).splitlines()[0]
        raise refused(f"pydantic cannot check its parameters in JSON: {why}") from error
    try:
        properties = _inlined(whole.get("properties", {}), whole.get("$defs", {}))
    except RecursionError as error:
        raise refused("a type contains itself") from error
    parameters = {"type": "object", "properties": properties, "required": whole.get("required", [])}
    schema = {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
    return Tool(name, schema, function, aliases, arguments, frozenset(nullable), context)


class _PlainSchema(GenerateJsonSchema):
    """JSON schemas without titles, with keys in the order in which they arise."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema with definitions in place of references to them, which chat templates do not follow."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {key: _inlined(value, definitions) for key, value in schema.items() if key != "$ref"}
    if "$ref" not in schema:
        return rest
    definition = definitions[schema["$ref"].removeprefix("#/$defs/")]
    return {key: value for key, value in _inlined(definition, definitions).items() if key != "title"} | rest


def _takes_null(kind: Any) -> bool:
    try:
        TypeAdapter(kind).validate_json("null", strict=True)
    except (ValidationError, PydanticUserError):
        return False
    return True


def _documented(docstring: str) -> tuple[str, dict[str, str]]:
    """What a docstring in Google's style says of the function, and of each of its parameters."""
    parts = _SECTION.split(docstring)
    arguments = "\n".join(
        textwrap.dedent(text)
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
        if title in ("Args", "Arguments", "Parameters")
    )
    found = {match[1]: " ".join(match[2].split()) for match in _ARGUMENT.finditer(arguments)}
    return parts[0].strip(), found


def _result(returned: Any, wall_s: float) -> RunResult:
    """What a function returned, as a result that a format can word for the model."""
    if isinstance(returned, RunResult):
        return returned
    text = (
        returned if isinstance(returned, str) else json.dumps(returned, ensure_ascii=False, allow_nan=False)
    )
    text.encode()  # half a surrogate pair can be neither shown nor stored
    return RunResult(id="", outcome="ok", stdout=text, wall_s=wall_s)


async def _in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call a function in a thread of its own, which does not keep the process from ending if the function hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.done():  # cancelled, or out of time
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            done.set_exception(RuntimeError(f"the function raised {type(error).__name__}"))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, **values)
        except BaseException as raised:  # noqa: BLE001 - a thread has nobody to raise it to
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=work, name=function.__name__, daemon=True).start()
    return await done
