"""Lets a served model rewrite the answers or prompts of some sources, as the paper did with o4-mini. By default,
nothing is rewritten.

In each conversation, the last answer of the assistant (`answers`) or the last message of the user (`prompts`) is
rewritten. A new text is rejected in these cases: it is cut off, it is much shorter or longer than the old text, it
equals the old text, it is in another language, it begins with words about the rewriting, or it contains tags of a chat
format. The row of a rejected text keeps its old text, and the card counts the rows that keep their old text.

Each text is stored as soon as it arrives, so that a preparation that continues does not request it again. If nearly all
of the first texts are rejected, the preparation stops.

Requests switch the model's thinking off. If a reply still has a thought before the new text, the thought is removed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rstar2.config import Strict
from rstar2.data.candidates import Candidates, Numbers
from rstar2.data.language import in_another_language
from rstar2.engines.completions import Choice
from rstar2.engines.openai_server import OpenAIServer, ServerTexts
from rstar2.engines.refusals import AccessRefused, MalformedAnswer, Refused
from rstar2.errors import RStarError, UserError, first_error
from rstar2.files import LineWriter, whole_file, whole_lines
from rstar2.loop.engine import EngineError
from rstar2.loop.turns.breaker import holds_control
from rstar2.loop.turns.tags import after_leading_thought
from rstar2.retry import RetryPolicy

What = Literal["answers", "prompts"]
"""The part of a source's conversations that is rewritten."""
KEY = "OPENAI_API_KEY"
"""The environment variable that contains the API key of the server, if the server needs a key."""
_ROLES: dict[What, str] = {"answers": "assistant", "prompts": "user"}
_ASK: dict[What, str] = {
    "answers": "Below is a conversation with an assistant. Rewrite the assistant's last message as a better answer, "
    "which keeps to its language and to every instruction of the user, of length and form too. Write the new message "
    "alone.",
    "prompts": "Below is a conversation with an assistant. Rewrite the user's last message in other, clear words. Keep "
    "its language, its facts and what it asks, so that the assistant's last message still answers it. Write the new "
    "message alone.",
}
_IN_FLIGHT = 32
WAIT_S = 300.0
"""A server counts as failed if requests were retried for this many seconds without an answer."""
_ANSWER_S = 600.0
"""Timeout of one request in seconds."""
_CHECK_S = 10.0
_THINK_NOT = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
"""Request fields that set the variables with which chat templates switch thinking off.

Qwen3, GLM and others read the first variable. DeepSeek, Granite and others read the second variable. vLLM, SGLang and
llama.cpp pass both variables to the template.
"""
_FIRST = 50
"""Number of texts of a source after which the share of accepted texts is compared with `Rewrite.accepted`."""
_PREFACE = re.compile(
    r"[\W_]*(?:(?:sure|certainly|of course|absolutely|okay|ok)\b[^\w\n]*)?"
    r"(?:(?:here(?:'s|’s| is| are)|below is|this is)\b[^\n:]{0,40}\b|(?:the )?)"
    r"(?:rewrite|(?:rewritten|revised|reworded|rephrased|improved|updated|better|new)(?: \w+){0,2} "
    r"(?:message|answer|version|response|reply|text|prompt|question|request))\b[^\n:]{0,40}:"
    r"|(?:okay|ok|alright|hmm|first|so|let me)\b[^\n]{0,40}\b(?:the user (?:wants|asks|asked|is asking)|rewrite)\b"
    r"|\[(?:assistant|user)\]",
    re.IGNORECASE,
)
"""Matches words before a new text that are not part of the new text: a preface, a thought without tags, or a label."""
_EXAMPLE_CHARS = 300
_NOTHING_TO_REWRITE = "nothing to rewrite"
_REFUSED = "refused by the server"
_DECLINED = "declined by the model or a filter"
_ONLY_A_THOUGHT = "only a thought"


