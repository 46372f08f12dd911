"""One endpoint: its address and key, the client with the proxies and certificates of the
environment, and one request: what is sent, what its answer means, and what it has cost.

What cannot work is a mistake in one line before any request. Leaves out: when to ask, and again
(`hosts.api`), what a good answer says (`hosts.endpoint.completion`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

from pydantic import SecretStr

from comas.hosts.endpoint.completion import (
    ErrorInside,
    Said,
    Trouble,
    Unusable,
    Usage,
    read_said,
    wait_of,
)
from comas.hosts.endpoint.ledger import Ledger
from comas.hosts.endpoint.table import Table
from comas.types import HostFailure, Sampling, UserMistake

PATH = "/chat/completions"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""Variables that the library reads, in small letters and in capitals."""
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
LARGEST = 8_000_000
"""Bytes of a reply; one that is larger is given up."""
AGAIN = (408, 409, 425, 429)
"""Answers, besides 5xx, after which the same request may succeed."""
GIVEN_UP = (502, 504, 524)
"""Answers of a gateway behind which a server may go on, and be paid for it."""
ROOM = "max_tokens"
NEWER_ROOM = "max_completion_tokens"
"""What newer models of OpenAI call the room of a reply; most other servers know the first alone."""


class NotReached(Trouble):
    """A request that never got to a server; `nowhere`: because there is no machine of that name."""

    def __init__(self, said: str, nowhere: bool) -> None:
        super().__init__("no connection", said)
        self.nowhere = nowhere


class Refused(HostFailure):
    """A request that the server does not take."""

    def __init__(self, told: str, said: str) -> None:
        super().__init__(told)
        self.about_tokens = "token" in said.lower()
        """Whether it is the number of tokens that the server does not take."""


