"""A model's format: the text around a problem and around tool replies, and the limits of its tools.

The format is stored in one file beside the weights (`FORMAT_FILE`). Training, evaluation, chat and servers read this
file, so that the model sees the same text everywhere. The formats that rstar2 ships are the `.toml` files of this
folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rstar2.config import Strict, resolve
from rstar2.errors import UserError, did_you_mean
from rstar2.files import write_json
from rstar2.loop.formats.families import FAMILIES, TAG_PARSERS, Parsers
from rstar2.loop.formats.replies import Layout
from rstar2.loop.tool import Tool, ToolLimits
from rstar2.loop.tools import load_tool, shipped_tool, shipped_tools
from rstar2.plugins import is_reference

FORMAT_FILE = "rstar2_format.json"
"""Name of the file beside a model's weights that contains the model's format."""
DEFAULT_FORMAT = "rstar2"
"""Name of the format of models that rstar2 trains."""
TEMPLATE_FORMAT = "own"
"""Name of the format that uses the model's own chat template."""
_HERE = Path(__file__).parent


class Format(Strict):
    """How the conversations, tools and tool output of one model are written as text."""

    template: str
    """Chat template in Jinja, as in tokenizers of Hugging Face. A turn begins after the template's generation
    prompt."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the tools that the model may call, in the form of OpenAI's API."""
    tool_objects: Mapping[str, str] = Field(default_factory=dict)
    """Dict from the name of each tool that rstar2 does not ship to its `module:object`."""
    tools_in_prompt: bool = True
    """Whether the prompt lists the tools. False if the model knows its tools from training."""
    system: str | None = None
    """The system text, in which `{tools}` is replaced by the schemas of the tools, one per line.

    If `system` is None, the template writes its default system text, if it has one.
    """
    user: str = "{problem}"
    """The user text, in which `{problem}` is replaced by the problem."""
    family: str | None = None
    """The model family whose syntax turns use, see `rstar2.loop.formats.families`. If `family` is None, turns use
    rstar2's tags."""
    family_options: dict[str, bool | str] = Field(default_factory=dict)
    """Options that differ between models of the family, such as `enable_thinking`."""
    layout: Layout = "plain"
    """The layout of tool replies, see `rstar2.loop.formats.replies`."""
    calls_per_turn: int | None = Field(None, ge=1)
    """Maximum number of calls that run in a turn. Further calls of the turn are ignored. If the value is None, all
    calls run, concurrently."""
    closed_calls_only: bool = False
    """Whether each call must end with `</tool_call>`. If False, the end of the turn also ends a call."""
    missing_texts_are_empty: bool = False
    """Whether a missing argument of type string counts as an empty string, as in the authors' released code.

    If False, a call without an argument that its tool requires is refused.
    """
    newline_before_reply: bool = True
    """Whether to keep the line break that the template writes between the model's turn and a tool reply.

    False leaves the line break out, as VERL's own agent loop does.
    """
    limits: ToolLimits = ToolLimits()
    one_question: bool = False
    """Whether the model was trained only on single questions. If True, a chat with the model starts a new conversation
    for each question."""
    examples: tuple[str, ...] = ()
    """Problems that the model was trained to solve. A chat suggests these problems."""

    def messages(self, problem: str) -> list[dict[str, str]]:
        """Returns the messages that pose a problem: the system message, if the format has one, and a user message."""
        opening = []
        if self.system is not None:
            opening.append({"role": "system", "content": self.with_tools(self.system, self.tools)})
        return [*opening, {"role": "user", "content": self.user.replace("{problem}", problem)}]

    def with_tools(self, system: str, tools: Sequence[dict[str, Any]]) -> str:
        """Returns a system text in which the schemas of the tools, one per line, replace `{tools}`."""
        return system.replace("{tools}", "\n".join(json.dumps(each, ensure_ascii=False) for each in tools))

    @property
    def around_problem(self) -> tuple[str, str]:
        """The texts before and after the problem in the user's message."""
        before, _, rest = self.user.partition("{problem}")
        return before, rest.rpartition("{problem}")[2]

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """The schemas for the template's variable `tools`.

        The value is None if the template must not list the tools.
        """
        listed = self.system is not None and "{tools}" in self.system
        return list(self.tools) if self.tools and self.tools_in_prompt and not listed else None

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(schema["function"]["name"] for schema in self.tools)

    def tool(self, called: str) -> Tool[..., Any] | None:
        """Returns the tool of this format with the name or alias `called`. Returns None if the format has no tool of
        this name or alias.

        Raises:
            UserError: a tool of the format cannot be loaded.
        """
        return next((tool for tool in self.load_tools() if called in (tool.name, *tool.aliases)), None)

    def load_tools(self) -> list[Tool[..., Any]]:
        """Returns the tools in the order of `tools`. Raises UserError if a tool cannot be loaded."""
        return [_implementation(name, self.tool_objects.get(name)) for name in self.tool_names]

    def with_tool(self, named: str) -> Format:
        """Returns a copy of this format whose only tool is the tool `named`.

        `named` is the name of a tool that rstar2 ships, or the `module:object` of a user's tool.
        """
        schema, reference = _named_tool(named, "--tool")
        objects = {} if reference is None else {schema["function"]["name"]: reference}
        return self.model_copy(update={"tools": (schema,), "tool_objects": objects})

    @property
    def parsers(self) -> Parsers:
        """vLLM's parsers for the turns of this format."""
        if self.family is None:
            return TAG_PARSERS
        family = FAMILIES[self.family]
        return Parsers(family.tool_parser, family.reasoning_parser)

    @property
    def digest(self) -> str:
        """SHA-256 of every key that affects what the model sees."""
        return hashlib.sha256(self.model_dump_json(exclude={"examples", *_unused(self)}).encode()).hexdigest()


