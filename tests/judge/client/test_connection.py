"""The client's WebSocket, tested with a stand-in judge that can misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from support.waiting import TIMEOUT_S
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from rstar2.judge.client import JudgeClient
from rstar2.judge.client import connection as connection_module
from rstar2.judge.client.http import JudgeError
from rstar2.judge.schema import MAX_BATCH, RunRequest

Messages = list[list[dict[str, Any]]]
"""The received messages. Each message is a list of requests."""
Behaviour = Callable[[ServerConnection, Messages], Awaitable[None]]


@asynccontextmanager
async def standin(behave: Behaviour) -> AsyncIterator[tuple[str, Messages]]:
    """A stand-in judge that serves each connection as a test wants. Yields its URL and the received messages."""
    messages: Messages = []

    async def handle(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await behave(connection, messages)

    async with serve(handle, "127.0.0.1", 0, max_size=None, max_queue=1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}", messages


def result_of(order: dict[str, Any]) -> dict[str, Any]:
    return {"id": order["id"], "result": {"id": order["id"], "outcome": "ok", "stdout": order["run"]["code"]}}


async def answers(connection: ServerConnection, messages: Messages) -> None:
    """Answer every program."""
    async for message in connection:
        messages.append(json.loads(message))
        await connection.send(json.dumps([result_of(order) for order in messages[-1] if "run" in order]))


async def test_calls_made_at_the_same_time_travel_together() -> None:
    async with standin(answers) as (url, messages), JudgeClient(url) as client:
        await client.run(RunRequest(code="first"))
        results = await client.run_many([RunRequest(code=str(i)) for i in range(100)])
    assert [result.stdout for result in results] == [str(i) for i in range(100)]
    assert [len(orders) for orders in messages] == [1, 100]
    ids = {order["id"] for orders in messages for order in orders}
    assert len(ids) == 101
    assert all(re.fullmatch(r"[0-9a-f]{32}-\d+", run_id) for run_id in ids)


async def test_a_connection_that_breaks_is_replaced_and_unanswered_programs_asked_for_under_their_ids() -> (
    None
):
    connections = 0

    async def breaks(connection: ServerConnection, messages: Messages) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            orders = json.loads(await connection.recv())
            messages.append(orders)
            await connection.send(json.dumps([result_of(orders[1])]))
            connection.transport.abort()
        else:
            await answers(connection, messages)

    async with standin(breaks) as (url, messages), JudgeClient(url) as client:
        results = await client.run_many([RunRequest(code=str(i)) for i in range(3)])
    assert [result.stdout for result in results] == ["0", "1", "2"]
    first_ids, second_ids = ([order["id"] for order in orders] for orders in messages)
    assert second_ids == [first_ids[0], first_ids[2]]


async def test_many_calls_travel_in_messages_of_a_bounded_length() -> None:
    async with standin(answers) as (url, messages), JudgeClient(url) as client:
        await client.run(RunRequest(code="first"))
        results = await client.run_many([RunRequest(code=str(i)) for i in range(2100)])
    assert [result.stdout for result in results] == [str(i) for i in range(2100)]
    assert [len(orders) for orders in messages] == [1, MAX_BATCH, MAX_BATCH, 2100 - 2 * MAX_BATCH]


async def test_a_connection_that_takes_nothing_any_more_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEARTBEAT_S", 1.0)
    connections = 0
    results_are_complete = asyncio.Event()

    async def stalls(connection: ServerConnection, messages: Messages) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            # The short heartbeat is for this connection only: the next one may keep a slow machine busy for longer.
            monkeypatch.setattr(connection_module, "HEARTBEAT_S", TIMEOUT_S)
            await results_are_complete.wait()
            connection.transport.abort()
        await answers(connection, messages)

    # These programs are longer than all buffers between the client and the judge.
    long = [RunRequest(code=str(i), stdin="x" * (6 << 20)) for i in range(4)]
    async with standin(stalls) as (url, _), JudgeClient(url) as client:
        results = await client.run_many(long)
        results_are_complete.set()
    assert [result.stdout for result in results] == [str(i) for i in range(4)]
    assert connections == 2


async def test_what_the_judge_refuses_to_read_is_an_error_at_once() -> None:
    async def refuses(connection: ServerConnection, messages: Messages) -> None:
        if messages:
            await answers(connection, messages)
        messages.append(json.loads(await connection.recv()))
        await connection.close(1008, "0.id: nothing like it")

    async with standin(refuses) as (url, messages), JudgeClient(url) as client:
        with pytest.raises(JudgeError, match="nothing like it"):
            await asyncio.wait_for(client.run(RunRequest(code="1")), TIMEOUT_S)
        assert len(messages) == 1
        assert (await asyncio.wait_for(client.run(RunRequest(code="2")), TIMEOUT_S)).stdout == "2"


@pytest.mark.parametrize("way", ["with a word", "silently"])
async def test_a_connection_that_was_closed_while_idle_is_replaced(way: str) -> None:
    closing: set[asyncio.Task[None]] = set()
    client_has_result, closed = asyncio.Event(), asyncio.Event()

    async def closes(connection: ServerConnection, messages: Messages) -> None:
        orders = json.loads(await connection.recv())
        messages.append(orders)
        await connection.send(json.dumps([result_of(orders[0])]))
        await client_has_result.wait()
        if way == "silently":
            connection.transport.abort()
        else:
            # The client does not read now. It answers the closing handshake when it sends its next request.
            closing.add(asyncio.create_task(connection.close()))
            await asyncio.sleep(0)
        closed.set()
        await connection.wait_closed()

    async with standin(closes) as (url, messages), JudgeClient(url) as client:
        for number in range(3):
            assert (await client.run(RunRequest(code=str(number)))).stdout == str(number)
            client_has_result.set()
            await asyncio.wait_for(closed.wait(), TIMEOUT_S)
            client_has_result.clear()
            closed.clear()
    assert len(messages) == 3
    assert len({orders[0]["id"] for orders in messages}) == 3


async def test_a_program_that_is_sent_away_is_asked_for_again_in_time() -> None:
    requests_by_id: Counter[str] = Counter()

    async def full(connection: ServerConnection, messages: Messages) -> None:
        async for message in connection:
            for order in json.loads(message):
                requests_by_id[order["id"]] += 1
                busy = {"id": order["id"], "retry_after_s": 0.3}
                reply = busy if requests_by_id[order["id"]] < 3 else result_of(order)
                await connection.send(json.dumps([reply]))

    async with standin(full) as (url, _), JudgeClient(url) as client:
        start_s = time.monotonic()
        results = await client.run_many([RunRequest(code=str(i)) for i in range(2)])
        assert time.monotonic() - start_s >= 0.6
    assert [result.stdout for result in results] == ["0", "1"]
    assert list(requests_by_id.values()) == [3, 3]


async def test_a_call_right_after_a_cancelled_one_is_answered() -> None:
    arrived = asyncio.Event()

    async def slow(connection: ServerConnection, messages: Messages) -> None:
        async for message in connection:
            orders = json.loads(message)
            messages.append(orders)
            arrived.set()
            replies = [result_of(order) for order in orders if order.get("run", {}).get("code") == "quick"]
            replies += [{"id": order["id"], "cancelled": True} for order in orders if order.get("cancel")]
            await connection.send(json.dumps(replies))

    async with standin(slow) as (url, messages), JudgeClient(url) as client:
        for _ in range(3):
            arrived.clear()
            call = asyncio.create_task(client.run(RunRequest(code="never")))
            await asyncio.wait_for(arrived.wait(), TIMEOUT_S)
            call.cancel()
            assert (await client.run(RunRequest(code="quick"))).outcome == "ok"
        call = asyncio.create_task(client.run(RunRequest(code="never")))
        await asyncio.sleep(0)
        call.cancel()
        assert (await client.run(RunRequest(code="quick"))).outcome == "ok"
    orders = [order for message in messages for order in message]
    ids = {order["id"] for order in orders if order.get("run", {}).get("code") == "never"}
    assert {order["id"] for order in orders if order.get("cancel")} == ids
    assert len(ids) == 3


async def test_a_call_whose_wait_ends_has_its_program_taken_back() -> None:
    cancel_arrived = asyncio.Event()

    async def never(connection: ServerConnection, messages: Messages) -> None:
        async for message in connection:
            messages.append(json.loads(message))
            if messages[-1][0].get("cancel"):
                cancel_arrived.set()

    # On a slow machine, a short wait ends before the program is sent. Then try a longer one.
    for wait_s in (0.3, 3.0, 30.0):
        async with standin(never) as (url, messages), JudgeClient(url, wait_s=wait_s) as client:
            result = await client.run(RunRequest(code="1", timeout_s=0.1))
            if messages:
                await asyncio.wait_for(cancel_arrived.wait(), TIMEOUT_S)
                break
    assert (result.outcome, result.id) == ("lost", messages[0][0]["id"])
    assert messages[1] == [{"id": result.id, "cancel": True}]


async def test_calls_of_long_programs_do_not_wait_for_each_other_in_the_client() -> None:
    all_arrived = asyncio.Event()

    async def never(connection: ServerConnection, messages: Messages) -> None:
        async for message in connection:
            messages.append(json.loads(message))
            if sum(map(len, messages)) == 2000:
                all_arrived.set()

    async with standin(never) as (url, _), JudgeClient(url) as client:
        calls = []
        for number in range(2000):
            calls.append(asyncio.create_task(client.run(RunRequest(code=str(number)))))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(all_arrived.wait(), TIMEOUT_S)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


ODD_ANSWERS = {
    "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>",
    "an end at once": b"",
    "silence": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "a date": b"HTTP/1.1 503 No\r\nRetry-After: Fri, 07 Nov 2036 23:59:59 GMT\r\nContent-Length: 0\r\n\r\n",
    "much later": b"HTTP/1.1 429 No\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n",
    "too slow": b"HTTP/1.1 408 No\r\nContent-Length: 0\r\n\r\n",
    "round and round": b"HTTP/1.1 302 No\r\nLocation: /v1/runs/stream\r\nContent-Length: 0\r\n\r\n",
}


async def test_no_answer_however_odd_keeps_a_call_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # With these limits the client sends no second request to a judge that is silent or that names a time to retry.
    monkeypatch.setattr(connection_module.http, "CONNECT_S", TIMEOUT_S)
    monkeypatch.setattr(connection_module, "LONGEST_RETRY_AFTER_S", TIMEOUT_S)

    async def request_count_and_outcomes(odd: str, wait_s: float) -> tuple[int, list[str]]:
        """Returns the number of requests that a judge with this odd answer received, and the outcomes of 3 programs."""
        request_count = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal request_count
            request_count += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ODD_ANSWERS[odd])
            if odd == "silence":
                await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            async with JudgeClient(f"http://127.0.0.1:{port}", wait_s=wait_s) as client:
                requests = [RunRequest(code="1", timeout_s=0.1)] * 3
                results = await asyncio.wait_for(client.run_many(requests), TIMEOUT_S)
        return request_count, [result.outcome for result in results]

    # On a slow machine, a short wait leaves no time for a second request. Then try a longer one.
    for wait_s in (2.0, 20.0, 100.0):
        all_results = asyncio.gather(*(request_count_and_outcomes(odd, wait_s) for odd in ODD_ANSWERS))
        results_by_answer = dict(zip(ODD_ANSWERS, await all_results, strict=True))
        assert {
            odd: outcomes for odd, (_, outcomes) in results_by_answer.items() if outcomes != ["lost"] * 3
        } == {}
        not_repeated = [odd for odd, (request_count, _) in results_by_answer.items() if request_count == 1]
        if not_repeated == ["silence", "much later"]:
            return
    pytest.fail(f"answers after which the client sent no second request: {not_repeated}")


OF_NOBODY = '[{"id": "of nobody", "result": {"id": "of nobody", "outcome": "ok"}}]'


ODD_MESSAGES = (
    "[",
    "{}",
    '[{"index": 0}]',
    '[{"id": "a", "result": {"outcome": "fine"}}]',
    b"[]",
    OF_NOBODY,
    '[{"id": "of nobody"}]',
    "[]",
)


async def test_no_message_however_odd_keeps_a_call_beyond_its_time() -> None:
    async def request_count(odd: str | bytes, wait_s: float) -> int:
        async def speaks(connection: ServerConnection, messages: Messages) -> None:
            async for message in connection:
                messages.append(json.loads(message))
                await connection.send(odd)

        async with standin(speaks) as (url, messages), JudgeClient(url, wait_s=wait_s) as client:
            result = await asyncio.wait_for(client.run(RunRequest(code="1", timeout_s=0.1)), TIMEOUT_S)
        assert result.outcome == "lost", odd
        return sum("run" in order for orders in messages for order in orders)

    # Longer where there was no time to ask again.
    for wait_s in (2.0, 20.0, 100.0):
        all_counts = asyncio.gather(*(request_count(odd, wait_s) for odd in ODD_MESSAGES))
        counts = dict(zip(ODD_MESSAGES, await all_counts, strict=True))
        # A message that no judge sends ends the connection. An answer to a program that nobody sent does not.
        not_repeated = [odd for odd, count in counts.items() if count == 1]
        if not_repeated == list(ODD_MESSAGES[-3:]):
            return
    pytest.fail(f"messages after which the client sent no second request: {not_repeated}")


@pytest.mark.parametrize(("status", "remedy"), [(404, "WebSocket"), (403, "--allow-host")])
async def test_a_refusal_is_an_error_with_a_hint(status: int, remedy: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with JudgeClient(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(JudgeError, match=f"HTTP {status}") as raised:
                await asyncio.wait_for(client.run(RunRequest(code="1")), TIMEOUT_S)
    assert remedy in raised.value.hint


async def test_a_call_that_cannot_be_sent_raises_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("the writer is broken")

    async with standin(answers) as (url, _), JudgeClient(url) as client:
        assert (await client.run(RunRequest(code="1"))).stdout == "1"
        with monkeypatch.context() as patch:
            patch.setattr(aiohttp.ClientWebSocketResponse, "send_frame", broken)
            with pytest.raises(JudgeError, match="the writer is broken"):
                await asyncio.wait_for(client.run(RunRequest(code="2")), TIMEOUT_S)
        assert (await client.run(RunRequest(code="3"))).stdout == "3"
