"""Tests of format files: a format is one file, and errors name unknown keys and settings that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2.errors import UserError
from rstar2.judge.schema import MAX_TIMEOUT_S
from rstar2.loop.formats.format import FORMAT_FILE, Format, default_format, read_format, save_format
from rstar2.loop.turns.choose import FormatChoice, codec_for, load_codec

TEMPLATE = """\
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + ': ' + message.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant: ' }}{% endif %}"""


def format_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["rstar2", "demo", "own", "listed-tools", "no-tools", "release"])
def test_every_shipped_format_survives_its_file(name: str, tmp_path: Path, tokenizer: Any) -> None:
    fmt = read_format(name, TEMPLATE)
    save_format(fmt, tmp_path)
    assert read_format(str(tmp_path / FORMAT_FILE)) == fmt
    codec_for(tokenizer, fmt)


def test_template_and_tools_may_be_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "x.jinja").write_text(TEMPLATE)
    (tmp_path / "x.json").write_text(json.dumps(list(default_format().tools)))
    fmt = read_format(format_file(tmp_path / "x.toml", 'template = "x.jinja"\ntools = "x.json"'))
    assert fmt == Format(template=TEMPLATE, tools=default_format().tools)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trmplate = ''", "unknown key trmplate; did you mean template"),
        ("[limits]\nsecond = 3", "unknown key limits.second; did you mean limits.seconds"),
        ("[limits]\nseconds = 0", "limits.seconds must be a number above 0"),
        ("layout = 'pretty'", "layout must be one of 'plain', 'labelled', not 'pretty'"),
        ("tools = ['browser']", 'tools has "browser", which is not a tool of rstar2'),
        ("tools = [{name = 'x'}]", 'tools has {"name": "x"}, which is not a tool of rstar2'),
        ("template = 'absent.jinja'", "absent.jinja: No such file or directory"),
        ("template = ", "x.toml is not TOML"),
    ],
)
def test_a_bad_format_file_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as excinfo:
        read_format(format_file(tmp_path / "x.toml", text), TEMPLATE)
    assert str(tmp_path) in excinfo.value.message
    assert message in excinfo.value.message
    assert excinfo.value.hint


def test_no_such_format_and_no_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no format qwen") as excinfo:
        read_format("qwen")
    assert "demo, listed-tools, no-tools, own, release, rstar2" in excinfo.value.hint
    with pytest.raises(UserError, match="the format own has no template, and the model has no chat template"):
        read_format("own")
    with pytest.raises(UserError, match=r"cannot read .*absent.toml"):
        read_format(str(tmp_path / "absent.toml"))


DROPS_TOOLS = TEMPLATE.splitlines(keepends=True)
DROPS_REPLIES = TEMPLATE.replace(
    "+ message.content +", "+ ('' if message.role == 'tool' else message.content) +"
)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("".join(DROPS_TOOLS[1:]), "the chat template drops the tool python_code_with_standard_io"),
        (DROPS_REPLIES, "the chat template drops the replies of tools"),
        ("{{ raise_exception('no') }}", "the chat template cannot be rendered: no"),
        ("{{ messages[0].content }}", "the chat template drops what the model wrote"),
        (TEMPLATE.replace("<|im_end|>", "</s>"), "ends a turn with </s>, which is not a special token"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_by_name(tokenizer: Any, template: str, message: str) -> None:
    with pytest.raises(UserError) as excinfo:
        codec_for(tokenizer, read_format("own", template), "own")
    assert message in excinfo.value.message
    assert excinfo.value.hint


def test_tools_may_be_left_out_or_listed_in_the_system_text(tokenizer: Any) -> None:
    template = "".join(DROPS_TOOLS[1:])
    quiet, listing = (
        codec_for(tokenizer, read_format(name, template)) for name in ("no-tools", "listed-tools")
    )
    prompts = [codec.decode(codec.prompt(codec.format.messages("2+2?"))) for codec in (quiet, listing)]
    assert "tool" not in prompts[0]
    assert json.dumps(default_format().tools[0], ensure_ascii=False) in prompts[1]


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    """A model's folder with its own chat template."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_without_a_format_file_a_models_own_template_is_used(model: Path) -> None:
    codec = load_codec(model)
    assert codec.source == "its own chat template"
    assert codec.format == read_format("own", TEMPLATE)
    assert codec.tokenizer.decode(codec.tool_turn(["4", "5"])) == (
        "<|im_start|>tool: 4<|im_end|><|im_start|>tool: 5<|im_end|><|im_start|>assistant: "
    )


def test_another_format_is_refused_or_named_when_forced(model: Path) -> None:
    assert load_codec(model, FormatChoice("no-tools")).source == "no-tools"
    with pytest.raises(
        UserError, match=r"has its own format \(its own chat template\), which differs from rstar2"
    ) as excinfo:
        load_codec(model, FormatChoice("rstar2"))
    assert "--force-format" in excinfo.value.hint
    forced = load_codec(model, FormatChoice("rstar2", forced=True))
    assert (forced.source, forced.format) == ("rstar2, forced", default_format())


def test_forcing_no_format_is_a_mistake() -> None:
    with pytest.raises(UserError, match="--force-format needs --format"):
        FormatChoice(forced=True)


def test_a_model_with_a_format_file_keeps_to_all_of_it(model: Path) -> None:
    own_format = read_format("own", TEMPLATE)
    save_format(own_format, model)
    assert load_codec(model).source == FORMAT_FILE
    assert load_codec(model, FormatChoice("own")).source == "own"
    with pytest.raises(UserError, match=r"differs from no-tools in: tools"):
        load_codec(model, FormatChoice("no-tools"))
    assert load_codec(model, FormatChoice("no-tools", forced=True)).source == "no-tools, forced"


def test_the_time_and_memory_of_a_call_may_differ_from_those_of_the_format_file(
    model: Path, tmp_path: Path
) -> None:
    own_format = read_format("own", TEMPLATE)
    save_format(own_format, model)
    copy = tmp_path / "slower.json"

    def with_limits(**limits: int) -> FormatChoice:
        changed = own_format.limits.model_copy(update=limits)
        copy.write_text(own_format.model_copy(update={"limits": changed}).model_dump_json())
        return FormatChoice(str(copy))

    codec = load_codec(model, with_limits(seconds=60, memory_mb=4096))
    assert (codec.format.limits.seconds, codec.format.limits.memory_mb) == (60, 4096)
    assert codec.format.digest != own_format.digest, "the digest differs if limits differ"
    with pytest.raises(UserError, match=r"differs from .* in: limits\.characters"):
        load_codec(model, with_limits(characters=100))


def test_the_digest_tells_formats_apart() -> None:
    shorter = default_format().limits.model_copy(update={"characters": 256})
    others = [
        default_format().model_copy(update=change) for change in ({"limits": shorter}, {"user": "{problem}"})
    ]
    assert len({default_format().digest, *(other.digest for other in others)}) == 3
    assert default_format().model_copy(update={"examples": ("x",)}).digest == default_format().digest


def test_a_tool_may_take_no_longer_than_the_judge_allows(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(f'template = "x"\n[limits]\nseconds = {MAX_TIMEOUT_S + 1}\n')
    with pytest.raises(UserError, match=r"limits\.seconds must be .* at most 300"):
        read_format(str(path))
