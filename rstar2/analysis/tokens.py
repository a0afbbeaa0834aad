"""Classifies each generated token (as a word, code, a tag), and finds its position relative to tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.calls import failure_kind
from rstar2.analysis.kinds import KINDS, kinds_of, words_of
from rstar2.errors import UserError
from rstar2.loop.trace import Trace, Turn

REACH = 64
"""Number of tokens that are analysed on each side of a call and of a reply."""

_REPLACED = "\ufffd"
"""The text that a tokenizer returns for a token that is only a part of a character."""
_LONGEST_CHARACTER = 6
"""Maximum number of tokens that are decoded together to get whole characters."""
_MAY_DIFFER = 2
"""Maximum number of turns whose decoded text may differ from the trace. In a set of more than 20 turns, the decoded
text of up to a tenth of the turns may differ.
"""


@dataclass(frozen=True)
class WrittenTokens:
    """The M generated tokens of one trace, in order. The generated tokens are the tokens with mask 1."""

    turn: NDArray[np.int32]
    """Shape (M,): the index of each token's turn, from 0."""
    place: NDArray[np.int32]
    """Shape (M,): the position of each token in its turn, from 0."""
    kind: NDArray[np.uint8]
    """Shape (M,): the token's kind, an index of KINDS."""
    characters: NDArray[np.uint16]
    """Shape (M,): the number of characters of the turn's text that the token covers. A special token has 0 characters.

    The number for a turn's first token includes the characters that the chat template wrote at the beginning of the
    turn.
    """
    words: list[str]
    """The word or sign to which each token belongs, as in `rstar2.analysis.kinds.words_of`."""


