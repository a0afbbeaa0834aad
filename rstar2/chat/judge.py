"""The judge that runs a chat's programs: the judge at --judge, or a judge that is started for the chat."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2.chat.recovery import WAIT_S
from rstar2.errors import Failure, RStarError
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import AccessRefused, JudgeError
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import start_service, stop_service
from rstar2.loop.formats.format import Format
from rstar2.loop.judge_check import PACKAGES, judge_report


class NamedJudge:
    """A judge that was not started by this chat."""

    def __init__(self, url: str, token: str | None) -> None:
        self.client = JudgeClient(url, token, wait_s=WAIT_S)
        self.isolation = ""
        """The isolation tier in which programs run, or an empty text if the tier is not known."""

    @property
    def described(self) -> str:
        """Returns a phrase that tells the user where programs run."""
        return f"on the judge at {self.client.url}" + (
            f", isolation {self.isolation}" if self.isolation else ""
        )

    async def check(self, fmt: Format) -> list[str]:
        """Run test programs in the same way as the model's tool calls, and return notices for the user.

        Raises AccessRefused if the judge rejects the token.
        """
        try:
            report = await judge_report(self.client, fmt, PACKAGES)
        except AccessRefused:
            raise
        except JudgeError as error:
            return [f"{error.message}; tool calls wait for it"]
        self.isolation = report.isolation or ""
        return [f"programs cannot import {report.missing_text}"] if report.missing else []

    async def trouble(self) -> str:
        """Returns why the judge does not answer, or "" if it answers."""
        try:
            await self.client.health()
        except RStarError as error:
            return error.message
        return ""

    async def recover(self) -> None:
        """Do nothing, because this chat did not start the judge."""


class OwnJudge(NamedJudge):
    """A judge with one worker. The chat starts this judge, and restarts it if it has ended.

    Raises what `start_service` raises.
    """

    def __init__(self, folder: Path) -> None:
        self._settings = ServiceSettings(folder=str(folder.resolve()), workers=1)
        self._process, handle = start_service(self._settings)
        super().__init__(handle.url, handle.token)
        self.isolation = str(handle.isolation)
        port = int(handle.url.rpartition(":")[2])
        # A restarted judge gets the same port and token, so that the client still reaches it.
        self._settings = self._settings.model_copy(update={"port": port, "token": handle.token})

    async def trouble(self) -> str:
        return "the judge process ended" if self._process.poll() is not None else await super().trouble()

    async def recover(self) -> None:
        if self._process.poll() is not None:
            stop_service(self._process)
            try:
                self._process, _ = await asyncio.to_thread(start_service, self._settings)
            except RStarError as error:
                raise Failure(f"the judge process ended and cannot be restarted: {error.message}") from error

    def stop(self) -> None:
        stop_service(self._process)


async def refuse_wrong_token(url: str, token: str | None) -> None:
    """Raise AccessRefused if the judge at `url` rejects the token.

    If the judge does not answer, no error is raised.
    """
    async with JudgeClient(url, token, wait_s=WAIT_S) as client:
        try:
            await judge_report(client)
        except AccessRefused:
            raise
        except JudgeError:
            return


@contextmanager
def open_judge(url: str | None, token: str | None) -> Iterator[NamedJudge]:
    """Yield the judge at `url`. If `url` is None, start a judge for the length of the `with` block.

    Raises what `OwnJudge` raises.
    """
    if url is not None:
        yield NamedJudge(url, token)
        return
    with tempfile.TemporaryDirectory(prefix="rstar2-chat-") as folder:
        judge = OwnJudge(Path(folder))
        try:
            yield judge
        finally:
            judge.stop()
