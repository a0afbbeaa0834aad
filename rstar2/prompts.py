"""Writes the prompt around a problem: system text, chat template, tool schemas, and their token ids.

The template is ChatML, as the released model uses it: tool output comes back inside `<tool_response>` under
the user role (arXiv 2508.20722, appendix on prompts). `ChatCodec` turns text into token ids once; what the
model wrote is never encoded again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rstar2.errors import UserError
from rstar2.files import write_json

TOOL_NAME = "python_code_with_standard_io"

TOOL_SCHEMAS: dict[str, dict[str, Any]] = {
    TOOL_NAME: {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Run Python code with the given standard input and return what it prints.",
            "parameters": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "description": "The Python code to execute."},
                    "input": {"type": "string", "description": "The standard input of the program."},
                },
                "required": ["code", "input"],
            },
        },
    }
}

SYSTEM = """\
You are a careful assistant that reasons before it answers. Write your reasoning inside <reason> and \
</reason>, and your answer inside <answer> and </answer>.

# Tools
You may call one or more functions. Their JSON signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and arguments inside <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <arguments-object>}
</tool_call>"""

USER = """\
{problem}

Solve the problem with care, and use the Python tool where it helps. Put your answer inside <answer> and \
</answer>, with the final value in \\boxed{}."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message['content'] + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n<reason>' -}}
{%- endif -%}"""
"""What a trained model's tokenizer carries, so that SFT, rollouts and a chat server see the same text."""

END_OF_TURN = "<|im_end|>"
FORMAT_FILE = "rstar2_prompt.json"
GENERATION_PROMPT = "<|im_start|>assistant\n<reason>"
"""Generation starts inside the reasoning, as in the released code."""


class PromptFormat(BaseModel, extra="forbid", frozen=True):
    """The words around a problem."""

    system: str = SYSTEM
    """The system text; `{tools}` becomes the tools' JSON schemas, one a line."""
    user: str = USER
    """The user text; `{problem}` becomes the problem."""
    one_question: bool = False
    """The model was never taught conversations: a chat asks each question as the first."""
    examples: tuple[str, ...] = ()
    """Problems that the model was taught to solve, for a chat to suggest."""

    def messages(self, problem: str) -> list[dict[str, str]]:
        """The conversation that a problem opens: a system and a user message."""
        tools = "\n".join(json.dumps(schema) for schema in TOOL_SCHEMAS.values())
        return [
            {"role": "system", "content": self.system.replace("{tools}", tools)},
            {"role": "user", "content": self.user.replace("{problem}", problem)},
        ]


class ChatCodec:
    """Text to token ids and back, for a Hugging Face tokenizer; UserError where it has no `<|im_end|>` token.

    `prompt_format` holds the words around a problem; the paper's by default.
    """

    def __init__(self, tokenizer: Any, prompt_format: PromptFormat | None = None) -> None:
        self.tokenizer = tokenizer
        self.format = prompt_format or PromptFormat()
        ends = tokenizer.encode(END_OF_TURN, add_special_tokens=False)
        if len(ends) != 1:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path} has no {END_OF_TURN} token",
                "Use a model with a ChatML template (Qwen, SmolLM2, or one trained here).",
            )
        self.end_id: int = ends[0]
        special = {*tokenizer.all_special_tokens, "<|im_start|>", END_OF_TURN}
        self._special = sorted(special, key=len, reverse=True)

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the model continues."""
        safe = [{**message, "content": self._plain(message["content"])} for message in messages]
        text = self.tokenizer.apply_chat_template(
            safe, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
        )
        return self._encode(text)

    def tool_turn(self, outputs: list[str]) -> list[int]:
        """Token ids between a turn that ended with calls and the next turn."""
        body = "".join(
            f"<|im_start|>user\n<tool_response>\n{self._plain(output)}\n</tool_response>{END_OF_TURN}\n"
            for output in outputs
        )
        return self._encode(f"\n{body}{GENERATION_PROMPT}")

    def user_turn(self, text: str) -> list[int]:
        """Token ids between an answer and the next turn, when a person asks more."""
        return self._encode(f"\n<|im_start|>user\n{self._plain(text)}{END_OF_TURN}\n{GENERATION_PROMPT}")

    def decode(self, token_ids: list[int]) -> str:
        """The text of a turn, without special tokens."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _plain(self, text: str) -> str:
        """Break up special tokens in text that is not ours, so that no tool output can end a turn."""
        for token in self._special:
            if token in text:
                text = text.replace(token, token[0] + " " + token[1:])
        return text


def load_codec(model: str | Path) -> ChatCodec:
    """The codec of a model folder or hub id, with the words that a model trained here was trained with.

    UserError where no tokenizer can be loaded from there.
    """
    if isinstance(model, Path) and not model.is_dir():
        hint = "Give the folder that holds config.json and the weights."
        raise UserError(f"no model folder at {model}", hint)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model))
    # Of files that are missing or damaged the libraries raise anything, their own types too.
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"cannot load a tokenizer from {model}",
            f"The folder needs tokenizer.json and tokenizer_config.json beside the weights ({said}).",
        ) from error
    return ChatCodec(tokenizer, _stored_format(Path(model)))


def save_format(prompt_format: PromptFormat, folder: Path) -> None:
    """Keep the prompt that a model is trained with beside its weights, so that every later use is the same."""
    write_json(folder / FORMAT_FILE, prompt_format.model_dump())


def _stored_format(folder: Path) -> PromptFormat:
    record = folder / FORMAT_FILE
    if not record.exists():
        return PromptFormat()
    try:
        return PromptFormat.model_validate_json(record.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        hint = "Copy it again from the trained model."
        raise UserError(f"{record} is not a prompt format", hint) from error
