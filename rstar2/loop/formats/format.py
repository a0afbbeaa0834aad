"""A model's format: the text around a problem and around tool replies, and the limits of its tools.

It lies in one file beside the weights (`FORMAT_FILE`), so that training, evaluation, chat and a server show the model
the same. Formats by name are the `.toml` files of this folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field

from rstar2.config import Strict, resolve
from rstar2.errors import UserError
from rstar2.files import write_json
from rstar2.loop.formats.families import FAMILIES, TAG_PARSERS, Parsers
from rstar2.loop.formats.replies import Layout
from rstar2.loop.tools import ToolLimits, tool_modules, tool_name

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
    """Of the replies of tools, see `rstar2.loop.formats.replies`."""
    calls_per_turn: int | None = Field(None, ge=1)
    """Further calls of a turn are not run; None runs all, side by side."""
    closed_calls_only: bool = False
    """A call without `</tool_call>` is none. Otherwise the end of the turn closes it, see `formats.calls`."""
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
            tools = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in self.tools)
            opening.append({"role": "system", "content": self.system.replace("{tools}", tools)})
        return [*opening, {"role": "user", "content": self.user.replace("{problem}", problem)}]

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

    @property
    def called_tools(self) -> frozenset[str | None]:
        """The tools' own names; a schema may use an alias."""
        return frozenset(map(tool_name, self.tool_names))

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
            raise UserError(f"{path}: no family {family}", f"Families: {', '.join(FAMILIES)}.")
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
    if isinstance(tools, list):
        tools = [_schema(tool, path) for tool in tools]
    return resolve(Format, {**values, "template": template, "tools": tools}, [], str(path))


@functools.cache
def ours() -> Format:
    """The format of models made here."""
    return read_format(OURS)


def save_format(fmt: Format, folder: Path) -> None:
    """Keep the format that a model is trained with beside its weights, so that every later use is the same."""
    write_json(folder / FORMAT_FILE, fmt.model_dump(exclude=_unused(fmt)))


def _unused(fmt: Format) -> set[str]:
    """Keys that formats of our tags do not have, so that their files and digests are those of earlier versions."""
    return set() if fmt.family else {"family", "family_options"}


def _find(named: str) -> Path:
    path, shipped = Path(named), _HERE / f"{named}.toml"
    if path.suffix in (".toml", ".json"):
        return path
    if shipped.is_file():
        return shipped
    known = ", ".join([*sorted(file.stem for file in _HERE.glob("*.toml")), *FAMILIES])
    raise UserError(f"no format {named}", f"Give a .toml or .json file, or one of: {known}.")


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


def _schema(tool: Any, path: Path) -> Any:
    """A tool's schema, given that or the tool's name; a UserError for one that nothing here can run."""
    name = tool
    if isinstance(tool, dict):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
    own_name = tool_name(name) if isinstance(name, str) else None
    if own_name is None:
        raise UserError(
            f"{path}: tools has {json.dumps(tool)[:80]}, which is not a tool of rstar2",
            f"Tools: {', '.join(tool_modules())}; or schemas of OpenAI's form with these names.",
        )
    return tool if isinstance(tool, dict) else tool_modules()[own_name].SCHEMA
