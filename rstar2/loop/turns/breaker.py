"""Keeps text that is not ours from holding tokens that control a conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_MARKUP = re.compile(r"[<\[]\S+[>\]]")
"""An added token that is markup. Others, such as the runs of spaces that some tokenizers add, are ordinary text."""
_CONTROL = re.compile(r"[_|]|think|reason|answer|tool|call", re.IGNORECASE)
"""In markup that controls a conversation. Names of HTML elements, which Gemma's vocabulary has, are ordinary text."""

_TURN_TOKEN = (
    r"<[|\uff5c]/?[\w\u2581.-]{1,60}[|\uff5c]?>|<\w{1,40}[|\uff5c]>|</?(?:start|end)_of_"
    r"|\[/?(?:INST|gMASK|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w{1,20})\]|\[e~\[|\]~!?b[\[\]]"
)
"""What begins the tokens between which formats and families write a message and its role."""
_ANY_TURN_TOKEN = re.compile(_TURN_TOKEN)
_CONTROL_IN_TEXT = re.compile(
    _TURN_TOKEN + r"|</?(?:\w{1,20}:)?(?:(?:think(?:ing)?|reason(?:ing)?|answer)\b(?!-)"
    r"|tool_|arg_(?:key|value)\b|invoke\b|(?:function|parameter)[=>])"
    r"|</?(?:system|user|assistant|im_start|im_end|endoftext|bos|eos|sop)\b|(?<!\S)/no_?think\b"
)
"""What begins the tags and control tokens of our formats and of all families."""
_STRUCK_OUT = re.compile(r"<s>(?:(?!</?s>).)*</s>", re.DOTALL)
"""A text that HTML strikes out. It looks like the tokens at the start and the end of a text."""
_AT_AN_END = re.compile(r"\A\s*</?s>|</?s>\s*\Z")


def holds_control(text: str) -> bool:
    """Whether a text has what controls a conversation in our formats or those of any family.

    `<s>` and `</s>` are tokens only at the start or the end of a text, and together they are HTML.
    """
    return bool(_CONTROL_IN_TEXT.search(text) or _AT_AN_END.search(_STRUCK_OUT.sub("-", text)))


def without_turn_tokens(text: str) -> str:
    """The text with a space in each token that could begin or end a message, in the formats of any family.

    For text that a server will tokenize, whose tokens are not known here.
    """
    return _ANY_TURN_TOKEN.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)


class Breaker:
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

    def within(self, value: Any) -> Any:
        """A JSON value with no token in any text of it, keys included."""
        if isinstance(value, str):
            return self.broken_up(value)
        if isinstance(value, list | tuple):
            return [self.within(each) for each in value]
        if isinstance(value, dict):
            return {self.within(key): self.within(each) for key, each in value.items()}
        return value


def control_markup(tokenizer: Any, own_text: str) -> set[str]:
    """Markup that is a single token, though perhaps not a special one, such as `</tool_response>` of Qwen3.

    It is markup that is in `own_text`, the format's own, or that looks like control.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    markup = {token.content for token in added if _MARKUP.fullmatch(token.content)}
    return {token for token in markup if token in own_text or _CONTROL.search(token)}


def written_as_one(tokenizer: Any, token: str) -> list[str]:
    """The token, if the tokenizer has it as one."""
    return [token] if len(tokenizer.encode(token, add_special_tokens=False)) == 1 else []
