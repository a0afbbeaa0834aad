"""The codec of formats that use a chat template, and that use the tags of `rstar2.loop.turns.tags` in the model's
turns."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rstar2.errors import UserError
from rstar2.loop.formats.format import DEFAULT_FORMAT, Format
from rstar2.loop.turns import tags
from rstar2.loop.turns.breaker import Breaker, control_markup, written_as_one
from rstar2.loop.turns.codec import ChatCodec, Encoded, Message, has_calls
from rstar2.loop.turns.stream import TagStream, TurnStream
from rstar2.loop.turns.turn import ParsedTurn

END_OF_TURN = "<|im_end|>"
"""The token that ends a turn in the chat templates that rstar2 ships."""
_MARK = "THE MODEL'S TURN"
"""Placeholder for the model's turn. In a rendered conversation, the text after the placeholder is what the template
writes after a turn."""
_QUESTION: Message = {"role": "user", "content": "?"}


class TemplateCodec(ChatCodec):
    """Renders conversations with the format's chat template, and parses turns by their tags.

    Raises:
        UserError: the template cannot be rendered, drops tools or their replies, or ends turns with text that is not a
            special token.
    """

    def __init__(
        self,
        tokenizer: Any,
        fmt: Format,
        source: str = DEFAULT_FORMAT,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(tokenizer, fmt, source)
        self._variables = dict(variables)
        # These break up nothing yet. Until they are set below, only our own text is rendered.
        self._in_turns = self._in_questions = self._in_replies = Breaker(())
        after = self._after_turn([], generation=False)
        self.end_id = self._end_of_turn(after)
        self._end_text = str(tokenizer.convert_ids_to_tokens(self.end_id))
        special = {*tokenizer.all_special_tokens, *written_as_one(tokenizer, "<|im_start|>"), self._end_text}
        self._in_turns = Breaker(special)
        own_text = "\n".join([fmt.template, fmt.system or "", fmt.user])
        markup = control_markup(tokenizer, own_text)
        self._in_questions = Breaker({*special, *markup})
        self._in_replies = Breaker({*special, *markup, *self._reply_tags()})
        self.turn_start = self._turn_start()
        """The text of the model's turn that the generation prompt already contains, such as `<reason>`."""
        self._check_tools()

    def prompt(self, messages: Sequence[Message], tools: list[Message] | None = None) -> list[int]:
        prompt_tools = self.format.template_tools if tools is None else tools or None
        return self._encode(self._render(messages, prompt_tools, generation=True))

    def with_variables(self, variables: Mapping[str, Any]) -> TemplateCodec:
        from rstar2.loop.turns.variables import free_variables  # loads Jinja

        known = free_variables(self.format.template)
        for name in variables:
            if name not in known:
                raise UserError(
                    f"{name} is not supported: the model's chat template has no such variable",
                    f"The variables of the template: {', '.join(sorted(known)) or 'none'}.",
                )
        return TemplateCodec(self.tokenizer, self.format, self.source, {**self._variables, **variables})

    def between(self, messages: Sequence[Message]) -> list[int]:
        """Returns the token ids between the end of a turn (after `end_id`) and the model's next turn."""
        text = self._after_turn(messages, generation=True).removeprefix(self._end_text)
        if not self.format.newline_before_reply:
            text = text.removeprefix("\n")
        return self._encode(text)

    def tool_turn(self, outputs: list[str]) -> list[int]:
        """Returns the token ids between a turn that ended with calls and the next turn."""
        return self.between([{"role": "tool", "content": output} for output in outputs])

    def turn(self, text: str) -> list[int]:
        """Returns the token ids of a turn for SFT: the text after `turn_start`, and `end_id`."""
        return [*self._encode(self._in_turns.broken_up(text)), self.end_id]

    def bridge(self, before: Sequence[int], turn: Sequence[int], messages: Sequence[Message]) -> list[int]:
        # Only role and content: a template may also show other keys, which replies of earlier rollouts did not have.
        return self.between([{"role": each["role"], "content": each["content"]} for each in messages])

    def closed(self, ids: list[int]) -> list[int]:
        return ids if ids[-1] == self.end_id else [*ids, self.end_id]

    def parse(self, token_ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> ParsedTurn:
        return self.read(self.decode(token_ids))

    def read(self, text: str) -> ParsedTurn:
        """Parse the text of a turn."""
        closed_only, thinking = self.format.closed_calls_only, self.thinks_first
        return tags.read_turn(text, closed_only=closed_only, thinking=thinking)

    @property
    def thinks_first(self) -> bool:
        """Whether the generation prompt opens a thought."""
        return tags.opens_thought(self.turn_start)

    def stream(self) -> TurnStream:
        return TagStream(self.decode, self.thinks_first)

    def message(
        self, token_ids: Sequence[int], prompt_ids: Sequence[int], tools: list[Message]
    ) -> tuple[Message, ParsedTurn]:
        text = self.turn_start + self.decode(token_ids)
        message: Message = {"role": "assistant", "content": text}
        read = tags.read_turn(text)
        calls = [tags.openai_call(call, number) for number, call in enumerate(read.calls) if not call.fault]
        if tools and calls:
            message |= {"content": tags.without_calls(text).strip(), "tool_calls": calls}
        return message, read

    def training_sample(self, messages: Sequence[Message], tools: list[Message] | None) -> Encoded:
        """Encode a conversation for SFT, see `ChatCodec.training_sample`.

        Every turn begins with `turn_start`. If `turn_start` opens a thought, a turn without a thought gets an empty
        thought.
        """
        if tools is None and not has_calls(messages):
            tools = []
        ids, mask, before = array("i"), array("b"), list[Message]()
        for message in messages:
            if message["role"] != "assistant":
                before.append({"role": message["role"], "content": message.get("content") or ""})
                continue
            text = tags.message_text(message)
            if text.startswith(self.turn_start):
                text = text.removeprefix(self.turn_start)
            else:
                text = tags.end_of_thought(self.turn_start) + text
            prompt = self.between(before) if ids else self.prompt(before, tools)
            turn = self.turn(text)
            ids.extend([*prompt, *turn])
            mask.extend([*[0] * len(prompt), *[1] * len(turn)])
            before = []
        return Encoded(ids, mask)

    def content(self, thought: str, text: str) -> str:
        if not self.thinks_first:
            return text
        return tags.with_thought(self.turn_start, thought, text)

    def written_by_template(self, calls: list[Message]) -> str | None:
        message: Message = {"role": "assistant", "content": _MARK, "tool_calls": calls}
        try:
            text = self._render([_QUESTION, message], self.format.template_tools, generation=False)
        except UserError:  # The template rejects messages with calls.
            return None
        after = text.rpartition(_MARK)[2]
        return None if after == self._after_turn([], generation=False) else after

    def _after_turn(self, messages: Sequence[Message], generation: bool) -> str:
        """Returns the text that the template writes after the last character of a turn of the model."""
        opening = [_QUESTION, {"role": "assistant", "content": _MARK}]
        text = self._render([*opening, *messages], self.format.template_tools, generation)
        _, mark, after = text.partition(_MARK)
        if not mark:
            raise self._fault("drops what the model wrote")
        return after

    def _render(self, messages: Sequence[Message], tools: list[Message] | None, generation: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                [self._plain_message(message) for message in messages],
                tools=self._in_turns.within(tools),
                chat_template=self.format.template,
                tokenize=False,
                add_generation_prompt=generation,
                **self._variables,
            )
        except Exception as error:  # a template can raise anything
            raise self._fault(f"cannot be rendered: {error}") from error
        return str(text)

    def _end_of_turn(self, after: str) -> int:
        """Returns the id of the token that ends a turn. `after` is the text that the template writes after a turn."""
        first = self._encode(after)[:1]
        special = {*self.tokenizer.all_special_ids, *getattr(self.tokenizer, "added_tokens_decoder", {})}
        if not first or first[0] not in special:
            end = after.strip().split(">")[0][:40] + (">" if ">" in after else "")
            raise UserError(
                f"the chat template of the format ends a turn with {end}, which is not a special token of "
                f"{self.tokenizer.name_or_path or 'the tokenizer'}",
                "Use the format that belongs to this model.",
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
        hint = "Use another format: no-tools has no tools, listed-tools lists them in the system text."
        prompt = self._render(self.format.messages(""), self.format.template_tools, generation=True)
        if self.format.tools_in_prompt:
            for name in self.format.tool_names:
                if name not in prompt:
                    raise self._fault(f"drops the tool {name}", hint)
        if _MARK not in self._after_turn([{"role": "tool", "content": _MARK}], generation=True):
            raise self._fault("drops the replies of tools", hint)

    def _fault(self, what: str, hint: str = "Use another format, or correct the template.") -> UserError:
        where = self.tokenizer.name_or_path or "the tokenizer"
        return UserError(f"{where}, format {self.source}: the chat template {what}", hint)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _plain_message(self, message: Message) -> Message:
        """Returns the message after breaking up all control tokens that the author of the message may not write."""
        role, content = message["role"], message.get("content")
        plain: Message = {**self._in_turns.within(message), "role": role}
        if role == "user" and isinstance(content, str):
            plain["content"] = self._plain_question(content)
        elif role == "user":
            plain["content"] = self._in_questions.within(content)
        elif role not in ("assistant", "system", "developer"):
            plain["content"] = self._in_replies.within(content)
        return plain if "content" in message else {key: plain[key] for key in message}

    def _plain_question(self, content: str) -> str:
        """Break up control tokens in a problem, but not in the format's text around the problem."""
        before, after = self.format.around_problem
        if not (content.startswith(before) and content.endswith(after)):
            before = after = ""
        problem = content.removeprefix(before).removesuffix(after)
        plain = before + self._in_questions.broken_up(problem) + after
        return self._in_turns.broken_up(plain)

    def _reply_tags(self) -> set[str]:
        """Returns the tags that the template puts around a reply, such as `<tool_response>` and `</tool_response>`."""
        try:
            text = self._after_turn([{"role": "tool", "content": _MARK}], generation=True)
        except UserError:  # The template has no place for replies.
            return set()
        before, _, after = text.partition(_MARK)
        names = [name for name in re.findall(r"<(\w+)>", before) if f"</{name}>" in after]
        return {tag for name in names for tag in (f"<{name}>", f"</{name}>")}