class TokenReader:
    """Reads the tokens of traces. The tokenizer must be the tokenizer of the model that generated the traces."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {
            token_id: str(token)
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._texts: dict[int, str] = {}
        """The text of each token inside a turn."""
        self._first_texts: dict[int, str] = {}
        """The text of each token at the beginning of a turn."""
        # Decoders drop the space before a text's first word, so tokens inside a turn are decoded after this token.
        self._before = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
        self._text_before = self._decode(self._before)
        self._turns = 0
        self._mismatches: list[str] = []
        """A description of each turn whose decoded text differs from the turn's text in the trace."""

    def read_all(self, traces: Sequence[Trace]) -> list[WrittenTokens]:
        """The tokens of each trace.

        The decoded text of a few turns may differ from the trace, because some models generate bytes that are not text.

        Raises:
            UserError: the traces were generated with another tokenizer.
        """
        tokens = [self.read(trace) for trace in traces]
        if len(self._mismatches) > max(self._turns // 10, min(_MAY_DIFFER, self._turns - 1)):
            raise UserError(
                f"the traces were not written with the tokenizer of {self._tokenizer.name_or_path}, "
                f"which reads {self._mismatches[0]}",
                "With --model, name the model that generated the traces.",
            )
        return tokens

    def read(self, trace: Trace) -> WrittenTokens:
        turns = [self._turn(trace, turn) for turn in trace.turns if trace.response_ids]
        sizes = [len(kinds) for kinds, _, _ in turns]
        return WrittenTokens(
            turn=np.repeat(np.arange(len(turns), dtype=np.int32), sizes),
            place=np.concatenate([np.arange(n, dtype=np.int32) for n in sizes] or [np.zeros(0, np.int32)]),
            kind=np.concatenate([kinds for kinds, _, _ in turns] or [np.zeros(0, np.uint8)]),
            characters=np.concatenate([lengths for _, lengths, _ in turns] or [np.zeros(0, np.uint16)]),
            words=[word for _, _, words in turns for word in words],
        )

    def _turn(self, trace: Trace, turn: Turn) -> tuple[NDArray[np.uint8], NDArray[np.uint16], list[str]]:
        """The kind, the number of characters and the word of each token of a turn."""
        ids = trace.response_ids[turn.start : turn.end]
        texts, holders = self.texts(ids)
        if not turn.tagged:
            self._add_special(texts, ids, turn.text)
        text = "".join(texts)
        started = self._started(trace, text, turn.text)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        # A token may begin with the space before its word, so its first non-whitespace character decides.
        spaces = [len(piece) - len(piece.lstrip()) if not piece.isspace() else 0 for piece in texts]
        firsts = np.cumsum(lengths) - lengths + np.array(spaces, dtype=np.int64)
        firsts, silent = firsts[holders], (lengths == 0)[holders]
        kinds = np.append(kinds_of(turn)[started:], np.uint8(KINDS.index("tag")))
        names, places = words_of(text)
        word_of = np.append(places, np.int32(-1))[np.minimum(firsts, len(places))]
        lengths[:1] += started
        return (
            np.where(silent, np.uint8(KINDS.index("tag")), kinds[np.minimum(firsts, len(kinds) - 1)]),
            lengths.astype(np.uint16),
            [names[place] for place in np.where(silent, -1, word_of).tolist()],
        )

    def texts(self, token_ids: Sequence[int]) -> tuple[list[str], NDArray[np.int64]]:
        """Decode tokens one by one.

        Returns:
            Two lists with an entry per token. The first list has the token's text. If several tokens spell one
            character, the first of these tokens has the whole character as its text, and the others have an empty text.
            The second list has the token's own index. If several tokens spell one character, it has the index of the
            first of them. Special tokens have an empty text.
        """
        known = self._texts
        texts = [known[token_id] if token_id in known else self._text(token_id) for token_id in token_ids]
        holders = np.arange(len(texts))
        first = next((i for i, text in enumerate(texts) if text), 0)
        texts[first : first + 1] = [self._first_text(token_id) for token_id in token_ids[first : first + 1]]
        for i, text in enumerate(texts):
            if _REPLACED not in text:
                continue
            for end in range(i + 2, min(i + _LONGEST_CHARACTER, len(texts)) + 1):
                joined = self._inside(token_ids[i:end]) if i > first else self._decode(token_ids[i:end])
                if _REPLACED not in joined:
                    texts[i:end] = [joined, *[""] * (end - i - 1)]
                    holders[i:end] = i
                    break
        return texts, holders

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            self._texts[token_id] = self._inside([token_id])
        return self._texts[token_id]

    def _first_text(self, token_id: int) -> str:
        if token_id not in self._first_texts:
            self._first_texts[token_id] = self._decode([token_id])
        return self._first_texts[token_id]

    def _inside(self, token_ids: Sequence[int]) -> str:
        """The text of tokens that are not the first of a turn."""
        return self._decode([*self._before, *token_ids]).removeprefix(self._text_before)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _add_special(self, texts: list[str], token_ids: Sequence[int], written: str) -> None:
        """Add the texts of special tokens, because the turns of one model family contain special tokens. A special
        token at the end of the turn gets no text, unless the turn's text in the trace ends with it.
        """
        for place, token_id in enumerate(token_ids):
            texts[place] = self._special.get(token_id, texts[place])
        for place in reversed(range(len(texts))):
            if token_ids[place] not in self._special or written.endswith(texts[place]):
                return
            texts[place] = ""

    def _started(self, trace: Trace, text: str, written: str) -> int:
        """The number of characters at the beginning of a turn that were written by the chat template and not by the
        model.
        """
        self._turns += 1
        if text and written.endswith(text):
            return len(written) - len(text)
        if text != written and _REPLACED not in written:
            self._mismatches.append(
                f"a turn of problem {trace.problem_id} as {text[:40]!r} while the trace has {written[:40]!r}"
            )
        return 0


def outcome(turn: Turn) -> str:
    """The outcome of a turn's calls: `ok`, `lost`, or the `failure_kind` of the first failure. The outcome is empty for
    a turn without calls.

    If the judge lost one of the calls, the whole turn counts as lost, because nothing is known about the model's code.
    """
    kinds = [failure_kind(call) for call in turn.calls]
    if "lost" in kinds:
        return "lost"
    return next((kind for kind in kinds if kind != "ok"), "ok" if kinds else "")


def after_reply(tokens: WrittenTokens, trace: Trace) -> NDArray[np.int32]:
    """For each token, the number of tokens between the tool reply before its turn and the token; -1 if no tool reply
    precedes the turn.

    The result has shape (M,).
    """
    follows = np.array(
        [number > 0 and bool(trace.turns[number - 1].calls) for number in range(len(trace.turns))]
    )
    if not len(tokens.turn):
        return np.zeros(0, dtype=np.int32)
    return np.where(follows[tokens.turn], tokens.place, -1).astype(np.int32)


@dataclass(frozen=True)
class Event:
    """A turn with tool calls that were run, and the reply to these calls. The positions in an event are indices into
    WrittenTokens.
    """

    call: int
    """Position of the first token of the turn's first call."""
    reply: int
    """Position of the first token after the reply."""
    first: int
    """Position of the first token of the turn with the call."""
    last: int
    """Position after the last token of the turn that follows the reply."""
    outcome: str
    """`ok`, or the `failure_kind` of the first failure."""


def events(tokens: WrittenTokens, trace: Trace) -> Iterator[Event]:
    """An event for each turn with calls whose reply the model saw. Turns with a lost call are left out."""
    ends = np.searchsorted(tokens.turn, np.arange(len(trace.turns)), side="right")
    for number, turn in enumerate(trace.turns[:-1]):
        turn_outcome = outcome(turn)
        if turn_outcome in ("", "lost"):
            continue
        first, reply, last = int(ends[number - 1]) if number else 0, int(ends[number]), int(ends[number + 1])
        inside = tokens.kind[first:reply] == KINDS.index("call")
        # The call begins with the tag before its JSON, unless one token spells both.
        begins = int(inside.argmax()) if inside.any() else reply - first
        if begins and tokens.kind[first + begins - 1] == KINDS.index("tag"):
            begins -= 1
        yield Event(first + begins, reply, first, last, turn_outcome)
