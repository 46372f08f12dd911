"""The server answers to whoever has its address, from this machine, and to nothing but reading."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comas.types import UserMistake
from comas.view.documents import RunDocuments, Several
from comas.view.server import CONNECTIONS, ViewServer
from tests.support.viewed import viewed_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    run = viewed_run(tmp_path / "r")
    with ViewServer(Several([RunDocuments(str(run.path))])) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: ViewServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_page_and_its_documents(server: ViewServer) -> None:
    status, body, headers = ask(server, f"/{server.token}/")
    assert status == 200
    assert b"<title>comas view</title>" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    status, body, _ = ask(server, f"/{server.token}/data/0/run")
    assert status == 200
    assert json.loads(body)["steps"] == 3
    status, body, headers = ask(server, f"/{server.token}/data/0/steps/0", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(body))) == 3


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 403),
        ("/data/0/run", 403),
        ("/x/data/0/run", 403),
        ("/%C3%BC/data/0/run", 403),
        ("/TOKEN", 200),
        ("/TOKEN/x", 404),
        ("/TOKEN/data/", 404),
        ("/TOKEN/data/9/run", 404),
        (f"/TOKEN/data/{'9' * 5000}/run", 404),
        (f"/TOKEN/data/0/step/{'9' * 5000}", 404),
        ("/TOKEN/data/../../config.toml", 404),
        ("/TOKEN/data/0/eval/%2e%2e%2fconfig", 404),
        ("/TOKEN/data/0/step/0/%2e%2e/%2e%2e/config.toml", 404),
        ("/TOKEN/../TOKEN/data/0/run", 404),
        ("//etc/passwd", 403),
    ],
)
def test_whoever_lacks_the_token_or_climbs_is_refused(
    server: ViewServer, path: str, status: int
) -> None:
    assert ask(server, path.replace("TOKEN", server.token))[0] == status


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:PORT", "127.0.0.1:1", "", "localhost"]
)
def test_a_foreign_host_is_refused(server: ViewServer, host: str) -> None:
    name = host.replace("PORT", str(server.server_port))
    assert ask(server, f"/{server.token}/", Host=name)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_but_reading_is_answered(server: ViewServer, method: str) -> None:
    assert ask(server, f"/{server.token}/", method)[0] == 501


def test_connections_that_say_nothing_have_an_end(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were held for ever, each with a thread, by anybody without the token."""
    handler: Any = server.RequestHandlerClass
    assert 0 < handler.timeout <= 10
    monkeypatch.setattr(handler, "timeout", 0.2)
    idle = [socket.create_connection(server.server_address[:2], 5) for _ in range(CONNECTIONS + 8)]
    try:
        for connection in idle:
            connection.settimeout(5)
            assert connection.recv(1) == b""
    finally:
        for connection in idle:
            connection.close()
    assert ask(server, f"/{server.token}/")[0] == 200


def test_nothing_is_written(server: ViewServer, tmp_path: Path) -> None:
    def everything() -> dict[str, tuple[int, int]]:
        facts = {str(path): path.stat() for path in tmp_path.rglob("*")}
        return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in facts.items()}

    before = everything()
    for name in ("run", "steps/0", "step/2", "step/2/all", "step/2/5", "eval/after", "none"):
        ask(server, f"/{server.token}/data/0/{name}")
    assert everything() == before


def test_a_taken_port_is_one_line(server: ViewServer) -> None:
    with pytest.raises(UserMistake, match=f"--port {server.server_port}: "):
        ViewServer(server.documents, server.server_port)
