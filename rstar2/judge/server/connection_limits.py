"""What clients may cost before they are known: lengths of heads, requests sent ahead, silence, bytes of bodies.

uvicorn has no such bounds, and its parser, httptools, gathers a head of any length in quadratic time. The classes here
are uvicorn's protocols with the bounds added; they find them in the state that the application's lifespan yields.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TypedDict

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

MAX_HEAD_BYTES = 64 << 10
"""Of a request's first line and headers, and of what comes between pieces of its body and after them (the heads of
chunks, trailers); what came whole in one read of the socket may be longer."""
MAX_AHEAD = 32
"""Requests that wait on one connection for the answers before theirs. Each takes kilobytes, whatever its length."""
FRAGMENT_BYTES = 128
"""What each fragment of a message costs besides its content."""


class BodyBudget:
    """Bytes of requests that are being received, on all connections together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @property
    def is_exceeded(self) -> bool:
        return self.held > self.most


class ServerState(TypedDict):
    """What the application's lifespan yields."""

    read_s: float
    """How long a client may take for a request's head, and be silent in the middle of its body."""
    bodies: BodyBudget


class LimitedHttp(HttpToolsProtocol):
    """HTTP with a bound on heads and on silence; `read_json` bounds bodies."""

    receiving_head = True
    receiving_body = False
    head_bytes = 0
    """Received since the head of the last request began, or since the last piece of its body."""
    timer: asyncio.TimerHandle | None = None
    answering: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the last one that came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_answering()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_AHEAD:
            # The parser makes it an invalid request.
            raise ValueError(f"more than {MAX_AHEAD} requests are sent ahead")
        super().on_message_begin()
        self.receiving_head, self.head_bytes = True, 1

    def on_headers_complete(self) -> None:
        self.receiving_head, self.receiving_body = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.receiving_body = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self.head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._stop_timer()
        elif (self.receiving_head or self.receiving_body) and self.head_bytes > MAX_HEAD_BYTES:
            part = "head" if self.receiving_head else "trailer"
            self._refuse(431, f"the {part} of the request is longer than {MAX_HEAD_BYTES} bytes")
        elif self.receiving_body and not self._is_answered():
            self._stop_timer()
            self._start_timer()
        elif not (self.receiving_head or self._is_answered()):
            self._stop_timer()
        elif self.timer is None:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._stop_answering()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.answering = cycle
        super()._start_asgi_task(cycle, app)

    def _stop_answering(self) -> None:
        """Tell the application that the client is gone; uvicorn tells it of the last request alone."""
        if self.answering is not None:
            self.answering.disconnected = True
            self.answering.message_event.set()

    def _is_answered(self) -> bool:
        """Whether nothing is left to answer."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        self.timer = self.loop.call_later(self.app_state["read_s"], self._on_timer)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _on_timer(self) -> None:
        self.timer = None
        if self.flow.read_paused:
            # The client may have sent more; it waits for us.
            self._start_timer()
        elif self.head_bytes and self.receiving_head:
            self._refuse(408, "the head of the request did not come in time")
        elif self.receiving_body:
            self._refuse(408, "the body of the request did not come in time")
        else:
            self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()
        super().handle_websocket_upgrade()
        opened = self.transport.get_protocol()
        if isinstance(opened, LimitedWebSocket) and not opened.handshake_initiated:
            # The request cannot open a WebSocket, and uvicorn would leave the client without an answer.
            self.receiving_body = False
            self._refuse(400, "Upgrade: a WebSocket is opened with GET")

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the wish for another protocol (RFC 9110, 7.8) where there is no body; httptools would lose one."""
        if {name for name, _ in self.headers} & {b"content-length", b"transfer-encoding"}:
            self.receiving_body = True
            self._refuse(
                400, "Upgrade: the judge speaks HTTP/1.1; send a body without asking for another protocol"
            )

    def _refuse(self, status: int, message: str) -> None:
        """Answer, where an answer may be written now, and end the connection."""
        self._stop_timer()
        if not self.cycle.response_started if self.receiving_body else self._is_answered():
            body = json.dumps({"error": message}).encode()
            head = "content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + (head % len(body)).encode() + body)
        self.transport.close()
        self._stop_answering()


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket whose message counts, while it is received, for the same budget as the bodies of HTTP."""

    held_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        parts = (self.conn.current_size or 0) + FRAGMENT_BYTES * len(self.frames)
        self._hold(len(self.conn.reader.buffer) + parts)
        if self.held_bytes and self.app_state["bodies"].is_exceeded and not self.close_sent:
            self.conn.fail(CloseCode.TRY_AGAIN_LATER, "the judge receives too much at once")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(0)
        super().connection_lost(exc)

    def _hold(self, size: int) -> None:
        self.app_state["bodies"].held += size - self.held_bytes
        self.held_bytes = size


def shorten_log() -> None:
    """Have uvicorn log a client's text that is no UTF-8 as a line, and not with a traceback as a fault of ours."""

    def without_traceback(record: logging.LogRecord) -> bool:
        if record.msg == "Invalid UTF-8 sequence received from client.":
            record.exc_info = None
        return True

    logging.getLogger("uvicorn.error").addFilter(without_traceback)
