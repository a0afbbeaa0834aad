"""A small HTTP server with vLLM's completions wire format and a scripted model.

It replaces vLLM in tests: the client, the sockets and the bytes are real, the model is not. vLLM itself needs a
separate environment, so it cannot run with the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from support.waiting import TIMEOUT_S

Model = Callable[[list[int]], list[int]]
"""Maps prompt token ids to the token ids that the model would write if nothing stopped it."""
_POLL_S = 0.005
_CONFIG: dict[str, Any] = {
    "log_level": "critical",
    "timeout_graceful_shutdown": 1,
    # On a slow machine, a client notices too late that its idle connection was closed.
    "timeout_keep_alive": 3600,
}


class StandIn:
    """The server's behaviour and received requests.

    Args:
        model: The scripted model.
        names: The names of the served models.
        max_model_len: Limit of prompt and answer together in tokens.
    """

    def __init__(
        self, model: Model, names: tuple[str, ...] = ("scripted",), max_model_len: int = 8192
    ) -> None:
        self.model = model
        self.names = names
        self.root = ""
        """The folder of the models (`root`) in the server's list of models. If empty, the list has no `root`."""
        self.max_model_len = max_model_len
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.healthy = True
        self.busy_answers = 0
        """The next `busy_answers` completions are answered with 503."""
        self.delay_s = 0.0
        """Seconds before each completion, and before each streamed piece."""
        self.complete_until: int | None = None
        """If set, only this number of completions since the start is answered. Later ones wait."""
        self.stream_until: int | None = None
        """If set, only this number of pieces of a stream is sent. Later ones wait."""
        self.together = 1
        """The number of completions that must be in flight before any is answered."""
        self.cut_after: int | None = None
        """If set, a stream breaks off after this number of pieces."""
        self.max_new_tokens: int | None = None
        """Limit of tokens per request, as vLLM's --generation-config sets it."""
        self.key: str | None = None
        """The API key that clients must send; None if they need none."""
        self.token_ids = True
        self.refuses: Callable[[list[int]], bool] = lambda prompt: False
        """Decides which prompts are answered with 400."""
        self.prompt_logprobs = False
        """Whether the server returns log-probabilities of a prompt if a request asks for them."""
        self._in_flight = 0
        self._batch_is_complete = asyncio.Event()
        self.app = FastAPI()
        self.app.get("/health")(self._health)
        self.app.get("/v1/models")(self._models)
        self.app.post("/v1/completions")(self._completions)

    async def _health(self) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def _models(self, request: Request) -> Any:
        if not self._may_ask(request):
            return _error(401, "Unauthorized")
        more = {"root": self.root} if self.root else {}
        cards = [{"id": name, "max_model_len": self.max_model_len, **more} for name in self.names]
        return {"object": "list", "data": cards}

    async def _completions(self, request: Request) -> Response:
        if not self._may_ask(request):
            return _error(401, "Unauthorized")
        body = await request.json()
        self.requests.append(body)
        number = len(self.requests)
        if self.busy_answers > 0:
            self.busy_answers -= 1
            return _error(503, "warming up")
        if body["model"] not in self.names:
            return _error(404, f"The model `{body['model']}` does not exist.")
        if len(body["prompt"]) + body["max_tokens"] > self.max_model_len:
            return _error(400, f"This model's maximum context length is {self.max_model_len} tokens.")
        if self.refuses(body["prompt"]):
            return _error(400, "too long")
        written, finish = self._write(body)
        if body.get("stream"):
            return StreamingResponse(self._pieces(written, finish), media_type="text/event-stream")
        self._in_flight += 1
        if self._in_flight >= self.together:
            self._batch_is_complete.set()
        await self._batch_is_complete.wait()
        while self.complete_until is not None and number > self.complete_until:  # noqa: ASYNC110 - set by other threads
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(self.delay_s)
        self._in_flight -= 1
        choice = self._choice(written, finish)
        if self.prompt_logprobs and "prompt_logprobs" in body:
            top = {str(token): {"logprob": -4.0} for token in range(body["prompt_logprobs"])}
            choice["prompt_logprobs"] = [None, *[top] * (len(body["prompt"]) - 1)]
        return JSONResponse({"object": "text_completion", "choices": [choice]})

    def _may_ask(self, request: Request) -> bool:
        return self.key is None or request.headers.get("authorization") == f"Bearer {self.key}"

    def _write(self, body: dict[str, Any]) -> tuple[list[int], str]:
        written: list[int] = []
        room = min(body["max_tokens"], self.max_new_tokens or body["max_tokens"])
        for token in self.model(body["prompt"]):
            if len(written) == room:
                break
            written.append(token)
            if token in body.get("stop_token_ids", []):
                return written, "stop"
        return written, "length"

    def _choice(self, token_ids: list[int], finish: str | None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": finish,
            "stop_reason": None,
            "logprobs": {"token_logprobs": [logprob(token) for token in token_ids]},
        }
        if self.token_ids:
            choice["token_ids"] = token_ids
        return choice

    async def _pieces(self, written: list[int], finish: str) -> AsyncIterator[str]:
        pieces = [written[start : start + 3] for start in range(0, len(written), 3)]
        for number, piece in enumerate(pieces):
            if number == self.cut_after:
                raise ConnectionAbortedError("the test cut this stream")
            while self.stream_until is not None and number >= self.stream_until:  # noqa: ASYNC110 - as above
                await asyncio.sleep(_POLL_S)
            await asyncio.sleep(self.delay_s)
            choice = self._choice(piece, finish if number == len(pieces) - 1 else None)
            yield f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\n\n"
        yield 'data: {"object": "text_completion", "choices": [], "usage": {}}\n\n'
        yield "data: [DONE]\n\n"


def logprob(token: int) -> float:
    """Return the log-probability that the scripted model gives a token."""
    return -float(token) / 1024


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "Error", "code": status}}, status_code=status)


@contextlib.contextmanager
def serving(standin: StandIn) -> Iterator[StandIn]:
    """Serve the stand-in on a free port of this machine until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    standin.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(standin.app, **_CONFIG))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield standin
    finally:
        server.should_exit = True
        thread.join(TIMEOUT_S)
        listener.close()
        assert not thread.is_alive()


def recite(
    folder: str, listener: socket.socket, text: str, stream_until: int | None, begin: Event | None = None
) -> None:
    """Serve a model that writes one text, in this process, until the process is killed.

    If the prompt already contains the beginning of the text, the model writes the rest.

    Args:
        folder: A folder with the tokenizer of a format whose turns begin with a thought.
        stream_until: See `StandIn.stream_until`.
        begin: If set, the server loads at once but accepts connections only after this event.
    """
    from rstar2.loop.turns.choose import load_tokenizer
    from rstar2.loop.turns.template import END_OF_TURN

    tokenizer = load_tokenizer(folder)

    def model(prompt: list[int]) -> list[int]:
        written = tokenizer.decode(prompt).rpartition("<|im_start|>assistant\n<reason>")[2]
        assert text.startswith(written)
        return list(tokenizer.encode(text[len(written) :] + END_OF_TURN))

    standin = StandIn(model, max_model_len=100_000)
    standin.root, standin.stream_until = folder, stream_until
    if begin is not None:
        begin.wait()
    uvicorn.Server(uvicorn.Config(standin.app, **_CONFIG)).run(sockets=[listener])
