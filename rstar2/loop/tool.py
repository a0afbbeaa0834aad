"""Turns a typed Python function into a tool: derives its JSON schema, checks the arguments of calls, and runs calls.

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

if TYPE_CHECKING:  # code that only reads formats must not load an HTTP client
    from rstar2.judge.client import JudgeClient

P = ParamSpec("P")
R = TypeVar("R")
SESSION_S = 86400.0
"""Maximum age of a session in seconds, whether the session is in use or idle."""
_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE
)
_ARGUMENT = re.compile(r"^(\w+)(?: \([^)]*\))?:\s*(.*(?:\n(?:[ \t]+.*|[ \t]*))*)", re.MULTILINE)
log = logging.getLogger(__name__)


class ToolLimits(Strict):
    """Limits on the time and memory of a tool call, and on the length of the result that the model sees."""

    seconds: float = Field(10.0, gt=0, le=MAX_TIMEOUT_S)
    """Time limit in wall-clock seconds for a program, a notebook cell, or a call of another tool."""
    memory_mb: int = Field(1024, ge=16, le=65536)
    """Memory limit in MiB for a program or a notebook."""
    characters: int = Field(4000, ge=2)
    """Maximum number of characters in a reply. The middle of a longer reply is left out."""
    traceback_lines: int = Field(20, ge=1)
    """Maximum number of lines of a traceback that the model sees. The lines are the last lines of the traceback."""


class Resource(Protocol):
    """Something that a tool keeps open between the calls of one rollout, such as a notebook."""

    async def aclose(self) -> None:
        """Called once, at the end of the rollout."""
        ...


ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True)
class ToolContext:
    """The judge, limits and resources that the tools of one rollout may use.

    A tool's function receives the context in the parameter whose type is `ToolContext`.
    """

    judge: JudgeClient
    """Client of the judge, which runs programs in a sandbox."""
    limits: ToolLimits
    """The limits that the model's format sets for calls."""
    sessions: asyncio.Semaphore
    """Limits the number of open judge sessions. All rollouts of a process share this semaphore."""
    session_wait_s: float = SESSION_S
    """Seconds that a rollout waits for a free session. The call is lost if no session becomes free in this time."""
    _resources: dict[Any, Any] = field(default_factory=dict)

    def resource(self, make: Callable[[ToolContext], ResourceT]) -> ResourceT:
        """Returns this rollout's resource of the class `make`.

        The first call creates the resource. The resource is closed at the end of the rollout.
        """
        if make not in self._resources:
            self._resources[make] = make(self)
        return typing.cast(ResourceT, self._resources[make])

    @property
    def has_resources(self) -> bool:
        """Whether a tool has created a resource for this rollout."""
        return bool(self._resources)

    async def aclose(self) -> None:
        """Close all resources of the rollout. If a resource fails to close, the other resources are still closed."""
        for resource in self._resources.values():
            try:
                await resource.aclose()
            except Exception as error:  # noqa: BLE001 - a resource may raise anything, the run continues
                log.warning("%s was not closed: %s: %s", type(resource).__name__, type(error).__name__, error)


