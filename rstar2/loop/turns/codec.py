"""What every format can do: render a conversation as token ids, lead on to the next turn, and read a turn."""

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
from rstar2.loop.turns.demands import QUESTION_MARK, Wording, opening_demands
from rstar2.loop.turns.stream import TurnStream
from rstar2.loop.turns.turn import ParsedTurn

Message = dict[str, Any]
"""As OpenAI's API writes it: `role`, `content`, and perhaps `tool_calls` and `reasoning_content`."""


@dataclass(frozen=True)
class Encoded:
    """A conversation as SFT sees it."""

    input_ids: array[int]
    """Shape (T,)."""
    loss_mask: array[int]
    """Shape (T,): 1 if the model has to write the token."""

    def cut(self, tokens: int) -> Encoded:
        return Encoded(self.input_ids[:tokens], self.loss_mask[:tokens])


def has_calls(messages: Sequence[Message]) -> bool:
    """Whether a conversation calls a tool, or has a tool's reply."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


class ChatCodec(ABC):
    """Messages to token ids and back, for a tokenizer and a format. What a model wrote is never encoded again."""

    end_id: int
    """The token that ends a turn."""
    turn_start: str = ""
    """What the generation prompt already writes of the model's turn as text, such as `<reason>`."""
    thoughts: str = "stay in the context"
    """What becomes of the thoughts of earlier turns."""

    def __init__(self, tokenizer: Any, fmt: Format, source: str) -> None:
        self.tokenizer = tokenizer
        self.format = fmt
        self.source = source
        """Where the format comes from."""

    @cached_property
    def wording(self) -> Wording:
        """The format's texts around conversations, and what they ask of turns."""
        prompt = self.prompt([{"role": "user", "content": QUESTION_MARK}], [])
        before = str(self.tokenizer.decode(prompt)).partition(QUESTION_MARK)[0]
        return Wording(self.format, opening_demands(self.format, before), self.turn_start)

    @property
    def stop_ids(self) -> list[int]:
        """All tokens that may end a turn, `end_id` first."""
        return [self.end_id]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the vocabulary, of how text becomes tokens, and of the format.

        Codecs of one digest write the same token ids. Which tokens count as special is left out, because training
        changes that: it names the token that ends a turn.
        """
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = json.loads(backend.to_str()) if backend is not None else {}
        for key in ("added_tokens", "padding", "truncation"):
            rules.pop(key, None)
        about = [self.tokenizer.get_vocab(), rules, self.format.digest]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    @abstractmethod
    def prompt(self, messages: Sequence[Message], tools: list[Message] | None = None) -> list[int]:
        """Token ids of a conversation up to where the model continues.

        `tools` are schemas to show in place of the format's; an empty list for none.
        """

    @abstractmethod
    def with_variables(self, variables: Mapping[str, Any]) -> ChatCodec:
        """This codec, with variables of its chat template or options of its family set, such as `enable_thinking`.

        Raises UserError, which names the variable, if the format does not know it or cannot be rendered with it.
        """

    @abstractmethod
    def bridge(
        self, before: Sequence[int], turn: Sequence[int], messages: Sequence[Message]
    ) -> list[int] | None:
        """Token ids between a turn of the model and its next one, in which it reads the messages.

        Args:
            before: the token ids before the turn.
            turn: the turn's own, see `closed`.
            messages: replies of tools, or what a person asks next.

        Returns None if the conversation has to be rendered anew, because the format's models are trained with earlier
        thoughts left out.

        Raises:
            UserError: the format cannot write this conversation.
        """

    @abstractmethod
    def closed(self, ids: list[int]) -> list[int]:
        """A conversation's ids, the turn at their end closed if it was stopped or cut off."""

    @abstractmethod
    def parse(self, token_ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> ParsedTurn:
        """Read a turn that the model wrote after `prompt_ids`."""

    @abstractmethod
    def stream(self) -> TurnStream:
        """A reader of turns that are still being written."""

    @abstractmethod
    def message(
        self, token_ids: Sequence[int], prompt_ids: Sequence[int], tools: list[Message]
    ) -> tuple[Message, ParsedTurn]:
        """A turn as a message of OpenAI's API, and as a trace keeps it.

        If the model was shown `tools`, calls that can be read become `tool_calls`.
        """

    @abstractmethod
    def training_sample(self, messages: Sequence[Message], tools: list[Message] | None) -> Encoded:
        """Encode a conversation as rollouts will: the same prompts, and the same replies of tools.

        Each turn begins where generation begins it. What follows the last assistant message is left out. A conversation
        with tool calls and without `tools` is shown the format's tools.
        """

    @abstractmethod
    def tool_turn(self, outputs: list[str]) -> list[int]:
        """Token ids between a turn that ended with calls and the next turn; UserError if the format has none."""

    def content(self, thought: str, said: str) -> str:
        """The `content` of a message with that thought, which is in there if the format's turns begin inside one."""
        return said

    def written_by_template(self, calls: list[Message]) -> str | None:
        """What the template itself writes of a turn with calls; None if it leaves calls to the codec."""
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a turn, without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))
