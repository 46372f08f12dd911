"""Addresses, proxies and certificates that cannot work are a mistake in one line, before any
request.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import HostConfig
from comas.hosts.api import ApiHost
from comas.types import UserMistake
from tests.support.endpoint import answers, ask

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def mistake(host: ApiHost) -> str:
    with pytest.raises(UserMistake) as caught:
        asyncio.run(ask(host))
    told = str(caught.value)
    assert "\n" not in told
    assert "hush" not in told
    return told


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://[::1/v1", "is no address: Invalid port"),
        ("http://localhost:8a/v1", "Invalid port"),
        ("http://x/v1/chat/completions", "leave /chat/completions out"),
        ("http://x/v1/chat/completions/", "leave /chat/completions out"),
    ],
)
def test_an_address_that_is_none(url: str, words: str, host_at: Any) -> None:
    host = host_at(url)
    told = mistake(host)
    assert told.startswith(f"hosts.judge.api = {url!r}")
    assert words in told
    with pytest.raises(UserMistake, match=r"hosts.judge.api"):
        host.open()


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/v1/",
        "https://[::1]:8000",
        "http://my_server/v1",
        "http://é.example/v1",
    ],
)
def test_an_address_that_is_one(url: str, host_at: Any) -> None:
    host_at(url).open()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HTTP_PROXY", "ftp://me:hush@h:1", "what HTTP_PROXY holds"),
        ("all_proxy", "http://me:hush@[::1", "what all_proxy holds"),
        ("HTTP_PROXY", "http://me:hush@127.0.0.1:99999", "the proxy in HTTP_PROXY"),
        ("SSL_CERT_FILE", "/no/such/file", "correct SSL_CERT_FILE"),
        ("SSL_CERT_FILE", __file__, "correct SSL_CERT_FILE"),
    ],
)
def test_an_environment_that_cannot_work(
    variable: str, value: str, words: str, serve: Any, host_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    server = serve(answers())
    assert words in mistake(host_at(server.url))
    assert server.asked == []


@pytest.mark.skipif(importlib.util.find_spec("socksio") is not None, reason="SOCKS is spoken here")
def test_a_proxy_that_speaks_socks_needs_a_library(
    serve: Any, host_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://me:hush@127.0.0.1:1")
    told = mistake(host_at(serve(answers()).url))
    assert "ALL_PROXY" in told
    assert 'pip install "httpx2[socks]"' in told


def test_a_host_that_could_not_be_opened_can_be_opened_later(
    serve: Any, host_at: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host: ApiHost = host_at(serve(answers()).url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    mistake(host)
    monkeypatch.delenv("SSL_CERT_FILE")
    assert asyncio.run(ask(host)).text == "4"


def test_a_proxy_that_wants_a_user_is_no_matter_of_the_key(serve: Any, host_at: Any) -> None:
    host = ApiHost("judge", {"j": "m"}, HostConfig(api=serve(answers(b"", 407)).url))
    try:
        assert "a proxy wants a user" in mistake(host)
    finally:
        host.close()