class Server:
    """Takes requests of one host, one at a time or many at once; none is made again here."""

    def __init__(self, host: str, config: Table, models: Sequence[str], ledger: Ledger) -> None:
        self.host = host
        self.config = config
        self.models = models
        self.url = f"{(config.api or '').rstrip('/')}{PATH}"
        self.ledger = ledger
        self.client: Any = None
        """None until `open`."""
        self._key = SecretStr("")
        self._taken: dict[str, dict[str, str | None]] = {model: {} for model in models}
        """Model -> parameters that it has refused -> under which name it takes them, if any."""

    def open(self) -> None:
        """Find key and library, check address and proxies, and make a client for as many
        connections as requests may be open; it belongs to the first event loop that it is used in.
        """
        self._key = _key_of(self.host, self.config)
        try:
            import httpx
        except ImportError as error:
            raise UserMistake(
                f'hosts.{self.host}.api needs httpx: pip install "comas[api]"'
            ) from error
        self._check_address()
        headers = {"Accept-Encoding": "identity"}  # the limit on replies is one on what arrives
        if secret := self._key.get_secret_value():
            headers["Authorization"] = f"Bearer {secret}"
        n = self.config.concurrency
        limits = httpx.Limits(max_connections=n, max_keepalive_connections=n)
        # no request may depend on the ones before
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        try:
            # requests have one limit each
            self.client = httpx.AsyncClient(
                headers=headers, cookies=cookies, timeout=None, limits=limits
            )
        except OSError as error:
            told = error.strerror or type(error).__name__
            where = _that_are_set(CERTIFICATES) or "the system's certificates"
            raise UserMistake(
                f"host {self.host}: certificates cannot be read ({told}): correct {where}, or unset"
                " it"
            ) from None
        except ImportError:  # what a proxy's address holds may be a password: it is not repeated
            raise UserMistake(
                f"host {self.host}: the proxy in {_that_are_set(PROXIES)} speaks SOCKS, which needs"
                ' pip install "httpx[socks]"; or unset it'
            ) from None
        except (ValueError, httpx.InvalidURL):
            raise UserMistake(
                f"host {self.host}: what {_that_are_set(PROXIES)} holds names no proxy that can be"
                " used: correct it, or unset it"
            ) from None

    def _check_address(self) -> None:
        """An error for an address that no request could be sent to."""
        import httpx

        key = f"hosts.{self.host}.api = {self.config.api!r}"
        if (self.config.api or "").rstrip("/").endswith(PATH):
            raise UserMistake(f"{key}: leave {PATH} out, it is added to what stands there")
        try:
            url = httpx.URL(self.url)
            if ":" not in url.host:
                # as the look-up of names does, which would be surprised
                url.raw_host.decode("ascii").encode("idna")
        except (httpx.InvalidURL, UnicodeError) as error:
            told = " ".join(str(error).split())[:100]
            raise UserMistake(f"{key} is no address: {told}") from None
        if not url.host:
            raise UserMistake(f"{key} is no address: it names no machine")
        if url.port is not None and not 0 < url.port < 65536:
            raise UserMistake(f"{key} is no address: ports go from 1 to 65535")

    def body(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Sampling, seed: int
    ) -> dict[str, Any]:
        """Say what is asked, as JSON."""
        # no more than 31 bits of seed: servers differ in what they take
        body: dict[str, Any] = {
            "model": model,
            "messages": [dict(m) for m in messages],
            "temperature": sampling.temperature,
            ROOM: sampling.max_tokens,
            "seed": seed & 0x7FFFFFFF,
        }
        # some servers take one of the two only
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        body |= {"logprobs": True} if self.config.logprobs else {}
        return body

    async def post(self, body: Mapping[str, Any]) -> Said:
        """Send a request as far as the model takes what it says: a refusal names a parameter that
        it does not, and an answer without proves it, once per model.
        """
        model = body["model"]
        taken = dict(self._taken[model])
        while True:
            names = {key: taken.get(key, key) for key in body}
            sent = {name: body[key] for key, name in names.items() if name is not None}
            status, headers, data = await self._exchange(sent, body[ROOM])
            if 200 <= status < 300:
                for name in taken.keys() - self._taken[model].keys():
                    self.ledger.events[f"{name} refused"] += 1
                self._taken[model] |= taken
                return self._read(sent, body[ROOM], data, headers)
            said, code = words_of(data)
            refused = _refused_parameter(sent, said) if status in (400, 422) else None
            if refused is None:
                raise self._refused(status, headers, said, code)
            taken[refused] = NEWER_ROOM if refused == ROOM else None

    async def _exchange(
        self, body: Mapping[str, Any], room: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of what is answered; where nobody tells what a request has cost,
        what it may have cost is counted.
        """
        sent = _as_json(body)
        try:
            status, headers, data = await self._send(sent)
        except (UserMistake, NotReached):
            raise
        except BaseException:  # also where nobody waits for it any more
            self.ledger.count_unsettled(len(sent), room)
            raise
        if status in GIVEN_UP:
            self.ledger.count_unsettled(len(sent), room)
        return status, headers, data

    async def _send(self, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
        import httpx

        headers = {"Content-Type": "application/json"}
        asking = self.client.stream("POST", self.url, content=sent, headers=headers)
        data = bytearray()
        try:
            async with asyncio.timeout(self.config.timeout), asking as response:
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > LARGEST:
                        self.ledger.events["too large"] += 1
                        self.ledger.events["given up"] += 1
                        raise HostFailure(f"reply too large: more than {LARGEST} bytes")
        except TimeoutError:
            limit = f"{self.config.timeout:g} seconds (hosts.{self.host}.timeout)"
            raise Trouble("timeout", f"no whole answer within {limit}") from None
        except (ValueError, OverflowError, ExceptionGroup) as error:
            # what the look-up of names and ports raises for what can be written, and is none
            raise UserMistake(
                f"host {self.host}: {self.url} cannot be reached ({type(error).__name__}): check"
                f" hosts.{self.host}.api{through_proxies()}"
            ) from None
        except httpx.RequestError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                self.ledger.events["certificate"] += 1
                raise UserMistake(
                    f"host {self.host}: the certificate of {self.url} is not trusted: name its"
                    " authority in SSL_CERT_FILE"
                ) from None
            told = f"{self.url}: {type(error).__name__} {self._plain(str(error))}"
            if isinstance(error, httpx.ConnectError):
                raise NotReached(told, _is_unknown_name(error)) from None
            raise Trouble("broken off", told) from None
        return response.status_code, response.headers, bytes(data)

    def _read(
        self, sent: Mapping[str, Any], room: int, data: bytes, headers: Mapping[str, str]
    ) -> Said:
        """What a 2xx says; whatever comes of it, what it has cost is counted."""
        try:
            said = read_said(data)
        except (Unusable, ErrorInside) as wrong:
            # an error that is the request's own costs nothing
            broke = isinstance(wrong, Unusable) or wrong.code is None or wrong.code >= 500
            if wrong.usage.told:
                self.ledger.count(wrong.usage)
            elif broke:
                self.ledger.count_unsettled(len(_as_json(sent)), room)
            if isinstance(wrong, Unusable):
                raise
            if wrong.code is None:
                raise Unusable(
                    f"{self.url} answers with an error: {self._plain(wrong.said)}"
                ) from None
            raise self._refused(wrong.code, headers, wrong.said, "") from None
        self.ledger.count(Usage(said.prompt_tokens, said.tokens))
        if said.called:
            self.ledger.events["tool call"] += 1
        if said.filtered:
            self.ledger.events["content filter"] += 1
        return said

    def _refused(self, status: int, headers: Mapping[str, str], said: str, code: str) -> Exception:
        """What an answer other than 2xx means."""
        told = f"{self.url} answers {status}: {self._plain(said)}"
        if status == 402 or code == "insufficient_quota":
            return self.ledger.out_of_credit(told)
        if status in AGAIN or status >= 500:
            return Trouble(str(status), told, wait_of(headers.get("retry-after")))
        self.ledger.events[str(status)] += 1
        if status < 400 or status in (401, 403, 404, 407):
            self.ledger.events["given up"] += 1
        if status == 407:
            return UserMistake(
                f"host {self.host}: {told}; a proxy wants a user: name it in the variable that"
                " names the proxy"
            )
        if status in (401, 403):
            key = (
                f"the key in the environment variable {self.config.key_env}"
                if self.config.key_env
                else "no key was sent"
            )
            return UserMistake(f"host {self.host}: {told}; check hosts.{self.host}.key_env ({key})")
        if status == 404 or status < 400:
            names = ", ".join(self.models)
            return UserMistake(
                f"host {self.host}: {told}; check hosts.{self.host}.api, and that it has the model"
                f" (base): {names}"
            )
        if re.search(r"context|too long|maximum.{0,20}length", said, re.IGNORECASE):
            return Refused(f"the prompt and its reply do not fit the model's context: {told}", said)
        if re.search(r"\btemperature\b", said):
            told += (
                "; models that take one temperature only take 1: set"
                " agents.<name>.temperature=1 for its agents, in an evaluation eval_temperature=1"
            )
        return Refused(told, said)

    def _plain(self, text: str) -> str:
        """A line of somebody else's words, without the key."""
        if key := self._key.get_secret_value():
            text = text.replace(key, "***")
        text = text[:10_000]  # of eight megabytes no more is looked at
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= 200 else text[:200] + " ..."


def _as_json(body: Mapping[str, Any]) -> bytes:
    """No token is shorter than a byte, and the frame of JSON is longer than any template: so many
    tokens a prompt has at most.
    """
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _refused_parameter(sent: Mapping[str, Any], said: str) -> str | None:
    """The parameter without which, or under another name, the same model may take a request."""
    if ROOM in sent and NEWER_ROOM in said and "support" in said:
        return ROOM
    if "seed" in sent and re.search(r"\bseed\b", said):
        return "seed"
    # refused outright: a model that has one temperature has that of the protocol, which is 1
    if sent.get("temperature") == 1.0 and re.search(r"\btemperature\b", said):
        return "temperature"
    return None


def words_of(data: bytes) -> tuple[str, str]:
    """What an error says, and the name that it gives itself."""
    try:
        error = json.loads(data)["error"]
        return str(error["message"]), str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return data.decode(errors="replace"), ""


def _key_of(host: str, config: Table) -> SecretStr:
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


def through_proxies() -> str:
    """The variables that name proxies, as something else to check."""
    proxies = _that_are_set(PROXIES[:-1])
    return f", the proxy in {proxies}" if proxies else ""


def _is_unknown_name(error: BaseException | None) -> bool:
    """Whether there is no machine of the name that was asked for."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_NONAME
        error = error.__cause__ or error.__context__
    return False


def _that_are_set(names: tuple[str, ...]) -> str:
    spellings = (spelt for name in names for spelt in dict.fromkeys((name, name.upper())))
    return ", ".join(spelt for spelt in spellings if os.environ.get(spelt))
