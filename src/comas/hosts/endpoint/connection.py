"""How an endpoint is reached: its address, its key, and the client with the proxies and
certificates of the environment.

What cannot work is a mistake in one line before any request. Leaves out: requests (`hosts.api`).
"""

from __future__ import annotations

import os
import re
import socket
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

from pydantic import SecretStr

from comas.hosts.endpoint.table import Table
from comas.types import UserMistake

PATH = "/chat/completions"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""Variables that the library reads, in small letters and in capitals."""
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
NO_ADDRESS = (ValueError, OverflowError)
"""What the system's own look-up of names and ports raises for what is none."""


def address_of(config: Table) -> str:
    """Where requests go."""
    return f"{(config.api or '').rstrip('/')}{PATH}"


def key_of(host: str, config: Table) -> SecretStr:
    """The key, or nothing where none is wanted."""
    variable = config.key_env
    if variable is None:
        return SecretStr("")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserMistake(
            f"hosts.{host}.key_env: the environment variable {variable} is not set: export it, with"
            " the key"
        )
    if not re.fullmatch(r"[!-~]+", key):  # otherwise the library says so, and repeats it
        raise UserMistake(
            f"hosts.{host}.key_env: what the environment variable {variable} holds cannot be a key:"
            " it has spaces or letters beyond ASCII"
        )
    return SecretStr(key)


def client_of(host: str, config: Table, key: SecretStr) -> Any:
    """A client for as many connections as requests may be open; it belongs to the first event loop
    that it is used in.
    """
    try:
        import httpx
    except ImportError as error:
        raise UserMistake(f'hosts.{host}.api needs httpx: pip install "comas[api]"') from error
    _check_address(host, config)
    headers = {"Accept-Encoding": "identity"}  # the limit on replies is one on what arrives
    if secret := key.get_secret_value():
        headers["Authorization"] = f"Bearer {secret}"
    n = config.concurrency
    limits = httpx.Limits(max_connections=n, max_keepalive_connections=n)
    # no request may depend on the ones before
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    try:
        # requests have one limit each
        return httpx.AsyncClient(headers=headers, cookies=no_cookies, timeout=None, limits=limits)
    except OSError as error:
        told = error.strerror or type(error).__name__
        where = _that_are_set(CERTIFICATES) or "the system's certificates"
        raise UserMistake(
            f"host {host}: certificates cannot be read ({told}): correct {where}, or unset it"
        ) from None
    except ImportError:  # what a proxy's address holds may be a password: it is not repeated
        raise UserMistake(
            f"host {host}: the proxy in {_that_are_set(PROXIES)} speaks SOCKS, which needs pip"
            ' install "httpx[socks]"; or unset it'
        ) from None
    except (ValueError, httpx.InvalidURL):
        raise UserMistake(
            f"host {host}: what {_that_are_set(PROXIES)} holds names no proxy that can be used:"
            " correct it, or unset it"
        ) from None


def _check_address(host: str, config: Table) -> None:
    """An error for an address that no request could be sent to."""
    import httpx

    key = f"hosts.{host}.api = {config.api!r}"
    if (config.api or "").rstrip("/").endswith(PATH):
        raise UserMistake(f"{key}: leave {PATH} out, it is added to what stands there")
    try:
        url = httpx.URL(address_of(config))
        if ":" not in url.host:
            # as the look-up of names does, which would be surprised
            url.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UserMistake(f"{key} is no address: {_brief(error)}") from None
    if not url.host:
        raise UserMistake(f"{key} is no address: it names no machine")
    if url.port is not None and not 0 < url.port < 65536:
        raise UserMistake(f"{key} is no address: ports go from 1 to 65535")


def wrong_address(host: str, url: str, error: Exception) -> Exception:
    """The mistake that an address is which can be written, and not be reached; a group of other
    errors is what it is.
    """
    while isinstance(error, ExceptionGroup) and error.subgroup(NO_ADDRESS):
        error = error.exceptions[0]
    if not isinstance(error, NO_ADDRESS):
        return error
    return UserMistake(
        f"host {host}: {url} cannot be reached ({type(error).__name__}): check"
        f" hosts.{host}.api{through_proxies()}"
    )


def through_proxies() -> str:
    """The variables that name proxies, as something else to check."""
    proxies = _that_are_set(PROXIES[:-1])
    return f", the proxy in {proxies}" if proxies else ""


def is_unknown_name(error: BaseException | None) -> bool:
    """Whether there is no machine of the name that was asked for."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_NONAME
        error = error.__cause__ or error.__context__
    return False


def _that_are_set(names: tuple[str, ...]) -> str:
    spelt = [
        spelling
        for name in names
        for spelling in dict.fromkeys((name, name.upper()))
        if os.environ.get(spelling)
    ]
    return ", ".join(spelt)


def _brief(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= 100 else words[:100] + " ..."
