"""Says of each token that a model wrote what it is (prose, code, tag) and where it stands beside tool calls."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rstar2.errors import UserError
from rstar2.loop.trace import Trace, Turn
from rstar2.loop.turns import tags

KINDS = ("prose", "code", "call", "answer", "tag")
"""call: the JSON around a call's code. answer: inside <answer>. tag: the tags themselves and the end of a turn."""
NUMBER = "<number>"
REACH = 64
"""Tokens looked at on each side of a call and of a reply."""

_WORD = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*|\d+|[^\w\s]|_+")
_REPLACED = "\ufffd"
"""What a tokenizer gives for a part of a character."""
_LONGEST_CHARACTER = 6
"""Tokens that one character, or several joined ones, may be spread over."""
_MAY_DIFFER = 2
"""Turns that may read otherwise than their traces say, however few there are; of many a tenth."""

Outcome = Literal["ok", "failed"]


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
    """The word or sign that each token begins or is part of, in small letters; NUMBER; empty for white space."""


class TokenReader:
    """Reads traces with the tokenizer that they were written with."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
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
            characters=np.array([n for _, lengths, _ in turns for n in lengths], dtype=np.uint16),
            words=[word for _, _, words in turns for word in words],
        )

    def _turn(self, trace: Trace, turn: Turn) -> tuple[NDArray[np.uint8], list[int], list[str]]:
        """The kind, the characters and the word of each token of a turn."""
        texts = self.texts(trace.response_ids[turn.start : turn.end])
        text = "".join(texts)
        started = self._started(trace, text, turn.text)
        ends = list(accumulate(map(len, texts)))
        # The first letter decides: a token may begin with the space before its word.
        firsts = [
            end - len(piece.lstrip()) if piece.strip() else end - len(piece)
            for piece, end in zip(texts, ends, strict=True)
        ]
        spans = list(_spans(turn, started))
        starts = [start for start, _ in spans]
        kinds = np.array(
            [spans[bisect_right(starts, first) - 1][1] if piece else KINDS.index("tag")
             for first, piece in zip(firsts, texts, strict=True)],
            dtype=np.uint8,
        )  # fmt: skip
        found = [(match.start(), match.end(), _named(match[0])) for match in _WORD.finditer(text)]
        begins = [begin for begin, _, _ in found]
        words = []
        for first, piece in zip(firsts, texts, strict=True):
            at = bisect_right(begins, first) - 1
            inside = piece.strip() and at >= 0 and first < found[at][1]
            words.append(found[at][2] if inside else "")
        lengths = [len(piece) for piece in texts]
        lengths[:1] = [started + length for length in lengths[:1]]
        return kinds, lengths, words

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token; special tokens have none, and a character over several tokens is the first one's."""
        texts = [self._text(token_id) for token_id in token_ids]
        first = next((i for i, text in enumerate(texts) if text), 0)
        texts[first : first + 1] = [self._decode(token_ids[first : first + 1])]
        for i, text in enumerate(texts):
            if _REPLACED not in text:
                continue
            for end in range(i + 2, min(i + _LONGEST_CHARACTER, len(texts)) + 1):
                joined = self._inside(token_ids[i:end]) if i > first else self._decode(token_ids[i:end])
                if _REPLACED not in joined:
                    texts[i:end] = [joined, *[""] * (end - i - 1)]
                    break
        return texts

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            self._texts[token_id] = self._inside([token_id])
        return self._texts[token_id]

    def _inside(self, token_ids: Sequence[int]) -> str:
        """The text of tokens that are not the first of a turn."""
        return self._decode([*self._before, *token_ids]).removeprefix(self._text_before)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

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
    outcome: Outcome


def events(tokens: WrittenTokens, trace: Trace) -> Iterator[Event]:
    """The calls that the model saw a reply to; of several in a turn the first, failed where one of them did.

    Calls that the judge lost are left out.
    """
    ends = np.searchsorted(tokens.turn, np.arange(len(trace.turns)), side="right")
    for number, turn in enumerate(trace.turns[:-1]):
        calls = [call for call in turn.calls if call.status != "lost"]
        if not calls or len(calls) < len(turn.calls):
            continue
        first, reply, last = int(ends[number - 1]) if number else 0, int(ends[number]), int(ends[number + 1])
        inside = np.isin(tokens.kind[first:reply], [KINDS.index("call"), KINDS.index("code")])
        # The tag before the call's JSON is its first token, unless one token holds both.
        begins = int(inside.argmax()) if inside.any() else reply - first
        if begins and tokens.kind[first + begins - 1] == KINDS.index("tag"):
            begins -= 1
        outcome: Outcome = "failed" if any(call.failed for call in calls) else "ok"
        yield Event(first + begins, reply, first, last, outcome)


def _named(word: str) -> str:
    return NUMBER if word.isdigit() else word.lower()


def _spans(turn: Turn, started: int) -> Iterator[tuple[int, int]]:
    """Where each stretch of a turn's text begins, in order, and its kind; what lies between two parts are tags.

    Places are counted without the first `started` characters, which the chat template wrote.
    """
    yield 0, KINDS.index("tag")
    calls = iter(turn.calls)
    for kind, start, end in turn.read_parts():
        begins, ends = max(start - started, 0), end - started
        if ends <= 0:
            continue
        if kind != "call":
            yield begins, KINDS.index("answer" if kind == "answer" else "prose")
        else:
            call = turn.text[start:end]
            inside_start, inside_end = tags.inside_call(call)
            yield begins, KINDS.index("tag")
            yield begins + inside_start, KINDS.index("call")
            record = next(calls, None)
            if code := tags.code_span(call, record.code if record else None):
                yield begins + code[0], KINDS.index("code")
                yield begins + code[1], KINDS.index("call")
            yield begins + inside_end, KINDS.index("tag")
        yield ends, KINDS.index("tag")
