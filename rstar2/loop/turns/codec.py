"""The interface of codecs, which render a conversation as token ids, continue the conversation, and parse turns."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rstar2.loop.formats.format import Format
from rstar2.loop.turns.demands import QUESTION_MARK, FormatTexts, opening_demands
from rstar2.loop.turns.stream import TurnStream
from rstar2.loop.turns.turn import ParsedTurn

Message = dict[str, Any]
"""A message in the form of OpenAI's API: `role`, `content`, and optionally `tool_calls` and `reasoning_content`."""


@dataclass(frozen=True)
class Encoded:
    """A conversation encoded for SFT."""

    input_ids: array[int]
    """Token ids of the conversation, shape (T,)."""
    loss_mask: array[int]
    """1 for tokens that SFT teaches the model to write, 0 for all other tokens, shape (T,)."""

    def cut(self, tokens: int) -> Encoded:
        return Encoded(self.input_ids[:tokens], self.loss_mask[:tokens])


def has_calls(messages: Sequence[Message]) -> bool:
    """Whether a conversation contains a tool call or a tool's reply."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


class ChatCodec(ABC):
    """Converts messages to token ids and back, for one tokenizer and format.

    Token ids that a model wrote are never decoded and encoded again.
    """

    end_id: int
    """The id of the token that ends a turn."""
    turn_start: str = ""
    """The text of the model's turn that the generation prompt already contains, such as `<reason>`."""
    thoughts: str = "stay in the context"
    """Phrase for messages to the user that says what happens to the thoughts of earlier turns."""

    def __init__(self, tokenizer: Any, fmt: Format, source: str) -> None:
        self.tokenizer = tokenizer
        self.format = fmt
        self.source = source
        """Where the format comes from."""

    @cached_property
    def texts(self) -> FormatTexts:
        """The texts that the format puts around conversations, and the parts of a turn that these texts ask for."""
        prompt = self.prompt([{"role": "user", "content": QUESTION_MARK}], [])
        before = str(self.tokenizer.decode(prompt)).partition(QUESTION_MARK)[0]
        return FormatTexts(self.format, opening_demands(self.format, before), self.turn_start)

    @property
    def stop_ids(self) -> list[int]:
        """The ids of all tokens that may end a turn, `end_id` first."""
        return [self.end_id]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the vocabulary, the tokenization rules and the format.

        Codecs with the same digest write the same token ids. The list of special tokens is not part of the digest,
        because training changes this list when it sets the token that ends a turn.
        """
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = json.loads(backend.to_str()) if backend is not None else {}
        for key in ("added_tokens", "padding", "truncation"):
            rules.pop(key, None)
        about = [self.tokenizer.get_vocab(), rules, self.format.digest]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    @abstractmethod
    def prompt(self, messages: Sequence[Message], tools: list[Message] | None = None) -> list[int]:
        """Returns the token ids of a conversation up to the place where the model continues.

        `tools` are schemas that replace the format's tools. If `tools` is empty, the prompt lists no tools.
        """

    @abstractmethod
    def with_variables(self, variables: Mapping[str, Any]) -> ChatCodec:
        """Returns a copy of this codec that sets variables of the chat template or options of the family, such as
        `enable_thinking`.

        Raises:
            UserError: the format does not know a variable, or cannot be rendered with it. The message of the error
                names the variable.
        """

    @abstractmethod
    def bridge(
        self, before: Sequence[int], turn: Sequence[int], messages: Sequence[Message]
    ) -> list[int] | None:
        """Returns the token ids between a turn of the model and the model's next turn. These token ids contain
        `messages`.

        Args:
            before: the token ids before the turn.
            turn: the token ids of the turn, see `closed`.
            messages: tool replies, or the next message of a person.

        Returns:
            The token ids, or None if the whole conversation has to be rendered again, because the format leaves out
            the thoughts of earlier turns.

        Raises:
            UserError: the format cannot write this conversation.
        """

    @abstractmethod
    def closed(self, ids: list[int]) -> list[int]:
        """Returns the token ids of a conversation.

        If the last turn of the conversation was stopped or cut off, the end of the turn is added.
        """

    @abstractmethod
    def parse(self, token_ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> ParsedTurn:
        """Parse a turn that the model wrote after `prompt_ids`."""

    @abstractmethod
    def stream(self) -> TurnStream:
        """Returns a parser for turns that are still being generated."""

    @abstractmethod
    def message(
        self, token_ids: Sequence[int], prompt_ids: Sequence[int], tools: list[Message]
    ) -> tuple[Message, ParsedTurn]:
        """Returns a turn as a message of OpenAI's API, and as a parsed turn for a trace.

        `tools` are the tools in the prompt. If `tools` is not empty, valid calls become `tool_calls`.
        """

    @abstractmethod
    def training_sample(self, messages: Sequence[Message], tools: list[Message] | None) -> Encoded:
        """Encode a conversation for SFT. The prompts and tool replies get the token ids that they would have in a
        rollout.

        Each turn begins at the place where the model would begin the turn in a rollout. Messages after the last
        assistant message are left out. If `tools` is None and the conversation has tool calls, the prompt lists the
        format's tools.
        """

    @abstractmethod
    def tool_turn(self, outputs: list[str]) -> list[int]:
        """Returns the token ids between a turn that ended with calls and the next turn.

        Raises UserError if the format cannot continue after calls.
        """

    def content(self, thought: str, text: str) -> str:
        """Returns the `content` of a message with this thought and text.

        The `content` includes the thought if the format's generation prompt opens a thought.
        """
        return text

    def written_by_template(self, calls: list[Message]) -> str | None:
        """Returns the calls as the chat template writes them.

        Returns None if the codec, not the template, writes calls.
        """
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a turn, without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))
