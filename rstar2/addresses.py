"""What users give to reach a service, its URL and its key: checked before anything is started or sent."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from rstar2.errors import UserError

_REDIS = re.compile(
    r"""
    (?: rediss? :// (?: [^\s/?\#@\[\]]* @ )? (?: [\w.-]+ | \[ [\da-fA-F:.]+ \] ) (?: : \d{1,5} )? (?: / \d* )?
      | unix :// (?: [^\s/?\#@\[\]]* @ )? / [^\s?\#]* )
    (?: \? [^\s\#]* )?
    """,
    re.VERBOSE,
)
"""A URL as redis-py reads it. Other characters in the password have to be percent-encoded."""
_KEY = re.compile(r"[!-~]+")
"""What may stand after `Authorization: Bearer`: printable ASCII without spaces."""


def check_url(url: str, whose: str, example: str) -> None:
    """A UserError where something is no URL over HTTP; `whose` says of what it should be one: `a server's`."""
    try:
        parts = urlsplit(url)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # A host that is no IP address is sent as ASCII.
        (parts.hostname or "").encode("idna")
    except ValueError:  # brackets without an end, a port that is no number, a host that is none
        fit = False
    if not fit or any(character.isspace() for character in url):
        raise UserError(f"not {whose} URL: {url}", f"Example: {example}")


def check_redis_url(url: str) -> None:
    """Raises UserError, which shows no part of the URL, if it is not the URL of a Redis server.

    Of a URL whose password is not percent-encoded, nobody can say where the password ends.
    """
    if _REDIS.fullmatch(url) is None:
        raise UserError(
            "--redis is not the URL of a Redis server; it is not shown here, because it may hold a password",
            "Write redis://:PASSWORD@HOST:PORT, rediss:// for TLS, or unix:///PATH. Percent-encode the password: "
            "write @ as %40, / as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D and % as %25.",
        )


def without_password(url: str) -> str:
    """A URL that passed `check_redis_url`, without its user, password and query."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def is_loopback(url: str) -> bool:
    """Whether only this machine can reach a URL: it names localhost or a loopback address."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def proxy_of(url: str) -> str | None:
    """The proxy by which a URL is reached, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; None for none.

    An address that is local is reached without one: a name without a dot, or an address of a private network.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _is_local(host) or proxy_bypass(host):
        return None
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    check_url(proxy, f"a proxy's (in {parts.scheme.upper()}_PROXY)", "http://proxy.example:3128")
    return proxy


def _is_local(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:  # a name
        return "." not in host or host.endswith((".localhost", ".local"))
    return address.is_loopback or address.is_private or address.is_link_local


def check_key(key: str) -> None:
    """A UserError, which does not show the key, where no HTTP header can hold it."""
    if _KEY.fullmatch(key) is None:
        raise UserError(
            "the key holds spaces, line ends or characters outside ASCII, which HTTP cannot send",
            "Check where it was copied from.",
        )
