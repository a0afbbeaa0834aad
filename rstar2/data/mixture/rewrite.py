"""Has a served model rewrite the answers or prompts of some sources, as the paper did with o4-mini; off by default.

Of a conversation, the assistant's last message is rewritten, or the user's last one. A text that is cut off, far
shorter or longer, or has marks of a chat format in it is not taken: the row stays as it was, and is counted. Each text
is kept as it comes, so that a preparation that was stopped asks for none twice.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rstar2.config import Strict
from rstar2.data.candidates import Candidates, Numbers
from rstar2.engines.completions import Choice
from rstar2.engines.openai_server import OpenAIServer, Wording
from rstar2.engines.refusals import AccessRefused, MalformedAnswer, Refused
from rstar2.errors import RStarError, UserError, first_error
from rstar2.files import LineWriter, whole_lines
from rstar2.loop.engine import EngineError
from rstar2.loop.turns.breaker import holds_control
from rstar2.retry import RetryPolicy

What = Literal["answers", "prompts"]
"""What of a source's conversations the paper had rewritten."""
KEY = "OPENAI_API_KEY"
"""The environment variable with the server's key, where it asks for one."""
_ROLES: dict[What, str] = {"answers": "assistant", "prompts": "user"}
_ASK: dict[What, str] = {
    "answers": "Below is a conversation with an assistant. Rewrite the assistant's last message as a better answer, "
    "which keeps to every instruction of the user, of length and form too. Write the new message alone.",
    "prompts": "Below is a conversation with an assistant. Rewrite the user's last message in other, clear words. Keep "
    "its language, its facts and what it asks, so that the assistant's last message still answers it. Write the new "
    "message alone.",
}
_IN_FLIGHT = 32
WAIT_S = 300.0
"""How long a server may answer nobody."""
_ANSWER_S = 600.0
"""For one answer."""
_CHECK_S = 10.0


class Rewrite(Strict):
    """Which model rewrites, and which of its texts are taken."""

    model: str = ""
    """Empty: nothing is rewritten."""
    shortest: float = Field(0.3, ge=0)
    """A text of fewer characters than this share of the old one's is not taken."""
    longest: float = Field(3.0, gt=0)
    """Nor one of more."""


@dataclass(frozen=True)
class Rewritten:
    """What became of a source's rows."""

    what: What
    taken: int
    kept: dict[str, int]
    """Rows that stayed as they were, by reason."""


def check_server(url: str, model: str) -> None:
    """A UserError where no OpenAI-compatible server answers at the URL, or it lists its models without this one."""

    async def check() -> None:
        async with aclosing(_server(url, _CHECK_S)) as server:
            await server.served(model)

    try:
        asyncio.run(check())
    except Refused as refused:
        # Not every server lists its models.
        _refuse_key(refused)
    except EngineError as error:
        raise UserError(error.message, error.hint) from error


def _server(url: str, answer_s: float) -> OpenAIServer:
    wording = Wording(name_option="--model", key_hint=f"Set {KEY} to the server's key.")
    return OpenAIServer(url, os.environ.get(KEY), wording, answer_s)


def _refuse_key(refused: Refused) -> None:
    if refused.status in (401, 403):
        raise UserError(refused.message, f"Set {KEY} to the server's key.") from refused


class Texts:
    """New texts of rows, kept in a file of JSON lines: `number`, `text`, and `fault` where it is not taken."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[int, tuple[str, str]] = {}
        if file.exists():
            for _, line in whole_lines(file):
                self._keep(**json.loads(line))

    def _keep(self, number: int, text: str, fault: str) -> None:
        self._found[number] = (text, fault)

    def add(self, number: int, text: str, fault: str) -> None:
        self._keep(number, text, fault)
        with LineWriter(self._file) as lines:
            lines.write(json.dumps({"number": number, "text": text, "fault": fault}))

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def count(self, what: What, numbers: Numbers) -> Rewritten:
        faults = Counter(self._found[number][1] for number in numbers.tolist())
        return Rewritten(what, faults.pop("", 0), dict(sorted(faults.items())))

    def put(self, number: int, what: What, messages: list[dict[str, Any]]) -> None:
        """Put a row's new text in its place, where there is one that was taken."""
        text, fault = self._found[number]
        if not fault:
            messages[_place(what, messages)]["content"] = text


def _place(what: What, messages: list[dict[str, Any]]) -> int:
    """The message that is rewritten; -1 where there is none."""
    wanted = (at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == _ROLES[what])
    return next((at for at in wanted if messages[at]["content"] and not messages[at]["tool_calls"]), -1)


class Rewriter:
    """Has the model of one server rewrite texts, several at once."""

    def __init__(self, url: str, settings: Rewrite, retries: RetryPolicy) -> None:
        self._url = url
        self._settings = settings
        self._service = retries.service("server that rewrites")

    def rewrite(
        self, rows: Candidates, numbers: Numbers, what: What, texts: Texts, on_rows: Callable[[int], None]
    ) -> None:
        """Ask for the texts of the rows that `texts` does not have.

        Raises:
            UserError: the server refuses the key, or does not know the model.
            Failure: it does not answer. The texts that came are kept.
        """
        todo = _without(numbers, texts)

        def jobs() -> Iterator[tuple[int, list[dict[str, Any]]]]:
            for wanted, table in rows.batches(["messages"], todo):
                yield from zip(wanted.tolist(), table["messages"].to_pylist(), strict=True)

        async def work() -> None:
            async with aclosing(_server(self._url, _ANSWER_S)) as server:
                waiting = jobs()

                async def one_after_the_other() -> None:
                    for number, messages in waiting:
                        place = _place(what, messages)
                        if place < 0:
                            texts.add(number, "", "nothing to rewrite")
                        else:
                            old = messages[place]["content"]
                            answer = await self._rewritten(server, _ASK[what], _shown(messages), old)
                            texts.add(number, *answer)
                        on_rows(1)

                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(_IN_FLIGHT):
                            group.create_task(one_after_the_other())
                except* RStarError as errors:
                    raise first_error(errors) from None

        asyncio.run(work())

    async def _rewritten(self, server: OpenAIServer, ask: str, shown: str, old: str) -> tuple[str, str]:
        """The new text, and what is wrong with it."""
        messages = [{"role": "system", "content": ask}, {"role": "user", "content": shown}]
        body = {"model": self._settings.model, "messages": messages}
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
                raise UserError(refused.message, "Choose one of its models with --model.") from refused
            return "", "refused by the server"
        except MalformedAnswer:
            return "", "not a completion"
        if finish in ("refusal", "content_filter"):
            return "", "refused by the server"
        text = "".join(choice.part.content for choice in choices).strip()
        return text, fault_of(old, text, finish, self._settings)


def _without(numbers: Numbers, texts: Texts) -> Numbers:
    return numbers[[number not in texts for number in numbers.tolist()]]


def _shown(messages: list[dict[str, Any]]) -> str:
    return "\n\n".join(f"[{message['role']}]\n{message['content'] or ''}" for message in messages)


def fault_of(old: str, new: str, finish: str | None, settings: Rewrite) -> str:
    """Why a new text is not taken, by its length and format; empty where it is."""
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
    if holds_control(new) or new.count("```") % 2:
        return "marks of a format"
    return ""