class Rewrite(Strict):
    """The model that rewrites texts, and the conditions under which its texts are accepted."""

    model: str = ""
    """The name of the model. If the name is empty, nothing is rewritten."""
    shortest: float = Field(0.3, ge=0)
    """A text is rejected if its length in characters is less than this share of the old text's length."""
    longest: float = Field(3.0, gt=0)
    """A text is rejected if its length in characters is more than this multiple of the old text's length."""
    accepted: float = Field(0.1, ge=0, le=1)
    """Minimum share of accepted texts. The preparation stops if the share among the first 50 texts of a source is
    lower."""

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `accepted` if its value is the default, because cards of earlier versions do not have this key."""
        values: dict[str, Any] = serialize(self)
        return {key: value for key, value in values.items() if key != "accepted" or self.accepted != 0.1}


@dataclass(frozen=True)
class Rewritten:
    """How many rows of a source were rewritten, and how many were not."""

    what: What
    taken: int
    unchanged: dict[str, int]
    """Number of rows that keep their old text, keyed by the reason."""


def check_server(url: str, model: str) -> None:
    """Check that a server has the model that rewrites texts.

    Raises:
        UserError: no OpenAI-compatible server answers at the URL, or the server's list of models does not contain
            the model.
    """

    async def check() -> None:
        async with aclosing(_server(url, _CHECK_S)) as server:
            await server.served(model)

    try:
        asyncio.run(check())
    except Refused as refused:
        # Some servers do not list their models, which is no error.
        _refuse_key(refused)
    except EngineError as error:
        raise UserError(error.message, error.hint) from error


def _server(url: str, answer_s: float) -> OpenAIServer:
    texts = ServerTexts(name_option="--model", key_hint=f"Set {KEY} to the server's key.")
    return OpenAIServer(url, os.environ.get(KEY), texts, answer_s)


def _refuse_key(refused: Refused) -> None:
    if refused.status in (401, 403):
        raise UserError(refused.message, f"Set {KEY} to the server's key.") from refused


@dataclass(frozen=True)
class _Answer:
    """The answer of a server."""

    text: str
    finish: str | None = None
    fault: str = ""
    """Why the answer contains no new text. Empty if the answer contains a new text."""


class TooFewAccepted(UserError):
    """Nearly all texts of a model were rejected."""


class Texts:
    """The new texts of rows, stored in a JSON Lines file with `number`, `text` and `fault`.

    `fault` is the reason for the rejection of the text. It is empty if the text was accepted.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._texts: dict[int, tuple[str, str]] = {}
        self.faults: Counter[str] = Counter()
        """Number of texts, keyed by the reason for their rejection. Accepted texts have an empty reason."""
        if file.exists():
            for _, line in whole_lines(file):
                self._remember(**json.loads(line))

    def _remember(self, number: int, text: str, fault: str) -> None:
        self._texts[number] = (text, fault)
        if fault != _NOTHING_TO_REWRITE:
            self.faults[fault] += 1

    def add(self, number: int, text: str, fault: str) -> None:
        """Store a text, or the reason why there is no new text."""
        self._remember(number, text, fault)
        with LineWriter(self._file) as lines:
            lines.write(_line(number, text, fault))

    def example(self, fault: str) -> tuple[int, str]:
        """Returns the number and the text of the first row whose text was rejected for this reason."""
        return next((number, text) for number, (text, reason) in self._texts.items() if reason == fault)

    def forget_rejected(self) -> None:
        """Remove the rejected texts, also from the file, so that the next run of the command requests them again."""
        accepted = {number: text for number, (text, fault) in self._texts.items() if not fault}
        with whole_file(self._file) as file:
            file.writelines(f"{_line(number, text, '')}\n" for number, text in accepted.items())
        self._texts = {number: (text, "") for number, text in accepted.items()}
        self.faults = Counter({"": len(accepted)})

    def __contains__(self, number: int) -> bool:
        return number in self._texts

    def count(self, what: What, numbers: Numbers) -> Rewritten:
        faults = Counter(self._texts[number][1] for number in numbers.tolist())
        return Rewritten(what, faults.pop("", 0), dict(sorted(faults.items())))

    def put(self, number: int, what: What, messages: list[dict[str, Any]]) -> None:
        """Replace the text of a row by the row's new text, if the new text was accepted."""
        text, fault = self._texts[number]
        if not fault:
            messages[_place(what, messages)]["content"] = text


def _line(number: int, text: str, fault: str) -> str:
    return json.dumps({"number": number, "text": text, "fault": fault})


def _place(what: What, messages: list[dict[str, Any]]) -> int:
    """Returns the index of the message to rewrite. Returns -1 if the conversation has no message to rewrite."""
    of_role = (at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == _ROLES[what])
    return next((at for at in of_role if messages[at]["content"] and not messages[at]["tool_calls"]), -1)


