"""Tests of typed functions as tools: the schema, the check of a call's arguments, the call, and names in a format."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import pytest
from pydantic import Field
from support import user_tools
from typing_extensions import TypedDict

from rstar2.errors import UserError
from rstar2.judge.client import JudgeClient
from rstar2.loop.agent import checked_call
from rstar2.loop.formats.format import Format, default_format, read_format, save_format
from rstar2.loop.tool import ArgumentsError, tool
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.tools import load_tool, shipped_tools
from rstar2.loop.trace import ToolCall
from rstar2.loop.turns.turn import WrittenCall

NEEDED = 'measure needs "count" (integer) and "unit" (string) in its arguments.'


def text_of(schema: dict[str, Any]) -> str:
    """Returns a schema as templates write it."""
    return json.dumps(schema, ensure_ascii=False)


def test_the_schemas_of_the_packages_tools_stay_byte_for_byte() -> None:
    """Models were trained on these schemas."""
    assert {name: text_of(each.schema) for name, each in shipped_tools().items()} == {
        "jupyter_code": '{"type": "function", "function": {"name": "jupyter_code", "description": "Run Python code as '
        'a cell of a notebook, which keeps its variables from call to call.", "parameters": {"type": "object", '
        '"properties": {"code": {"type": "string", "description": "The code of one cell."}}, "required": ["code"]}}}',
        "python_code_with_standard_io": '{"type": "function", "function": {"name": "python_code_with_standard_io", '
        '"description": "Run Python code with the given standard input and return what it prints.", "parameters": '
        '{"type": "object", "properties": {"code": {"type": "string", "description": "The Python code to execute."}, '
        '"input": {"type": "string", "description": "The standard input of the program, if it reads any."}}, '
        '"required": ["code"]}}}',
    }


def test_a_function_becomes_a_schema() -> None:
    function = user_tools.measure.schema["function"]
    assert function["description"] == "Measure things.\n\nA second paragraph of what the model reads."
    parameters = function["parameters"]
    assert parameters["required"] == ["count", "unit"]
    properties = parameters["properties"]
    assert list(properties) == ["count", "unit", "share", "sure", "names", "colour", "day", "at", "most"]
    assert text_of(properties["count"]) == '{"type": "integer", "description": "How many things there are."}'
    assert properties["colour"] == {"enum": ["red", "blue"], "type": "string", "description": "A colour."}
    assert properties["most"]["minimum"] == 1
    assert text_of(properties["unit"]) == (
        '{"enum": ["m", "ft"], "type": "string", "description": "The unit: metres or feet."}'
    )
    assert list(properties["at"]["properties"]) == ["x", "y"]
    assert "$" not in text_of(user_tools.measure.schema)
    assert user_tools.counts.schema["function"]["parameters"] == {
        "type": "object", "properties": {}, "required": [],
    }  # fmt: skip
    assert user_tools.measure(2, user_tools.Unit.FOOT)["read"][:2] == ["int 2", "Unit Unit.FOOT"]


@pytest.mark.parametrize(
    ("arguments", "fitting"),
    [
        ({"count": 3, "unit": "m"}, {"count": 3, "unit": "m"}),
        ({"count": 3, "unit": "m", "more": 1}, {"count": 3, "unit": "m"}),
        ({"count": 3, "unit": "m", "share": None}, {"count": 3, "unit": "m"}),
        ({"count": 3, "unit": "m", "names": None}, {"count": 3, "unit": "m", "names": None}),
        ({"count": 3, "unit": "m", "share": 1}, {"count": 3, "unit": "m", "share": 1}),
        ({"count": 3.5, "unit": "m"}, NEEDED),
        ({"count": True, "unit": "m"}, NEEDED),
        ({"count": "3", "unit": "m"}, NEEDED),
        ({"count": None, "unit": "m"}, NEEDED),
        ({"unit": "m"}, NEEDED),
        ("m", NEEDED),
        (None, NEEDED),
        ({"count": 3, "unit": "km"}, f"{NEEDED} \"unit\": Input should be 'm' or 'ft'."),
        ({"count": 3, "unit": "m", "names": [1]}, f'{NEEDED} "names.0": Input should be a valid string.'),
        (
            {"count": 3, "unit": "m", "most": 0},
            f'{NEEDED} "most": Input should be greater than or equal to 1.',
        ),
        ({"count": 3, "unit": "m", "sure": 1}, f'{NEEDED} "sure": Input should be a valid boolean.'),
    ],
)
def test_arguments_are_checked_by_the_types_of_the_function(arguments: Any, fitting: Any) -> None:
    if isinstance(fitting, dict):
        assert user_tools.measure.fitting(arguments) == fitting
    else:
        with pytest.raises(ArgumentsError) as excinfo:
            user_tools.measure.fitting(arguments)
        assert str(excinfo.value) == fitting


def format_with(*tools: str) -> Format:
    fmt = default_format()
    for each in tools:
        other = default_format().with_tool(f"support.user_tools:{each}")
        tools_of_both = (*fmt.tools, *other.tools)
        objects = {**fmt.tool_objects, **other.tool_objects}
        fmt = fmt.model_copy(update={"tools": tools_of_both, "tool_objects": objects})
    return fmt


async def run_calls(fmt: Format, *calls: tuple[str, dict[str, Any]]) -> list[ToolCall]:
    async with JudgeClient("http://127.0.0.1:9", wait_s=0) as nobody, Toolbox(nobody, fmt).opened() as tools:
        return [await tools.run(*call) for call in calls]


async def test_a_function_gets_its_arguments_with_its_types_and_the_model_its_json() -> None:
    arguments = {"count": 3, "unit": "m", "day": "2026-01-31", "at": {"x": 1, "y": 2.5}}
    written_call = WrittenCall("", name="paint", arguments={**arguments, "most": None})
    call = checked_call(written_call, format_with("measure"))
    assert call == ("paint", arguments)
    [call_result] = await run_calls(format_with("measure"), call)
    assert (call_result.status, call_result.name, call_result.arguments) == ("ok", "paint", arguments)
    assert json.loads(call_result.output) == {
        "read": [
            "int 3", "Unit Unit.METRE", "float 0.5", "bool False", "NoneType None", "str red", "date 2026-01-31",
            "Point Point(x=1.0, y=2.5)", "int 3",
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("way", "status", "output"),
    [
        ("service", "lost", "The code could not be run: the database is away"),
        ("surrogate", "error", "ValueError: \\ud800"),
        ("timeout", "error", "TimeoutError: by itself"),
        ("returned surrogate", "error", "UnicodeEncodeError: "),
        ("returned object", "error", "TypeError: Object of type object is not JSON serializable"),
        ("not", "ok", "4000 characters"),
    ],
)
async def test_a_failure_is_that_calls_error_and_a_service_that_is_away_loses_it(
    way: str, status: str, output: str
) -> None:
    [call] = await run_calls(format_with("fails"), ("fails", {"how": way}))
    assert call.status == status
    assert call.output.startswith(output)
    assert ToolCall.model_validate_json(call.model_dump_json()) == call


async def test_a_function_that_exits_ends_its_call_alone() -> None:
    [call] = await run_calls(format_with("exits"), ("exits", {"status": 3}))
    assert (call.status, call.output) == ("error", "RuntimeError: the function raised SystemExit")


async def test_a_function_that_is_not_async_runs_in_a_thread() -> None:
    [call] = await run_calls(format_with("thread_name"), ("thread_name", {}))
    assert call.output == "thread_name"


@pytest.mark.parametrize("name", ["hangs", "waits"])
async def test_a_call_ends_at_the_time_limit_of_the_format(name: str) -> None:
    fmt = format_with(name)
    fmt = fmt.model_copy(update={"limits": fmt.limits.model_copy(update={"seconds": 0.05})})
    try:
        [call] = await run_calls(fmt, (name, {"seconds": 30 if name == "waits" else 0}))
    finally:
        user_tools.HANG.set()
    assert (call.status, call.output) == ("timeout", "Error: the code did not end within 0.05 seconds")


@pytest.mark.slow
def test_a_function_that_hangs_keeps_no_process_from_ending() -> None:
    code = (
        "import asyncio, time\nfrom rstar2.loop.tool import _in_thread\n"
        "def hang(): time.sleep(3600)\n"
        "async def run():\n    async with asyncio.timeout(0.05): await _in_thread(hang, {})\n"
        "try: asyncio.run(run())\nexcept TimeoutError: print('out of time')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert result.stdout == "out of time\n", result.stderr


async def test_what_a_tool_keeps_is_one_rollouts_and_is_closed_however_that_fails() -> None:
    closed = user_tools.Counter.closed
    for _ in range(2):
        calls = await run_calls(format_with("counts"), ("counts", {}), ("counts", {}))
        assert [call.output for call in calls] == ["1", "2"]
    assert user_tools.Counter.closed == closed + 2


def undescribed(number: int) -> int:
    """Do it."""
    return number


def silent(number: int) -> int:
    return number


def untyped(number) -> int:  # type: ignore[no-untyped-def]
    """Do it.

    Args:
        number: A number.
    """
    return int(number)


def no_parameter(number: int) -> int:
    """Do it.

    Args:
        number: A number.
        other: No parameter.
    """
    return number


def many(*numbers: int) -> int:
    """Do it.

    Args:
        numbers: Numbers.
    """
    return sum(numbers)


def unknown_type(number: Missing) -> int:  # type: ignore[name-defined] # noqa: F821
    """Do it.

    Args:
        number: A number.
    """
    return int(number)


class Tree(TypedDict):
    branches: list[Tree]


def no_end(tree: Tree) -> int:
    """Do it.

    Args:
        tree: A tree.
    """
    return len(tree["branches"])


class Plain:
    """A class that pydantic does not know."""


def plain_class(number: Plain) -> int:
    """Do it.

    Args:
        number: The number.
    """
    return 1


def only_alone(number: int) -> int:
    """Do it.

    Args:
        number: A number.
    """
    return 1


only_alone.__annotations__["number"] = Final[int]
"""An annotation that is an object, as in a module without `from __future__ import annotations`.

