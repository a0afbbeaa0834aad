"""Checks the service URLs and API keys that users give, before anything is started or sent."""

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
"""A URL that redis-py accepts. Password characters that the pattern does not allow must be percent-encoded."""
_KEY = re.compile(r"[!-~]+")
"""A key that can follow `Authorization: Bearer`: printable ASCII characters without spaces."""


def check_url(url: str, whose: str, example: str) -> None:
    """Raises UserError if `url` is not an HTTP URL.

    Args:
        whose: names the owner of the URL in the error message, such as "a server's".
        example: a correct URL, shown in the error's hint.
    """
    try:
        parts = urlsplit(url)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # The name of a host is sent as ASCII.
        (parts.hostname or "").encode("idna")
    except ValueError:  # an open bracket, a port that is not a number, or an invalid host name
        fit = False
    if not fit or any(character.isspace() for character in url):
        raise UserError(f"not {whose} URL: {url}", f"Example: {example}")


def check_redis_url(url: str) -> None:
    """Raises UserError if `url` is not the URL of a Redis server.

    The message shows no part of the URL, because the end of a password is ambiguous if the password is not
    percent-encoded.
    """
    if _REDIS.fullmatch(url) is None:
        raise UserError(
            "--redis is not the URL of a Redis server; it is not shown here, because it may contain a password",
            "Write redis://:PASSWORD@HOST:PORT, rediss:// for TLS, or unix:///PATH. Percent-encode the password: "
            "write @ as %40, / as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D and % as %25.",
        )


def without_password(url: str) -> str:
    """Returns the URL without its user, password and query. `check_redis_url` must have accepted the URL."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def is_loopback(url: str) -> bool:
    """Whether a URL has the host localhost or a loopback address, so that only this machine can reach it."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # not an address but a name
        return host == "localhost" or host.endswith(".localhost")


def proxy_of(url: str) -> str | None:
    """Returns the proxy for a URL, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, or None if no proxy is set for
    the URL.

    No proxy is used for local hosts: names without a dot, and addresses of private networks.
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
    except ValueError:  # not an address but a name
        return "." not in host or host.endswith((".localhost", ".local"))
    return address.is_loopback or address.is_private or address.is_link_local


def check_key(key: str) -> None:
    """Raises UserError if a key contains characters that an HTTP header cannot contain. The message does not show the
    key.
    """
    if _KEY.fullmatch(key) is None:
        raise UserError(
            "the key contains spaces, line ends or characters outside ASCII, which HTTP cannot send",
            "Copy the key again.",
        )
