"""Says of each token that a model wrote what it is (a word, code, a tag) and where it stands beside tool calls."""

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
"""Tokens looked at on each side of a call and of a reply."""

_REPLACED = "\ufffd"
"""What a tokenizer gives for a part of a character."""
_LONGEST_CHARACTER = 6
"""Tokens that one character, or several joined ones, may be spread over."""
_MAY_DIFFER = 2
"""Turns that may read otherwise than their traces say, however few there are; of many a tenth."""


@dataclass(frozen=True)
class WrittenTokens:
    """The tokens with mask 1 of one trace, in order: M of them."""

    turn: NDArray[np.int32]
    """Shape (M,): the turn's number, from 0."""
    place: NDArray[np.int32]
    """Shape (M,): the place in its turn, from 0."""
    kind: NDArray[np.uint8]
    """Shape (M,): an index of KINDS."""
    characters: NDArray[np.uint16]
    """Shape (M,): how many characters of the turn's text the token stands for; 0 for special tokens.

    A turn's first token also stands for what the chat template had written of the turn, where the text has that.
    """
    words: list[str]
    """The word or sign that each token begins or is part of, as `rstar2.analysis.kinds.words_of` names it."""


class TokenReader:
    """Reads traces with the tokenizer that they were written with."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {
            token_id: str(token)
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._texts: dict[int, str] = {}
        """By token, its text inside a turn."""
        self._first_texts: dict[int, str] = {}
        """By token, its text at the beginning of a turn."""
        # Decoders drop the space before a text's first word: other tokens are decoded after this one.
        self._before = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
        self._text_before = self._decode(self._before)
        self._turns = 0
        self._unlike: list[str] = []
        """What is said of each turn that reads otherwise than its trace says."""

    def read_all(self, traces: Sequence[Trace]) -> list[WrittenTokens]:
        """The tokens of each trace; UserError where the traces were written with another tokenizer.

        A few turns may differ: some models write bytes that are no text.
        """
        tokens = [self.read(trace) for trace in traces]
        if len(self._unlike) > max(self._turns // 10, min(_MAY_DIFFER, self._turns - 1)):
            raise UserError(
                f"the traces were written with another tokenizer than {self._tokenizer.name_or_path}: "
                f"it reads {self._unlike[0]}",
                "Give the model that wrote them with --model.",
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
        """The kind, the characters and the word of each token of a turn."""
        ids = trace.response_ids[turn.start : turn.end]
        texts, holders = self.texts(ids)
        if not turn.tagged:
            self._add_special(texts, ids, turn.text)
        text = "".join(texts)
        started = self._started(trace, text, turn.text)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        # The first letter decides: a token may begin with the space before its word.
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
        """The text of each token; special tokens have none, and a character over several tokens is the first one's.

        Also returns for each token which one holds its text: itself, or the first of those that spell a character.
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
        """Give special tokens their text, which a family's turn has, but not to those that end the turn."""
        for place, token_id in enumerate(token_ids):
            texts[place] = self._special.get(token_id, texts[place])
        for place in reversed(range(len(texts))):
            if token_ids[place] not in self._special or written.endswith(texts[place]):
                return
            texts[place] = ""

    def _started(self, trace: Trace, text: str, written: str) -> int:
        """The characters at the beginning of a turn that the chat template wrote, not the model."""
        self._turns += 1
        if text and written.endswith(text):
            return len(written) - len(text)
        if text != written and _REPLACED not in written:
            self._unlike.append(
                f"a turn of {trace.problem_id} as {text[:40]!r}, the trace says {written[:40]!r}"
            )
        return 0


def outcome(turn: Turn) -> str:
    """What became of a turn's calls: `ok`, `lost`, or how the first one failed (`failure_kind`); empty without calls.

    A call that the judge lost says nothing about the model, so the whole turn counts as lost.
    """
    kinds = [failure_kind(call) for call in turn.calls]
    if "lost" in kinds:
        return "lost"
    return next((kind for kind in kinds if kind != "ok"), "ok" if kinds else "")


def after_reply(tokens: WrittenTokens, trace: Trace) -> NDArray[np.int32]:
    """For each token its place after the tool reply before its turn, from 0; -1 in turns that follow none.

    Shape (M,).
    """
    follows = np.array(
        [number > 0 and bool(trace.turns[number - 1].calls) for number in range(len(trace.turns))]
    )
    if not len(tokens.turn):
        return np.zeros(0, dtype=np.int32)
    return np.where(follows[tokens.turn], tokens.place, -1).astype(np.int32)


@dataclass(frozen=True)
class Event:
    """A call that was run, with the reply to it."""

    call: int
    """The token, in the order of WrittenTokens, with which the turn's first call begins."""
    reply: int
    """The first token after the reply."""
    first: int
    """The first token of the turn with the call."""
    last: int
    """One past the last token of the turn after the reply."""
    outcome: str
    """`ok`, or how the call failed."""


def events(tokens: WrittenTokens, trace: Trace) -> Iterator[Event]:
    """The calls that the model saw a reply to; of several in a turn the first, with the `outcome` of all of them.

    Turns with a call that the judge lost are left out.
    """
    ends = np.searchsorted(tokens.turn, np.arange(len(trace.turns)), side="right")
    for number, turn in enumerate(trace.turns[:-1]):
        became = outcome(turn)
        if became in ("", "lost"):
            continue
        first, reply, last = int(ends[number - 1]) if number else 0, int(ends[number]), int(ends[number + 1])
        inside = tokens.kind[first:reply] == KINDS.index("call")
        # The tag before the call's JSON is its first token, unless one token holds both.
        begins = int(inside.argmax()) if inside.any() else reply - first
        if begins and tokens.kind[first + begins - 1] == KINDS.index("tag"):
            begins -= 1
        yield Event(first + begins, reply, first, last, became)
