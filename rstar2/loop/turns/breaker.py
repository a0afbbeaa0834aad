"""Breaks up the tokens that control a conversation if they occur in problems, tool output or messages of clients."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_MARKUP = re.compile(r"[<\[]\S+[>\]]")
"""Matches added tokens that are markup. Other added tokens, such as the runs of spaces of some tokenizers, are ordinary
text."""
_CONTROL = re.compile(r"[_|]|think|reason|answer|tool|call", re.IGNORECASE)
"""Matches a part of the markup that controls a conversation.

The pattern does not match names of HTML elements. Gemma has tokens for them, but they are ordinary text.
"""

_TURN_TOKEN = (
    r"<[|\uff5c]/?[\w\u2581.-]{1,60}[|\uff5c]?>|<\w{1,40}[|\uff5c]>|</?(?:start|end)_of_"
    r"|\[/?(?:INST|gMASK|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w{1,20})\]|\[e~\[|\]~!?b[\[\]]"
)
"""Pattern for the start of tokens that begin or end a message or its role, in all formats and families."""
_ANY_TURN_TOKEN = re.compile(_TURN_TOKEN)
_CONTROL_IN_TEXT = re.compile(
    _TURN_TOKEN + r"|</?(?:\w{1,20}:)?(?:(?:think(?:ing)?|reason(?:ing)?|answer)\b(?!-)"
    r"|tool_|arg_(?:key|value)\b|invoke\b|(?:function|parameter)[=>])"
    r"|</?(?:system|user|assistant|im_start|im_end|endoftext|bos|eos|sop)\b|(?<!\S)/no_?think\b"
)
"""Pattern for the start of tags and control tokens, in all formats and families."""
_STRUCK_OUT = re.compile(r"<s>(?:(?!</?s>).)*</s>", re.DOTALL)
"""Pattern for struck-out text in HTML. Its tags look like the tokens `<s>` and `</s>`, which mark the start and the
end of a text."""
_AT_AN_END = re.compile(r"\A\s*</?s>|</?s>\s*\Z")


def holds_control(text: str) -> bool:
    """Whether a text contains a tag or token that controls a conversation in any format or family.

    `<s>` and `</s>` are control tokens only at the start or the end of a text. Elsewhere, they are HTML tags for
    struck-out text.
    """
    return bool(_CONTROL_IN_TEXT.search(text) or _AT_AN_END.search(_STRUCK_OUT.sub("-", text)))


def without_turn_tokens(text: str) -> str:
    """Returns the text with a space inserted into each token that could begin or end a message in any family.

    Use the function for text that a server tokenizes, because the tokens of the server's model are not known to rstar2.
    """
    return _ANY_TURN_TOKEN.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)


class Breaker:
    """Breaks up a set of tokens in untrusted text: inserts a space after the first character of each token."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted(tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._tokens))) if self._tokens else None

    def broken_up(self, text: str) -> str:
        """Returns the text with all of the tokens broken up."""
        if self._any is None or not self._any.search(text):
            return text
        for token in self._tokens:
            text = text.replace(token, token[0] + " " + token[1:])
        return text

    def within(self, value: Any) -> Any:
        """Returns a JSON value in which the tokens are broken up in all strings, keys included."""
        if isinstance(value, str):
            return self.broken_up(value)
        if isinstance(value, list | tuple):
            return [self.within(each) for each in value]
        if isinstance(value, dict):
            return {self.within(key): self.within(each) for key, each in value.items()}
        return value


def control_markup(tokenizer: Any, own_text: str) -> set[str]:
    """Returns the tokens that are control markup, such as `</tool_response>` of Qwen3. Control markup need not consist
    of special tokens.

    Markup counts as control markup if the format's text `own_text` contains it, or if the markup looks like a control
    tag.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    markup = {token.content for token in added if _MARKUP.fullmatch(token.content)}
    return {token for token in markup if token in own_text or _CONTROL.search(token)}


def written_as_one(tokenizer: Any, token: str) -> list[str]:
    """Returns a list with `token` if the tokenizer encodes it as a single token, and otherwise an empty list."""
    return [token] if len(tokenizer.encode(token, add_special_tokens=False)) == 1 else []
