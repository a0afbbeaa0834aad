"""Turns conversations into token ids and back, in the format of a model.

`ChatCodec` renders a prompt, or what stands between two turns of the model, with the format's chat template, and
encodes that once; what the model wrote is never encoded again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.loop.formats.format import FORMAT_FILE, OURS, OWN, Format, ours, read_format
from rstar2.runs import changed_keys

END_OF_TURN = "<|im_end|>"
"""How the templates of ours end a turn."""
Message = dict[str, Any]
"""As OpenAI's API writes it: `role`, `content`, and perhaps `tool_calls`."""
_MARK = "THE MODEL'S TURN"
"""Stands for what the model wrote where a template is asked what comes after it."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.*", "tekken.json")
"""A model's folder has at least one of them."""
_MARKUP = re.compile(r"[<\[]\S+[>\]]")
"""An added token that is markup. Others, such as the runs of spaces that some tokenizers add, are ordinary text."""
_CONTROL = re.compile(r"[_|]|think|reason|answer|tool|call", re.IGNORECASE)
"""In markup that controls a conversation. Names of HTML elements, which Gemma's vocabulary has, are ordinary text."""
_QUESTION: Message = {"role": "user", "content": "?"}


class ChatCodec:
    """Text to token ids and back, for a Hugging Face tokenizer and a format, by default ours.

    `source` says where the format comes from.

    Raises:
        UserError: the template cannot be rendered, drops tools or their replies, or ends turns with what is no token.
    """

    def __init__(self, tokenizer: Any, fmt: Format | None = None, source: str = OURS) -> None:
        self.tokenizer = tokenizer
        self.format = fmt or ours()
        self.source = source
        # Nothing foreign is rendered until these are known.
        self._in_turns = self._in_questions = self._in_replies = _Breaker(())
        after = self._after_turn([], generation=False)
        self.end_id = self._end_of_turn(after)
        self._end_text = str(tokenizer.convert_ids_to_tokens(self.end_id))
        special = {*tokenizer.all_special_tokens, *_written(tokenizer, "<|im_start|>"), self._end_text}
        self._in_turns = _Breaker(special)
        markup = self._control_markup()
        self._in_questions = _Breaker({*special, *markup})
        self._in_replies = _Breaker({*special, *markup, *self._reply_tags()})
        self.turn_start = self._turn_start()
        """What the generation prompt already writes of the model's turn, such as `<reason>`."""
        self._check_tools()

    def prompt(
        self, messages: Sequence[Message], tools: list[Message] | None = None, started: bool = True
    ) -> list[int]:
        """Token ids of a conversation up to where the model continues.

        Args:
            tools: schemas for the template in place of the format's; an empty list for none.
            started: whether `turn_start` belongs to them.
        """
        shown = self.format.shown_tools if tools is None else tools or None
        text = self._render(messages, shown, generation=True)
        return self._encode(text if started else text.removesuffix(self.turn_start))

    def between(self, messages: Sequence[Message], started: bool = True) -> list[int]:
        """Token ids between the end of a turn of the model, `end_id`, and its next turn; `started` as in `prompt`."""
        text = self._after_turn(messages, generation=True).removeprefix(self._end_text)
        if not self.format.newline_before_reply:
            text = text.removeprefix("\n")
        return self._encode(text if started else text.removesuffix(self.turn_start))

    def tool_turn(self, outputs: list[str]) -> list[int]:
        """Token ids between a turn that ended with calls and the next turn."""
        return self.between([{"role": "tool", "content": output} for output in outputs])

    def user_turn(self, text: str) -> list[int]:
        """Token ids between an answer and the next turn, when a person asks more."""
        return self.between([{"role": "user", "content": text}])

    def turn(self, text: str) -> list[int]:
        """Token ids of a turn that a model is taught, after `turn_start`, with its end."""
        return [*self._encode(self._in_turns.broken_up(text)), self.end_id]

    def decode(self, token_ids: list[int]) -> str:
        """The text of a turn, without special tokens."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def _after_turn(self, messages: Sequence[Message], generation: bool) -> str:
        """What the template writes after the last character of a turn of the model."""
        opening = [_QUESTION, {"role": "assistant", "content": _MARK}]
        text = self._render([*opening, *messages], self.format.shown_tools, generation)
        _, mark, after = text.partition(_MARK)
        if not mark:
            raise self._fault("drops what the model wrote")
        return after

    def _render(self, messages: Sequence[Message], tools: list[Message] | None, generation: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                [self._plain_message(message) for message in messages],
                tools=tools,
                chat_template=self.format.template,
                tokenize=False,
                add_generation_prompt=generation,
            )
        except Exception as error:  # a template can raise anything
            raise self._fault(f"cannot be rendered: {error}") from error
        return str(text)

    def _end_of_turn(self, after: str) -> int:
        """The id of the token that ends a turn, given the text that the template writes there."""
        first = self._encode(after)[:1]
        special = {*self.tokenizer.all_special_ids, *getattr(self.tokenizer, "added_tokens_decoder", {})}
        if not first or first[0] not in special:
            end = after.strip().split(">")[0][:40] + (">" if ">" in after else "")
            raise UserError(
                f"the tokenizer {self.tokenizer.name_or_path} has no {end} token, with which the chat template of "
                "its format ends a turn",
                "Name the format that belongs to this model.",
            )
        return first[0]

    def _turn_start(self) -> str:
        prompt = self._render([_QUESTION], None, generation=True)
        written = self._render([_QUESTION, {"role": "assistant", "content": _MARK}], None, generation=False)
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, written, strict=False))
        return prompt[sum(1 for _ in pairs) :]

    def _check_tools(self) -> None:
        if not self.format.tools:
            return
        hint = "Name another format: no-tools asks without tools, listed-tools lists them in the system text."
        prompt = self._render(self.format.messages(""), self.format.shown_tools, generation=True)
        if self.format.tools_in_prompt:
            for name in self.format.tool_names:
                if name not in prompt:
                    raise self._fault(f"drops the tool {name}", hint)
        if _MARK not in self._after_turn([{"role": "tool", "content": _MARK}], generation=True):
            raise self._fault("drops the replies of tools", hint)

    def _fault(self, what: str, hint: str = "Name another format, or correct the template.") -> UserError:
        where = self.tokenizer.name_or_path or "the tokenizer"
        return UserError(f"{where}, format {self.source}: the chat template {what}", hint)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _plain_message(self, message: Message) -> Message:
        """The message, with tokens broken up that its author may not write."""
        content = message.get("content")
        if not isinstance(content, str):
            return message
        match message["role"]:
            case "assistant" | "system" | "developer":
                content = self._in_turns.broken_up(content)
            case "user":
                content = self._plain_question(content)
            case _:
                content = self._in_replies.broken_up(content)
        return {**message, "content": content}

    def _plain_question(self, content: str) -> str:
        """Tokens in a problem are broken up; the text that the format puts around it may name its own tags."""
        before, after = self.format.around_problem
        if not (content.startswith(before) and content.endswith(after)):
            before = after = ""
        problem = content.removeprefix(before).removesuffix(after)
        plain = before + self._in_questions.broken_up(problem) + after
        return self._in_turns.broken_up(plain)

    def _control_markup(self) -> set[str]:
        """Markup that is a single token, though perhaps not a special one, such as `</tool_response>` of Qwen3.

        It is markup that the format's own text has, or that looks like control.
        """
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        markup = {token.content for token in added if _MARKUP.fullmatch(token.content)}
        own = "\n".join([self.format.template, self.format.system or "", self.format.user])
        return {token for token in markup if token in own or _CONTROL.search(token)}

    def _reply_tags(self) -> set[str]:
        """The tags that the template puts around a reply, such as `<tool_response>` and `</tool_response>`."""
        try:
            text = self._after_turn([{"role": "tool", "content": _MARK}], generation=True)
        except UserError:  # The template has no place for replies.
            return set()
        before, _, after = text.partition(_MARK)
        names = [name for name in re.findall(r"<(\w+)>", before) if f"</{name}>" in after]
        return {tag for name in names for tag in (f"<{name}>", f"</{name}>")}


class _Breaker:
    """Breaks up tokens in text that is not ours, by a space after their first character."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted(tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._tokens))) if self._tokens else None

    def broken_up(self, text: str) -> str:
        """The text without any of the tokens."""
        if self._any is None or not self._any.search(text):
            return text
        for token in self._tokens:
            text = text.replace(token, token[0] + " " + token[1:])
        return text