class ArgumentsError(ValueError):
    """The arguments of a call do not match the tool's schema. The model reads the message of the error."""


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call. The decorator `tool` creates the tool. Calling the tool calls the function."""

    name: str
    """The name by which a model calls the tool."""
    schema: dict[str, Any]
    """The schema that the model sees, in the form of OpenAI's API."""
    function: Callable[P, R]
    """The decorated function."""
    aliases: tuple[str, ...]
    """Other names that a call may use for the tool."""
    _arguments: TypeAdapter[dict[str, Any]]
    _nullable: frozenset[str]
    """Parameters whose type includes None."""
    _context: str | None
    """The parameter that receives the `ToolContext`. The value is None if no parameter has the type `ToolContext`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the tool's arguments."""
        return typing.cast("dict[str, Any]", self.schema["function"]["parameters"])

    @property
    def empty_texts(self) -> dict[str, str]:
        """Maps the name of each required argument of type string to an empty string."""
        properties = self.parameters["properties"]
        return {key: "" for key in self.parameters["required"] if properties[key].get("type") == "string"}

    def fitting(self, arguments: Any) -> dict[str, Any]:
        """Check the arguments of a call against the function's types, and return the arguments that the function reads.

        Two kinds of arguments are left out: an argument that is not a parameter of the function, and a null for a
        parameter that has a default and whose type does not include None.

        Raises:
            ArgumentsError: `arguments` is not an object, a required argument is missing, or an argument has the wrong
                type.
        """
        if not isinstance(arguments, dict):
            raise ArgumentsError(self._requirements())
        self._convert(arguments)
        return self._select(arguments)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> RunResult:
        """Run a call in this process. A function that is not async runs in a thread.

        A function that takes a `ToolContext` has to limit its own time. The time limit of any other function is
        `context.limits.seconds`.

        Raises:
            ArgumentsError: the arguments do not match the schema, see `fitting`.
            Exception: the function raised this exception, or its return value is neither text nor valid JSON.
        """
        values, started = self._convert(arguments), time.monotonic()
        if self._context is not None:
            returned = await self._call({**values, self._context: context})
            return _result(returned, time.monotonic() - started)
        try:
            async with asyncio.timeout(context.limits.seconds) as limit:
                returned = await self._call(values)
        except TimeoutError:
            if not limit.expired():
                raise
            return RunResult(id="", outcome="timeout", wall_s=time.monotonic() - started)
        return _result(returned, time.monotonic() - started)

    async def _call(self, values: dict[str, Any]) -> Any:
        function: Callable[..., Any] = self.function
        if inspect.iscoroutinefunction(function):
            return await function(**values)
        return await _in_thread(function, values)

    def _select(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments that the function reads, see `fitting`."""
        properties, required = self.parameters["properties"], self.parameters["required"]
        return {
            key: value
            for key, value in arguments.items()
            if key in properties and (value is not None or key in required or key in self._nullable)
        }

    def _convert(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments that the function reads, converted to its Python types, such as an Enum."""
        try:
            # Strict validation of JSON accepts an array for a tuple and a string for a date, but no string for a
            # number. Strict validation of Python objects would accept none of these.
            return self._arguments.validate_json(json.dumps(self._select(arguments)), strict=True)
        except ValidationError as error:
            required = self.parameters["required"]
            faults = [
                f'"{".".join(map(str, fault["loc"]))}": {fault["msg"]}.'
                for fault in error.errors(include_url=False, include_input=False)
                if len(fault["loc"]) != 1
                or fault["loc"][0] not in required
                or not (fault["type"] == "missing" or fault["type"].endswith("_type"))
            ]
            raise ArgumentsError(" ".join([self._requirements(), *faults])) from error

    def _requirements(self) -> str:
        properties, required = self.parameters["properties"], self.parameters["required"]
        if not required:
            return f"{self.name} takes an object as its arguments."
        names = " and ".join(f'"{key}" ({properties[key].get("type", "see its schema")})' for key in required)
        return f"{self.name} needs {names} in its arguments."


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, aliases: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, aliases: tuple[str, ...] = ()
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Turn a function into a tool, with the decorator `@tool` or `@tool(name=…)`.

    The function may be async. Each parameter needs a type that pydantic can check in JSON, and a description under
    `Args:` in the docstring. A parameter with a default is optional. The model does not see a parameter of type
    `ToolContext`. The function returns text, a `RunResult` of the judge, or a value that `json` can write.

    Args:
        function: the function, if the decorator is used without arguments.
        name: the tool's name. The default is the name of the function.
        aliases: other names that a call may use for the tool.

    Raises:
        UserError: a description or a type is missing, or a type has no JSON schema.
    """
    if function is None:
        return lambda decorated: _make_tool(decorated, name, aliases)
    return _make_tool(function, name, aliases)


_NO_SCHEMA = (PydanticUserError, PydanticUndefinedAnnotation, SchemaError, TypeError)
"""Exceptions that pydantic raises if it cannot check a type, or cannot apply the constraints in a `Field` to the
type."""


def _make_tool(function: Callable[P, R], name: str | None, aliases: tuple[str, ...]) -> Tool[P, R]:
    name = name or function.__name__
    hint = "See “A tool” in docs/extending.md."

    def refused(reason: str) -> UserError:
        return UserError(f"the tool {name} in {function.__module__}: {reason}", hint)

    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise refused(f"the type of a parameter cannot be read: {error}") from error
    description, descriptions = _parse_docstring(inspect.getdoc(function) or "")
    if not description:
        raise refused("its docstring does not say what it does")
    context: str | None = None
    fields: dict[str, Any] = {}
    nullable: set[str] = set()
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise refused(f"the parameter {key} cannot be passed by name")
        if key not in hints:
            raise refused(f"the parameter {key} has no type")
        if hints[key] is ToolContext:
            context = key
            continue
        if not descriptions.get(key):
            raise refused(f"its docstring does not describe {key} under Args:")
        try:
            TypeAdapter(hints[key]).json_schema()
        except _NO_SCHEMA as error:
            type_name = hints[key].__qualname__ if inspect.isclass(hints[key]) else str(hints[key])
            raise refused(
                f"the parameter {key} has the type {type_name}, which pydantic cannot check in JSON; use int, str, "
                "list, Literal, an Enum or a dataclass, for example"
            ) from error
        kind = Annotated[hints[key], Field(description=descriptions[key])]  # type: ignore[valid-type]
        fields[key] = kind if parameter.default is parameter.empty else NotRequired[kind]
        if _takes_null(hints[key]):
            nullable.add(key)
    if unknown := descriptions.keys() - fields.keys() - {context}:
        raise refused(f"its docstring describes {min(unknown)}, which is not a parameter")
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
    """Generates JSON schemas without titles, and does not sort their keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Returns the schema with each `$ref` replaced by its definition, because chat templates do not resolve `$ref`."""
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


def _parse_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Returns the descriptions of the function and of each parameter from a docstring in Google style."""
    parts = _SECTION.split(docstring)
    arguments = "\n".join(
        textwrap.dedent(text)
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
        if title in ("Args", "Arguments", "Parameters")
    )
    descriptions = {match[1]: " ".join(match[2].split()) for match in _ARGUMENT.finditer(arguments)}
    return parts[0].strip(), descriptions


def _result(returned: Any, wall_s: float) -> RunResult:
    """Returns the return value of a function as a `RunResult`."""
    if isinstance(returned, RunResult):
        return returned
    text = (
        returned if isinstance(returned, str) else json.dumps(returned, ensure_ascii=False, allow_nan=False)
    )
    text.encode()  # raises an error for a lone surrogate, which can be neither shown nor stored
    return RunResult(id="", outcome="ok", stdout=text, wall_s=wall_s)


async def _in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call a function in a daemon thread, so that a function that hangs does not keep the process from exiting."""
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
        except BaseException as raised:  # noqa: BLE001 - nothing would see an exception of this thread
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=work, name=function.__name__, daemon=True).start()
    return await done