def read_format(named: str, own_template: str | None = None) -> Format:
    """Read a format.

    In a file, `template` may be the name of a .jinja file, and `tools` may be the name of a .json file or a list of
    tool names. These files are looked up in the folder of the format's file.

    Args:
        named: the name of a format that rstar2 ships, the name of a model family, or a .toml or .json file.
        own_template: the model's own chat template, for a format that has no template.

    Raises:
        UserError: the format does not exist, it has unknown keys or wrong values, or there is no template.
    """
    path = _find(TEMPLATE_FORMAT if named in FAMILIES else named)
    values = _read(path)
    if named in FAMILIES:
        values["family"] = named
    if (family := values.get("family")) is not None:
        if family not in FAMILIES:
            raise UserError(
                f"{path}: there is no family {family}{did_you_mean(str(family), FAMILIES)}",
                f"Families: {', '.join(FAMILIES)}.",
            )
        if FAMILIES[family].one_call:
            values.setdefault("calls_per_turn", 1)
    template, tools = values.get("template", own_template), values.get("tools", [])
    if template is None:
        raise UserError(
            f"the format {named} has no template, and the model has no chat template of its own",
            f"Use a format that has a template, such as {DEFAULT_FORMAT}.",
        )
    if isinstance(template, str) and template.endswith(".jinja"):
        template = _text(path.parent / template)
    if isinstance(tools, str):
        tools = _json(path.parent / tools)
    values = {**values, "template": template, "tools": tools}
    objects = values.get("tool_objects", {})
    if isinstance(tools, list) and isinstance(objects, dict):
        values["tools"], values["tool_objects"] = _tools(tools, objects, path)
    return resolve(Format, values, [], str(path))


@functools.cache
def default_format() -> Format:
    """Returns the format of models that rstar2 trains."""
    return read_format(DEFAULT_FORMAT)


def save_format(fmt: Format, folder: Path) -> None:
    """Write a model's format to a file beside the model's weights, so that every later use of the model reads this
    format."""
    write_json(folder / FORMAT_FILE, fmt.model_dump(exclude=_unused(fmt)))


def _unused(fmt: Format) -> set[str]:
    """Returns the keys that this format does not use and that earlier versions of rstar2 did not have.

    Without these keys, the format's file and digest are the same as in earlier versions.
    """
    unused = set() if fmt.family else {"family", "family_options"}
    return unused if fmt.tool_objects else unused | {"tool_objects"}


def format_names() -> list[str]:
    """Returns the names that `--format` accepts: the formats that rstar2 ships, then the model families."""
    return [*sorted(file.stem for file in _HERE.glob("*.toml")), *FAMILIES]


def _find(named: str) -> Path:
    path, shipped = Path(named), _HERE / f"{named}.toml"
    if path.suffix in (".toml", ".json"):
        return path
    if shipped.is_file():
        return shipped
    known = format_names()
    raise UserError(
        f"there is no format {named}{did_you_mean(named, known)}",
        f"Use a .toml or .json file, or one of: {', '.join(known)}.",
    )


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".toml":
        try:
            return tomllib.loads(_text(path))
        except tomllib.TOMLDecodeError as error:
            raise UserError(
                f"{path} is not TOML: {error}", "Correct the line that the error names."
            ) from error
    values = _json(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path} does not contain a JSON object", "Copy the file again from the trained model."
        )
    return values


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise UserError(
            f"{path} is not JSON: {error}", "Correct the file at the line and column that the error names."
        ) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read {path}: {reason}", "Check the path.") from error


@functools.cache
def _implementation(name: str, reference: str | None) -> Tool[..., Any]:
    tool = shipped_tool(name) if reference is None else load_tool(reference)
    if tool is None:
        raise UserError(
            f"there is no tool {name}{did_you_mean(name, shipped_tools())}",
            f"Tools: {', '.join(shipped_tools())}.",
        )
    if name not in (tool.name, *tool.aliases):
        raise UserError(
            f"the format has a tool {name}, but the tool {reference} has the name {tool.name}",
            f"Give the tool its earlier name, {name}.",
        )
    return tool


def _tools(values: list[Any], objects: dict[str, str], path: Path) -> tuple[list[Any], dict[str, str]]:
    """Returns the schemas of the tools, and all `module:object` references. An item of `values` is a schema, a name or
    a `module:object`."""
    schemas = []
    for value in values:
        if isinstance(value, str):
            schema, reference = _named_tool(value, str(path), [path.parent])
            if reference is not None:
                objects = {**objects, schema["function"]["name"]: reference}
        else:
            schema = value
            function = value.get("function") if isinstance(value, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or not (name in objects or shipped_tool(name)):
                raise _unknown_tool(value, str(path))
        schemas.append(schema)
    names = [schema["function"]["name"] for schema in schemas]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: tools has two tools with the name {duplicate}", "Rename one of them.")
    return schemas, objects


def _named_tool(named: str, where: str, folders: Sequence[Path] = ()) -> tuple[dict[str, Any], str | None]:
    """Returns the schema of a tool and its `module:object`, which is None for a tool that rstar2 ships."""
    if is_reference(named):
        return load_tool(named, folders).schema, named
    tool = shipped_tool(named)
    if tool is None:
        raise _unknown_tool(named, where)
    return tool.schema, None


def _unknown_tool(value: Any, where: str) -> UserError:
    return UserError(
        f"{where}: tools has {json.dumps(value)[:80]}, which is not a tool of rstar2",
        f"Use a name ({', '.join(shipped_tools())}), module:object for a tool of your own, or a schema in OpenAI's "
        "form with one of these names.",
    )