def _written(tokenizer: Any, token: str) -> list[str]:
    """The token, where the tokenizer has it as one."""
    return [token] if len(tokenizer.encode(token, add_special_tokens=False)) == 1 else []


@dataclass(frozen=True)
class FormatChoice:
    """The format that a user names for a model; a UserError where one is forced, but none is named."""

    named: str | None = None
    """Name or file of a format, see `read_format`; None for the model's own."""
    forced: bool = False
    """Use it also where the model has another one."""

    def __post_init__(self) -> None:
        if self.forced and self.named is None:
            raise UserError("--force-format needs --format", "Name a format.")


MODELS_OWN = FormatChoice()


def load_codec(model: str | Path, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """The codec of a model folder or hub id, in the model's format.

    That is its format file's, else its own chat template's, else ours. One that is chosen must agree with it, or be
    forced.

    Raises:
        UserError: no tokenizer can be loaded from there, its parts disagree, or as of `read_format` and `ChatCodec`.
    """
    if isinstance(model, Path) and not model.is_dir():
        hint = "Give the folder that holds config.json and the weights."
        raise UserError(f"no model folder at {model}", hint)
    return codec_of(model, load_tokenizer(model), choice)


def load_chat_codec(model: str | Path, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """The codec of a model that is shown the tools of its requests, if any, so that a template that knows none will do.

    UserError as of `load_codec` where a format is named, or the model can be shown nothing at all.
    """
    try:
        return load_codec(model, choice)
    except UserError as error:
        if choice.named is not None:
            raise
        try:
            return load_codec(model, FormatChoice("no-tools"))
        except UserError:
            # Nobody named that format.
            raise error from None


def codec_of(model: str | Path, tokenizer: Any, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """`load_codec` of a model whose tokenizer is loaded."""
    own, source = model_format(model, tokenizer)
    named = choice.named
    if named is None:
        return ChatCodec(tokenizer, own, source)
    wanted = read_format(named, _own_template(tokenizer) or own.template)
    differing = differences(own, wanted, source)
    if differing and not choice.forced:
        raise UserError(
            f"{model} has a format of its own ({source}), which differs from {named} in: {', '.join(differing)}",
            "Omit the format. chat, eval and serve take --force-format; the results then name the format.",
        )
    return ChatCodec(tokenizer, wanted, f"{named}, forced" if differing else named)


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer of a model folder or hub id; UserError where none can be loaded from there."""
    from transformers import AutoTokenizer

    check_tokenizer(model)
    try:
        return AutoTokenizer.from_pretrained(str(model))
    # Of files that are damaged the libraries raise anything, their own types too.
    except Exception as error:
        raise _no_tokenizer(model, " ".join(str(error).split())[:200] or type(error).__name__) from error


def check_tokenizer(model: str | Path) -> None:
    """Raise a UserError for a folder without a tokenizer's files, of which transformers would make an empty one."""
    folder = Path(model)
    if folder.is_dir() and not any(any(folder.glob(name)) for name in _TOKENIZER_FILES):
        raise _no_tokenizer(model, "it has no tokenizer")


def _no_tokenizer(model: str | Path, why: str) -> UserError:
    hint = f"The folder needs tokenizer.json and tokenizer_config.json beside the weights ({why})."
    return UserError(f"cannot load a tokenizer from {model}", hint)


def model_format(model: str | Path, tokenizer: Any) -> tuple[Format, str]:
    """A model's own format and where it comes from; UserError where its file and its chat template disagree."""
    template, record = _own_template(tokenizer), _format_file(model)
    if record is not None:
        stored = read_format(str(record))
        if template is not None and template.strip() != stored.template.strip():
            raise UserError(
                f"{model}: the chat template of the tokenizer is not the one in {FORMAT_FILE}",
                f"Remove {FORMAT_FILE} to use the tokenizer's, or copy both again from the trained model.",
            )
        return stored, FORMAT_FILE
    if template is not None:
        return read_format(OWN, template), "its own chat template"
    return ours(), OURS


def _own_template(tokenizer: Any) -> str | None:
    """A tokenizer's chat template; of several, the one for tools."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default"))
    return None if template is None else str(template)


def _format_file(model: str | Path) -> Path | None:
    """A model's format file; of a hub id, the one in the hub's cache, or fetched from there."""
    if Path(model).is_dir():
        record = Path(model) / FORMAT_FILE
        return record if record.exists() else None
    from transformers.utils import cached_file

    found = cached_file(
        str(model),
        FORMAT_FILE,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def differences(own: Format, wanted: Format, source: str) -> list[str]:
    """What differs between a model's format, as of `model_format`, and another, of all that a reply is written by.

    The time and memory that a call may take are the user's to choose. Of a model without a format file only the
    template counts.
    """
    if source == FORMAT_FILE:
        free: Any = {"examples": True, "limits": {"seconds", "memory_mb"}}
        return changed_keys(own.model_dump(exclude=free), wanted.model_dump(exclude=free))
    return [] if source == OURS or own.template == wanted.template else ["template"]
