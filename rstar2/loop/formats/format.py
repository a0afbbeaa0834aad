"""A model's format: the text around a problem and around tool replies, and the limits of its tools.

It lies in one file beside the weights (`FORMAT_FILE`), so that training, evaluation, chat and a server show the model
the same. Formats by name are the `.toml` files of this folder.
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
"""Beside a model's weights."""
OURS = "rstar2"
"""The format of models made here."""
OWN = "own"
"""The format of other models: their own chat template."""
_HERE = Path(__file__).parent


class Format(Strict):
    """How conversations, tools and tool output are written for one model."""

    template: str
    """Chat template in Jinja, as tokenizers of Hugging Face have it. Its generation prompt is where a turn begins."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the tools that the model may call, as OpenAI's API writes them."""
    tool_objects: Mapping[str, str] = Field(default_factory=dict)
    """`module:object` of each tool that is not one of the package, by its name in `tools`."""
    tools_in_prompt: bool = True
    """False: the prompt does not list the tools; the model knows them from training."""
    system: str | None = None
    """A system text; `{tools}` becomes the tools' schemas, one a line. None: what the template writes by itself."""
    user: str = "{problem}"
    """The user text; `{problem}` becomes the problem."""
    family: str | None = None
    """The family of models whose syntax turns have, see `rstar2.loop.formats.families`; None: the tags of ours."""
    family_options: dict[str, bool | str] = Field(default_factory=dict)
    """Ways in which the models of the family differ, such as `enable_thinking`."""
    layout: Layout = "plain"
    """How the reply of a tool is worded, see `rstar2.loop.formats.replies`."""
    calls_per_turn: int | None = Field(None, ge=1)
    """Further calls of a turn are not run; None runs all, side by side."""
    closed_calls_only: bool = False
    """A call without `</tool_call>` is none. Otherwise the end of the turn closes it, see `turns.tags`."""
    missing_texts_are_empty: bool = False
    """A text argument that a call leaves out is empty, as in the authors' released code. Otherwise a call without one
    that its tool requires is refused."""
    newline_before_reply: bool = True
    """False leaves out the line break that the template writes between the end of the model's turn and a reply, as
    VERL's own agent loop does."""
    limits: ToolLimits = ToolLimits()
    one_question: bool = False
    """The model was never taught conversations: a chat asks each question as the first."""
    examples: tuple[str, ...] = ()
    """Problems that the model was taught to solve, for a chat to suggest."""

    def messages(self, problem: str) -> list[dict[str, str]]:
        """The conversation that a problem opens: a user message, and before it a system message if there is one."""
        opening = []
        if self.system is not None:
            opening.append({"role": "system", "content": self.with_tools(self.system, self.tools)})
        return [*opening, {"role": "user", "content": self.user.replace("{problem}", problem)}]

    def with_tools(self, system: str, tools: Sequence[dict[str, Any]]) -> str:
        """A system text with the schemas of tools in place of `{tools}`, one a line."""
        return system.replace("{tools}", "\n".join(json.dumps(each, ensure_ascii=False) for each in tools))

    @property
    def around_problem(self) -> tuple[str, str]:
        """The text before and after a problem in the user's message."""
        before, _, rest = self.user.partition("{problem}")
        return before, rest.rpartition("{problem}")[2]

    @property
    def shown_tools(self) -> list[dict[str, Any]] | None:
        """What the template is given as `tools`; None where it is not to list them."""
        listed = self.system is not None and "{tools}" in self.system
        return list(self.tools) if self.tools and self.tools_in_prompt and not listed else None

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(schema["function"]["name"] for schema in self.tools)

    def tool(self, called: str) -> Tool[..., Any] | None:
        """The tool of this format that a call names, by the tool's own name or an alias.

        Raises:
            UserError: the tool is one of a user's module, which cannot be loaded.
        """
        return next((tool for tool in self.load_tools() if called in (tool.name, *tool.aliases)), None)

    def load_tools(self) -> list[Tool[..., Any]]:
        """The tools themselves, in the order of `tools`; a UserError if one cannot be loaded."""
        return [_implementation(name, self.tool_objects.get(name)) for name in self.tool_names]

    def with_tool(self, named: str) -> Format:
        """This format with one tool in place of its own, by the name of one of the package or as `module:object`."""
        schema, reference = _named_tool(named, "--tool")
        objects = {} if reference is None else {schema["function"]["name"]: reference}
        return self.model_copy(update={"tools": (schema,), "tool_objects": objects})

    @property
    def parsers(self) -> Parsers:
        """The parsers of vLLM that read its turns."""
        if self.family is None:
            return TAG_PARSERS
        family = FAMILIES[self.family]
        return Parsers(family.tool_parser, family.reasoning_parser)

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides what the model sees."""
        return hashlib.sha256(self.model_dump_json(exclude={"examples", *_unused(self)}).encode()).hexdigest()


def read_format(named: str, own_template: str | None = None) -> Format:
    """A format by the name of one that is shipped or of a family, or from a .toml or .json file.

    In such a file `template` may name a .jinja file and `tools` a .json file, both beside it; `tools` may list names of
    tools. Without `template` it is `own_template`, the model's own.

    Raises:
        UserError: there is no such format, it has unknown keys or wrong values, or it has no template.
    """
    path = _find(OWN if named in FAMILIES else named)
    values = _read(path)
    if named in FAMILIES:
        values["family"] = named
    if (family := values.get("family")) is not None:
        if family not in FAMILIES:
            raise UserError(
                f"{path}: no family {family}{did_you_mean(str(family), FAMILIES)}",
                f"Families: {', '.join(FAMILIES)}.",
            )
        if FAMILIES[family].one_call:
            values.setdefault("calls_per_turn", 1)
    template, tools = values.get("template", own_template), values.get("tools", [])
    if template is None:
        raise UserError(
            f"the format {named} has no template, and the model has no chat template of its own",
            f"Name a format with a template, such as {OURS}.",
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
def ours() -> Format:
    """The format of models made here."""
    return read_format(OURS)


def save_format(fmt: Format, folder: Path) -> None:
    """Keep the format that a model is trained with beside its weights, so that every later use is the same."""
    write_json(folder / FORMAT_FILE, fmt.model_dump(exclude=_unused(fmt)))


def _unused(fmt: Format) -> set[str]:
    """Keys that a format does not need, so that its file and digest are those of earlier versions."""
    unused = set() if fmt.family else {"family", "family_options"}
    return unused if fmt.tool_objects else unused | {"tool_objects"}


def format_names() -> list[str]:
    """The names that `--format` takes: shipped formats, then families of models."""
    return [*sorted(file.stem for file in _HERE.glob("*.toml")), *FAMILIES]


def _find(named: str) -> Path:
    path, shipped = Path(named), _HERE / f"{named}.toml"
    if path.suffix in (".toml", ".json"):
        return path
    if shipped.is_file():
        return shipped
    known = format_names()
    raise UserError(
        f"no format {named}{did_you_mean(named, known)}",
        f"Give a .toml or .json file, or one of: {', '.join(known)}.",
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
        raise UserError(f"{path} does not contain a JSON object", "Copy it again from the trained model.")
    return values


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "Correct the place that is named.") from error


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
            f"the format has a tool {name}, but {reference} is called {tool.name}",
            "Give it its earlier name.",
        )
    return tool


def _tools(values: list[Any], objects: dict[str, str], path: Path) -> tuple[list[Any], dict[str, str]]:
    """Schemas of tools that are given as schemas or by name, and the `module:object` of those that have one."""
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
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: tools has two tools with the name {twice}", "Rename one of them.")
    return schemas, objects


def _named_tool(named: str, where: str, folders: Sequence[Path] = ()) -> tuple[dict[str, Any], str | None]:
    """The schema of a tool of the package or of a user's module, and in the second case its `module:object`."""
    if is_reference(named):
        return load_tool(named, folders).schema, named
    tool = shipped_tool(named)
    if tool is None:
        raise _unknown_tool(named, where)
    return tool.schema, None


def _unknown_tool(value: Any, where: str) -> UserError:
    return UserError(
        f"{where}: tools has {json.dumps(value)[:80]}, which is not a tool of rstar2",
        f"Tools: {', '.join(shipped_tools())}; module:object for one of your own; or schemas of OpenAI's form with "
        "these names.",
    )