`typing` would reject it if it were a string.
"""


def wrong_field(number: Annotated[int, Field(gt="a")]) -> int:
    """Do it.

    Args:
        number: A number.
    """
    return number


def no_schema(number: Callable[[], int]) -> int:
    """Do it.

    Args:
        number: A number.
    """
    return number()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (undescribed, "its docstring does not describe number under Args:"),
        (silent, "its docstring does not say what it does"),
        (untyped, "the parameter number has no type"),
        (no_parameter, "its docstring describes other, which is not a parameter"),
        (many, "the parameter numbers cannot be passed by name"),
        (unknown_type, "the type of a parameter cannot be read: name 'Missing' is not defined"),
        (no_end, "a type contains itself"),
        (only_alone, "pydantic cannot check its parameters in JSON: The annotation"),
        (wrong_field, "the parameter number has the type typing.Annotated[int, "),
        (no_schema, "the parameter number has the type collections.abc.Callable[[], int], which pydantic"),
        (
            plain_class,
            "the parameter number has the type Plain, which pydantic cannot check in JSON; use int",
        ),
    ],
)
def test_a_function_that_can_be_no_tool_is_refused_with_the_reason(
    function: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(UserError) as excinfo:
        tool(function)
    assert excinfo.value.message.startswith(f"the tool {function.__name__} in {__name__}: {reason}")


def test_names_may_be_chosen() -> None:
    new_tool = tool(name="other", aliases=("third",))(user_tools.measure.function)
    assert new_tool.schema["function"]["name"] == new_tool.name == "other"
    assert new_tool.aliases == ("third",)


def write_format(folder: Path, tools: str) -> str:
    file = folder / "mine.toml"
    file.write_text(f"template = 'rstar2.jinja'\ntools = {tools}\n")
    template = Path(sys.modules["rstar2.loop.formats.format"].__file__ or "").parent / "rstar2.jinja"
    (folder / "rstar2.jinja").write_text(template.read_text())
    return str(file)


USER_MODULE = '''
from rstar2 import tool

@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number
'''


async def test_a_format_names_a_tool_of_a_module_beside_it_and_keeps_the_name(tmp_path: Path) -> None:
    (tmp_path / "users_double.py").write_text(USER_MODULE)
    fmt = read_format(
        write_format(tmp_path, '["python_code_with_standard_io", "users_double:double"]'),
    )
    assert fmt.tool_names == ("python_code_with_standard_io", "double")
    assert fmt.tool_objects == {"double": "users_double:double"}
    save_format(fmt, tmp_path)
    saved_format = read_format(str(tmp_path / "rstar2_format.json"))
    assert saved_format == fmt
    [call] = await run_calls(saved_format, ("double", {"number": 4}))
    assert (call.status, call.output) == ("ok", "8")


def test_a_format_without_own_tools_has_the_digest_that_it_had() -> None:
    """The digest ignores unused keys, so that a run from an earlier version can be resumed."""
    values = default_format().model_dump(exclude={"examples", "tool_objects", "family", "family_options"})
    earlier = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    assert default_format().digest == hashlib.sha256(earlier.encode()).hexdigest()
    assert format_with("counts").digest != default_format().digest


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ('["support.user_tools:absent"]', "the tool support.user_tools:absent: "),
        (
            '["support.user_tools:not_a_tool"]',
            "support.user_tools:not_a_tool is not a tool, but function",
        ),
        (
            '["support.user_tools:python_code_with_standard_io"]',
            "has the name python_code_with_standard_io, which a tool of rstar2 already has",
        ),
        ('["support.user_tools:counts", "support.user_tools:counts"]', "two tools with the name counts"),
        ('["absent"]', 'tools has "absent", which is not a tool of rstar2'),
    ],
)
def test_a_tool_that_a_format_cannot_have_is_named(tmp_path: Path, tools: str, message: str) -> None:
    with pytest.raises(UserError) as excinfo:
        read_format(write_format(tmp_path, tools))
    assert message in excinfo.value.message


def test_a_tool_that_got_another_name_is_refused() -> None:
    fmt = default_format().with_tool("support.user_tools:counts")
    schema = {"type": "function", "function": {**fmt.tools[0]["function"], "name": "count"}}
    renamed = fmt.model_copy(
        update={"tools": (schema,), "tool_objects": {"count": "support.user_tools:counts"}}
    )
    with pytest.raises(
        UserError, match=r"has a tool count, but the tool support.user_tools:counts has the name counts"
    ):
        renamed.load_tools()


def test_a_tool_is_loaded_by_its_reference() -> None:
    assert load_tool("support.user_tools:counts") is user_tools.counts
