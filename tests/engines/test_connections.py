"""Connections of the clients of model servers: certificates are checked where there is TLS, and read only there."""

from __future__ import annotations

import ssl

import httpx
import pytest

from rstar2.engines.connections import OneConnectionEach


def test_certificates_are_read_for_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    create = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: contexts.append(create()) or contexts[-1])
    OneConnectionEach("http")._open()
    assert contexts == []
    transport = OneConnectionEach("https")
    for _ in range(2):
        used = transport._open()._pool._ssl_context
        assert [used] == contexts
        assert used.verify_mode == ssl.CERT_REQUIRED
        assert used.check_hostname


async def test_no_request_by_tls_goes_over_connections_without_it() -> None:
    with pytest.raises(httpx.UnsupportedProtocol, match="https://localhost"):
        await OneConnectionEach("http").handle_async_request(httpx.Request("GET", "https://localhost"))
