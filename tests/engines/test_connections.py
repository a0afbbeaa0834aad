"""Connections to model servers: certificates are checked for TLS connections, and are read only for these."""

from __future__ import annotations

import asyncio
import ssl

import httpx
import pytest
from support.servers.vllm_standin import StandIn, serving
from support.waiting import TIMEOUT_S

from rstar2.engines.connections import OneConnectionEach
from rstar2.engines.vllm import VLLMEngine
from rstar2.loop.engine import Sampling


def test_certificates_are_read_for_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    create = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: contexts.append(create()) or contexts[-1])
    OneConnectionEach("http")._open()
    assert contexts == []
    transport = OneConnectionEach("https")
    for _ in range(2):
        context = transport._open()._pool._ssl_context
        assert [context] == contexts
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname


async def test_no_request_by_tls_goes_over_connections_without_it() -> None:
    with pytest.raises(httpx.UnsupportedProtocol, match="https://localhost"):
        await OneConnectionEach("http").handle_async_request(httpx.Request("GET", "https://localhost"))


async def test_a_request_that_cancels_itself_leaves_no_connection_that_the_next_one_waits_for() -> None:
    """The task is cancelled while it closes the response, so httpx does not finish closing."""

    def cancel(token_ids: list[int]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    sampling = Sampling(max_tokens=3)
    with serving(StandIn(lambda prompt: [1, 2, 3])) as standin:
        engine = VLLMEngine(standin.url)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(engine.generate([1], sampling, cancel))
        async with asyncio.timeout(TIMEOUT_S):
            after = await engine.generate([1], sampling, lambda token_ids: None)
        assert after.token_ids == [1, 2, 3]
        await engine.aclose()