class Rewriter:
    """Lets the model of a server rewrite texts, with several requests at once."""

    def __init__(self, url: str, settings: Rewrite, retries: RetryPolicy) -> None:
        self._url = url
        self._settings = settings
        self._service = retries.service("server that rewrites")
        self._sends_switch = True
        """Whether requests contain the fields `_THINK_NOT`, which switch thinking off."""

    def rewrite(
        self, rows: Candidates, numbers: Numbers, what: What, texts: Texts, on_rows: Callable[[int], None]
    ) -> None:
        """Request new texts for the rows `numbers`, except for rows that already have a new text in `texts`. All of the
        rows are of one source.

        Raises:
            UserError: the server refuses the key or does not know the model, or nearly all texts are rejected. If too
                many texts are rejected, the next run of the command requests these texts again.
            Failure: the server does not answer. The texts that had already arrived are stored.
        """
        todo = _without(numbers, texts)

        def jobs() -> Iterator[tuple[int, list[dict[str, Any]]]]:
            for batch_numbers, table in rows.batches(["messages"], todo):
                yield from zip(batch_numbers.tolist(), table["messages"].to_pylist(), strict=True)

        async def work() -> None:
            async with aclosing(_server(self._url, _ANSWER_S)) as server:
                waiting = jobs()

                async def take_jobs() -> None:
                    for number, messages in waiting:
                        place = _place(what, messages)
                        if place < 0:
                            texts.add(number, "", _NOTHING_TO_REWRITE)
                        else:
                            old = messages[place]["content"]
                            answer = await self._rewritten(server, _ASK[what], _as_text(messages), old)
                            texts.add(number, *answer)
                            self._check_accepted(rows, texts, _FIRST)
                        on_rows(1)

                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(_IN_FLIGHT):
                            group.create_task(take_jobs())
                except* RStarError as errors:
                    raise first_error(errors) from None

        try:
            asyncio.run(work())
            self._check_accepted(rows, texts, 1)
        except TooFewAccepted:
            texts.forget_rejected()
            raise

    def _check_accepted(self, rows: Candidates, texts: Texts, least: int) -> None:
        """Raise TooFewAccepted if there are at least `least` texts, and too few of them were accepted."""
        total, accepted = texts.faults.total(), texts.faults[""]
        if total < least or accepted >= self._settings.accepted * total:
            return
        rejected = [(fault, count) for fault, count in texts.faults.most_common() if fault]
        number, text = texts.example(rejected[0][0])
        row = rows.values("id", np.array([number]))[number]
        text = " ".join(text.split())
        example = f"{text[:_EXAMPLE_CHARS]}…" if len(text) > _EXAMPLE_CHARS else text
        raise TooFewAccepted(
            f"only {accepted} of the first {total} texts of {rows.source_of(number)} that {self._settings.model} "
            f"rewrote can be used. Rejected: {', '.join(f'{count} {fault}' for fault, count in rejected)}. "
            f"Example: {row}, {rejected[0][0]}: {example!r}",
            "Use another model or correct its server, and run the same command again. It requests the rejected texts "
            "again. To use only the accepted texts, add --set rewrite.accepted=0.",
        )

    async def _rewritten(
        self, server: OpenAIServer, ask: str, conversation: str, old: str
    ) -> tuple[str, str]:
        """Returns the new text and an empty reason, or a rejected text and the reason."""
        messages = [{"role": "system", "content": ask}, {"role": "user", "content": conversation}]
        body = {"model": self._settings.model, "messages": messages}
        sent_switch = self._sends_switch
        answer = await self._answer(server, {**body, **_THINK_NOT} if sent_switch else body)
        if sent_switch and answer.fault in (_REFUSED, _ONLY_A_THOUGHT):
            # Some servers refuse unknown fields. Some parsers mistake an answer without a thought for a thought.
            answer = await self._answer(server, body)
            self._sends_switch = self._sends_switch and answer.fault != ""
        return answer.text, answer.fault or fault_of(old, answer.text, answer.finish, self._settings)

    async def _answer(self, server: OpenAIServer, body: dict[str, Any]) -> _Answer:
        """Returns the server's answer, without a thought before the text."""
        choices: list[Choice] = []

        async def attempt() -> str:
            choices.clear()
            ended = await server.complete("chat/completions", body, None, choices.append, stream=False)
            return ended.finish

        try:
            finish = await self._service.call(attempt)
        except AccessRefused as refused:
            _refuse_key(refused)
            raise
        except Refused as refused:
            if refused.status == 404:
                raise UserError(
                    refused.message, "Choose one of the server's models with --model."
                ) from refused
            return _Answer(refused.message, fault=_REFUSED)
        except MalformedAnswer:
            return _Answer("", fault="not a completion")
        if finish in ("refusal", "content_filter"):
            return _Answer("", fault=_DECLINED)
        written = "".join(choice.part.content for choice in choices).strip()
        thought = "".join(choice.part.thought for choice in choices).strip()
        text = after_leading_thought(written)
        if finish == "stop" and not text and (written or thought):
            return _Answer(written or thought, fault=_ONLY_A_THOUGHT)
        return _Answer(written if text is None else text, finish)


def _without(numbers: Numbers, texts: Texts) -> Numbers:
    return numbers[[number not in texts for number in numbers.tolist()]]


def _as_text(messages: list[dict[str, Any]]) -> str:
    return "\n\n".join(f"[{message['role']}]\n{message['content'] or ''}" for message in messages)


def fault_of(old: str, new: str, finish: str | None, settings: Rewrite) -> str:
    """Returns why a new text is rejected. Returns an empty text if the new text is accepted."""
    if finish not in (None, "stop"):
        return "cut off"
    if not new:
        return "empty"
    if len(new) < settings.shortest * len(old):
        return "too short"
    if len(new) > settings.longest * len(old):
        return "too long"
    try:
        new.encode()
    except UnicodeEncodeError:
        return "not Unicode"
    if new.split() == old.split():
        return "the old text again"
    if _PREFACE.match(new) and not _PREFACE.match(old):
        return "words about the rewriting"
    if holds_control(new) or new.count("```") % 2:
        return "marks of a format"
    return "another language" if in_another_language(old, new) else ""
