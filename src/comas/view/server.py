"""The page served on this machine alone: to whoever has its address, which nobody can guess.

Read-only: nothing is written, and only documents can be asked for, never files. Leaves out: the
documents (`documents`).
"""

from __future__ import annotations

import gzip
import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from comas.types import UserMistake
from comas.view.documents import Several, encoded
from comas.view.page import html, policy

ADDRESS = "127.0.0.1"
CONNECTIONS = 64
"""At once; others are closed. Each takes a thread and a file descriptor."""
LARGE = 1_000
"""Bytes from which an answer is compressed."""


class ViewServer(ThreadingHTTPServer):
    """Serves documents below an address with a token."""

    daemon_threads = True

    def __init__(self, documents: Several, port: int = 0) -> None:
        self.documents = documents
        self.token = secrets.token_urlsafe(24)
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise UserMistake(f"--port {port}: {error.strerror}") from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, where there is a place for it."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer  # pyright: ignore[reportIncompatibleVariableOverride] - nobody else makes one
    server_version = "comas"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 5.0
    """Seconds for which a connection may say nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads a log of one's own looking."""

    def do_GET(self) -> None:
        """Answer with the page or a document."""
        if self._host() not in (ADDRESS, "localhost"):
            self._refuse(HTTPStatus.FORBIDDEN, "this page is served to this machine alone")
            return
        token, _, name = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the address lacks its token: open it as printed")
        elif name == "":
            self._send(html("", "'self'").encode(), "text/html; charset=utf-8")
        elif name.startswith("data/"):
            self._document(name.removeprefix("data/"))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing of this name")

    do_HEAD = do_GET

    def _host(self) -> str:
        """The host that was asked for, without the port, which has to be ours."""
        host, _, port = self.headers.get("Host", "").rpartition(":")
        return host if port == str(self.server.server_port) else ""

    def _document(self, name: str) -> None:
        try:
            document = self.server.documents.read(name)
        except KeyError:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no document of this name")
        except (UserMistake, OSError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        else:
            self._send(encoded(document).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(json.dumps({"error": why}).encode(), "application/json", status)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        is_compressed = len(body) > LARGE and "gzip" in self.headers.get("Accept-Encoding", "")
        if is_compressed:
            body = gzip.compress(body, 1)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if is_compressed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Security-Policy", policy("'self'") + "; frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
