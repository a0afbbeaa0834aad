"""The release's format renders the same bytes as a template like the authors', and a server renders ours as rollouts
do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from support.turns import user_turn

from rstar2.loop.formats.format import Format, default_format, read_format
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec

Message = dict[str, Any]

TEMPLATE = """
{%- set default = 'Think inside <reason> </reason>, and answer inside <answer> </answer>.' %}
{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' else default %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
    {{- "\\n\\nFunctions:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nWrite a call as JSON inside <tool_call></tool_call>." }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\nUse \\\\boxed{}. The problem:\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<reason>' }}
{%- endif %}
"""
"""A template with the structure of the released one, but with short texts written for this test.

The template adds its instruction to each user message, and to each assistant message without calls. Consecutive replies
share one user turn. Generation begins after `<reason>`.
"""


def render(template: str, messages: list[Message], tools: Any = None, generation: bool = True) -> str:
    """Renders messages as a server does: with Jinja and the settings that chat templates are written for."""
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    jinja.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return jinja.from_string(template).render(
        messages=messages, tools=tools, add_generation_prompt=generation
    )


def text_of(codec: ChatCodec, *pieces: list[int]) -> str:
    return str(codec.tokenizer.decode([token for piece in pieces for token in piece]))


PYTHON, NOTEBOOK = "python_code_with_standard_io", "jupyter_code"
PROBLEMS = [
    "What is 6 × 7?",
    "Sei $x \\in \\{1, 2\\}$. Berechne Σ x²; 日本語 🙂",
    "Quotes \"so\" and 'so', a tab\t, <tools> & {problem} {{ messages }}",
    "Two\n\nlines\n",
]
TURNS: list[tuple[str, list[tuple[str, dict[str, str]]], list[str]]] = [
    ("Compute.", [(PYTHON, {"code": "print('π')", "input": ""})], ["Tool call success\nstdout: π"]),
    (
        "Both at once.",
        [(NOTEBOOK, {"code": "x = 1\nx"}), (PYTHON, {"code": "print(input())", "input": "ü\n"})],
        ["Tool call success\nstdout: 1\nexecution time: 0.01s", "Tool call failure\nreason: timeout"],
    ),
    ("", [(NOTEBOOK, {"code": ""})], ["Failed to decode tool call: Expecting value"]),
    ("Quoted.", [(PYTHON, {"code": 'print("a\\n\\t\\\\")', "input": '{"a": 1}'})], ["", "  spaced  ", "…"]),
]


@pytest.fixture(scope="module")
def release() -> Format:
    return read_format("rstar2-agent-14b", TEMPLATE).model_copy(update={"newline_before_reply": True})


def call_text(name: str, arguments: dict[str, str]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def opening(problem: str, system: str | None) -> list[Message]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": problem}]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("system", [None, "Be brief, naïve."])
@pytest.mark.parametrize("with_tools", [True, False])
def test_prompts(release: Format, tokenizer: Any, problem: str, system: str | None, with_tools: bool) -> None:
    fmt = release if with_tools else release.model_copy(update={"tools": ()})
    codec = codec_for(tokenizer, fmt)
    messages = opening(problem, system)
    tools = list(release.tools) if with_tools else None
    assert text_of(codec, codec.prompt(messages)) == render(release.template, messages, tools)
    assert codec.turn_start == "<reason>"


@pytest.mark.parametrize("outputs", [outputs for _, _, outputs in TURNS])
def test_replies_are_rendered_alone_with_the_system_text_cut_off(
    release: Format, tokenizer: Any, outputs: list[str]
) -> None:
    codec = codec_for(tokenizer, release.model_copy(update={"newline_before_reply": False}))
    alone = render(release.template, [{"role": "tool", "content": output} for output in outputs])
    _, end, after_system = alone.partition("<|im_end|>\n")
    assert end
    assert text_of(codec, codec.tool_turn(outputs)) == after_system
    assert text_of(codec, user_turn(codec, "And π?")) == render(
        release.template, [{"role": "user", "content": "And π?"}]
    ).removeprefix(alone[: alone.index("<|im_end|>\n")] + "<|im_end|>\n")


def conversation(turns: int, json_arguments: bool) -> list[Message]:
    """Messages as an OpenAI client sends them."""
    messages = []
    for thought, calls, outputs in TURNS[:turns]:
        tool_calls = [
            {
                "id": f"call-{place}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments, ensure_ascii=False) if json_arguments else arguments,
                },
            }
            for place, (name, arguments) in enumerate(calls)
        ]
        content = f"<reason>{thought}</reason>"
        messages.append({"role": "assistant", "content": content, "tool_calls": tool_calls})
        for place, output in enumerate(outputs):
            messages.append({"role": "tool", "tool_call_id": f"call-{place}", "content": output})
    return messages


def joined(codec: ChatCodec, messages: list[Message], turns: int) -> str:
    """Returns the same conversation as a rollout builds it, piece by piece."""
    pieces = [codec.prompt(messages)]
    for thought, calls, outputs in TURNS[:turns]:
        text = "\n".join([f"{thought}</reason>", *(call_text(*call) for call in calls)])
        pieces += [codec.turn(text), codec.tool_turn(outputs)]
    return text_of(codec, *pieces)


@pytest.mark.parametrize("turns", range(len(TURNS) + 1))
def test_whole_conversations_of_the_release(release: Format, tokenizer: Any, turns: int) -> None:
    codec, start = codec_for(tokenizer, release), opening(PROBLEMS[1], None)
    whole = [*start, *conversation(turns, json_arguments=False)]
    assert joined(codec, start, turns) == render(release.template, whole, list(release.tools))


@pytest.mark.parametrize("turns", range(len(TURNS) + 1))
@pytest.mark.parametrize("json_arguments", [True, False])
@pytest.mark.parametrize("name", ["rstar2", "demo"])
def test_our_template_on_a_server_renders_what_rollouts_see(
    tokenizer: Any, turns: int, json_arguments: bool, name: str
) -> None:
    fmt = read_format(name)
    codec, start = codec_for(tokenizer, fmt), fmt.messages(PROBLEMS[1])
    whole = [*start, *conversation(turns, json_arguments)]
    assert joined(codec, start, turns) == render(fmt.template, whole, list(fmt.tools))


def test_the_shipped_format_of_the_published_model_is_that_of_the_page(tmp_path: Path) -> None:
    """The page about formats writes the format as a file, with the template and the tools in files beside it."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text("utf-8")
    [toml] = re.findall(r'^```toml\n(template = "release.*?)^```', page, re.DOTALL | re.MULTILINE)
    (tmp_path / "release.toml").write_text(toml)
    shipped = read_format("rstar2-agent-14b", TEMPLATE)
    (tmp_path / "release_chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "release_tools.json").write_text(json.dumps([*shipped.tools]))
    assert read_format(str(tmp_path / "release.toml")).model_dump() == shipped.model_dump()


def test_the_template_of_the_published_model_adds_the_instruction_once(
    tokenizer: Any, release: Format
) -> None:
    codec = codec_for(tokenizer, release)
    prompt = text_of(codec, codec.prompt(release.messages(PROBLEMS[0])))
    assert prompt == render(TEMPLATE, opening(PROBLEMS[0], None), list(release.tools))
    assert prompt.count(PROBLEMS[0]) == 1


def test_our_template_takes_what_clients_send_besides(tokenizer: Any) -> None:
    template, tools = default_format().template, list(default_format().tools)
    calls = [{"type": "function", "function": {"name": PYTHON, "arguments": '{"code": "1"}'}}]
    user, parts = (
        {"role": "user", "content": "?"},
        {"role": "user", "content": [{"type": "text", "text": "?"}]},
    )
    assert render(template, [parts], tools) == render(template, [user], tools)
    silent = render(template, [user, {"role": "assistant", "content": None, "tool_calls": calls}], tools)
    assert f"assistant\n{call_text(PYTHON, {'code': '1'})}<|im_end|>" in silent
    # A server's reply begins after the generation prompt. Its client sends this text back.
    message = {"role": "assistant", "content": "so</reason>\n", "tool_calls": calls}
    assert "assistant\n<reason>so</reason>\n<tool_call>" in render(template, [user, message], tools)
    plain = render(template, [user, {"role": "assistant", "content": "Hi.", "tool_calls": []}], None)
    assert plain.endswith("assistant\nHi.<|im_end|>\n<|im_start|>assistant\n<reason>")
    assert "<tools>" not in plain
