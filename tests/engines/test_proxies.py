"""Servers behind a company's proxy. The proxy is a small real one on this machine, which tunnels TLS on CONNECT."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.servers.public_endpoint import PublicEndpoint
from support.servers.serving import serve_app

from rstar2.addresses import proxy_of
from rstar2.engines.chat_api import ChatEngine
from rstar2.engines.refusals import CertificateRefused, ProxyRefused
from rstar2.errors import UserError
from rstar2.loop.engine import EngineError, EngineUnavailable, Sampling
from rstar2.processes import free_port

_REFUSAL = "HTTP/1.1 {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LOGIN = "Proxy-Authorization: Basic bWU6c2VjcmV0"
"""me:secret"""


class Proxy:
    """A proxy that forwards requests for api.example to the endpoint."""

    def __init__(self, target: str) -> None:
        self.url = ""
        self.heads: list[str] = []
        """The headers of each request to the proxy."""
        self.answers = ""
        """The status and reason with which it rejects all requests; empty if it forwards them."""
        self.login = False
        """Whether it requires the user name `me` and the password `secret`."""
        self._target = urlsplit(target)

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.closing(answer):
            head = (await client.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            refusal_status = (
                "407 Proxy Authentication Required" if self.login and _LOGIN not in head else self.answers
            )
            if refusal_status:
                answer.write(_REFUSAL.format(refusal_status).encode())
                return
            server, ask = await asyncio.open_connection(self._target.hostname, self._target.port)
            with contextlib.closing(ask):
                if head.startswith("CONNECT "):
                    answer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    plain = head.replace("http://api.example", "", 1).replace(
                        "\r\n", "\r\nConnection: close\r\n", 1
                    )
                    ask.write(plain.encode())
                pumps = [
                    asyncio.ensure_future(_pump(client, ask)),
                    asyncio.ensure_future(_pump(server, answer)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for api.example and the proxy, with its key. Clients do not trust it by default."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = "subjectAltName=DNS:api.example,IP:127.0.0.1"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=api.example",
    ]
    subprocess.run([*words, "-addext", names, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@pytest.fixture
def secure(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PublicEndpoint]:
    """An endpoint over TLS. This process trusts its certificate, and the proxy forwards to its URL."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    endpoint = PublicEndpoint()
    with serve_app(endpoint.app, certificate) as endpoint.url:
        yield endpoint


async def finish_reason_of(url: str) -> str:
    """Generate a turn and return its finish reason."""
    engine = ChatEngine(url, None, [])
    async with contextlib.aclosing(engine):
        return (await engine.generate([3, 4, 5], Sampling(max_tokens=9))).finish


async def test_plain_http_is_sent_to_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with PublicEndpoint().serving() as endpoint:
        async with Proxy(endpoint.url).serving() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            assert await finish_reason_of("http://api.example/v1") == "stop"
            proxy.login = True
            with pytest.raises(ProxyRefused, match=r"requires a user and a password .*HTTP 407"):
                await finish_reason_of("http://api.example/v1")
    targets = [head.partition(" HTTP")[0] for head in proxy.heads]
    assert targets[:2] == [
        "GET http://api.example/v1/models",
        "POST http://api.example/v1/chat/completions",
    ]


@pytest.mark.parametrize("proxy_speaks_tls", [False, True])
async def test_https_goes_through_a_tunnel_that_sees_the_host_alone(
    secure: PublicEndpoint, certificate: Path, monkeypatch: pytest.MonkeyPatch, proxy_speaks_tls: bool
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with Proxy(secure.url).serving(tls if proxy_speaks_tls else None) as proxy:
        proxy.login = True
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://me:secret@"))
        assert await finish_reason_of("https://api.example/v1") == "stop"
    assert len(secure.requests) == 1
    # One connection carries the list of models and the turn.
    (head,) = proxy.heads
    assert head.startswith("CONNECT api.example:443 HTTP/1.1\r\n")
    assert _LOGIN in head


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            "407 Proxy Authentication Required",
            ProxyRefused,
            "requires a user and a password for requests to",
        ),
        (
            "403 Forbidden",
            ProxyRefused,
            "does not forward requests to the server at https://api.example: 403 Forbidden",
        ),
        (
            "502 Bad Gateway",
            EngineUnavailable,
            "does not forward requests to the server at https://api.example: 502 Bad",
        ),
    ],
)
async def test_a_proxy_that_makes_no_tunnel_is_named_with_its_words(
    secure: PublicEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    kind: type[EngineError],
    message: str,
) -> None:
    async with Proxy(secure.url).serving() as proxy:
        proxy.answers = answer
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://me:secret@"))
        with pytest.raises(EngineError, match=message) as error:
            await finish_reason_of("https://api.example/v1")
    assert type(error.value) is kind
    assert f"the proxy {proxy.url} " in error.value.message
    assert "secret" not in str(error.value)
    assert "rstar2 serve" not in str(error.value)


async def test_a_certificate_that_is_not_trusted_is_named_and_not_asked_again(
    secure: PublicEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with Proxy(secure.url).serving() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(CertificateRefused, match="is not trusted: self-signed certificate") as error:
            await finish_reason_of("https://api.example/v1")
    assert "SSL_CERT_FILE" in error.value.hint


async def test_a_proxy_that_is_away_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{free_port()}")
    engine = ChatEngine("http://api.example/v1", "m", [])
    with pytest.raises(EngineUnavailable, match=r"through the proxy http://127\.0\.0\.1:") as away:
        await engine.generate([3, 4, 5], Sampling(max_tokens=9))
    await engine.aclose()
    assert "secret" not in str(away.value)


@pytest.mark.parametrize(
    ("url", "goes"),
    [
        ("https://api.example/v1", True),
        ("http://api.example/v1", True),
        ("http://127.0.0.1:8000", False),
        ("http://10.1.2.3:8000", False),
        ("http://[::1]:8000", False),
        ("http://gpu:8000", False),
        ("http://localhost:8000", False),
        ("http://gpu.local:8000", False),
        ("http://inside.example:8000", False),
    ],
)
def test_local_addresses_and_those_of_no_proxy_go_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, url: str, goes: bool
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert proxy_of(url) == ("http://proxy.example:3128" if goes else None)


def test_a_wrong_proxy_is_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks9://proxy.example:1")
    with pytest.raises(UserError, match="socks9"):
        ChatEngine("https://api.example/v1", "m", [])
