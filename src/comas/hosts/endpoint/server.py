"""One request to an endpoint: what is sent, what its answer means, and what it has cost.

Leaves out: when to ask, and again (`hosts.api`), what a good answer says
(`hosts.endpoint.completion`), proxies and addresses (`hosts.endpoint.connection`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
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
from comas.hosts.endpoint.connection import (
    NO_ADDRESS,
    address_of,
    client_of,
    is_unknown_name,
    key_of,
    wrong_address,
)
from comas.hosts.endpoint.ledger import Ledger
from comas.hosts.endpoint.table import Table
from comas.types import HostFailure, Sampling, UserMistake

LARGEST = 8_000_000
"""Bytes of a reply; one that is larger is given up."""
AGAIN = (408, 409, 425, 429)
"""Answers, besides 5xx, after which the same request may succeed."""
GIVEN_UP = (502, 504, 524)
"""Answers of a gateway behind which a server may go on, and be paid for it."""
ROOMS = ("max_tokens", "max_completion_tokens")
"""What the room of a reply is called: newer models of OpenAI refuse the first, most other servers
know nothing else.
"""


class Renamed(Exception):
    """The server wants the room of a reply under its other name."""


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
        self.url = address_of(config)
        self.ledger = ledger
        self.client: Any = None
        """None until `open`."""
        self._key = SecretStr("")
        self._room_of: dict[str, str] = {}
        """Model -> what the room of a reply is called there, where that has been learnt."""

    def open(self) -> None:
        """Find key and library, check address and proxies."""
        self._key = key_of(self.host, self.config)
        self.client = client_of(self.host, self.config, self._key)

    def body(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Sampling, seed: int
    ) -> dict[str, Any]:
        """Say what is asked, as JSON."""
        # no more than 31 bits of seed: servers differ in what they take
        body: dict[str, Any] = {
            "model": model,
            "messages": [dict(m) for m in messages],
            "temperature": sampling.temperature,
            ROOMS[0]: sampling.max_tokens,
            "seed": seed & 0x7FFFFFFF,
        }
        # some servers take one of the two only
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        body |= {"logprobs": True} if self.config.logprobs else {}
        return body

    async def post(self, body: Mapping[str, Any]) -> Said:
        """Send a request with the room of the reply under the name that the model wants; a refusal
        teaches it, once per model.
        """
        model = body["model"]
        room = body[ROOMS[0]]
        others = {key: value for key, value in body.items() if key != ROOMS[0]}
        for _ in ROOMS:
            name = self._room_of.get(model, ROOMS[0])
            try:
                return await self._post({**others, name: room}, room)
            except Renamed:
                self._room_of[model] = ROOMS[1]
        raise AssertionError("the second name is never refused with Renamed")

    async def _post(self, body: Mapping[str, Any], room: int) -> Said:
        """Send one request; whatever comes of it, what it has cost is counted, or what it may have
        cost.
        """
        sent = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        # no token is shorter than a byte, and the frame of JSON is longer than any template
        at_most = (len(sent), room)
        try:
            status, headers, data = await self._exchange(sent)
        except (UserMistake, NotReached):
            raise
        except BaseException:  # also where nobody waits for it any more
            self.ledger.count_unsettled(*at_most)
            raise
        if 200 <= status < 300:
            return self._read(data, headers, at_most)
        if (
            ROOMS[0] in body
            and status in (400, 422)
            and ROOMS[1].encode() in data
            and b"support" in data
        ):
            self.ledger.events[f"{ROOMS[0]} refused"] += 1
            raise Renamed
        if status in GIVEN_UP:
            self.ledger.count_unsettled(*at_most)
        raise self._refused(status, headers, *words_of(data))

    def _read(self, data: bytes, headers: Mapping[str, str], at_most: tuple[int, int]) -> Said:
        try:
            said = read_said(data)
        except Unusable as wrong:
            if wrong.usage.told:
                self.ledger.count(wrong.usage)
            else:
                self.ledger.count_unsettled(*at_most)
            raise
        except ErrorInside as wrong:
            if wrong.usage.told:
                self.ledger.count(wrong.usage)
            elif wrong.code is None or wrong.code >= 500:  # it broke on the way
                self.ledger.count_unsettled(*at_most)
            if wrong.code is None:
                raise Unusable(
                    f"{self.url} answers with an error: {self._plain(wrong.said)}"
                ) from None
            raise self._refused(wrong.code, headers, wrong.said, "") from None
        self.ledger.count(Usage(said.prompt_tokens, said.tokens))
        if said.called:
            self.ledger.events["tool call"] += 1
        return said

    async def _exchange(self, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of what is answered."""
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
        except (*NO_ADDRESS, ExceptionGroup) as error:
            raise wrong_address(self.host, self.url, error) from None
        except httpx.RequestError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                self.ledger.events["certificate"] += 1
                raise UserMistake(
                    f"host {self.host}: the certificate of {self.url} is not trusted: name its"
                    " authority in SSL_CERT_FILE"
                ) from None
            told = f"{self.url}: {type(error).__name__} {self._plain(str(error))}"
            if isinstance(error, httpx.ConnectError):
                raise NotReached(told, is_unknown_name(error)) from None
            raise Trouble("broken off", told) from None
        return response.status_code, response.headers, bytes(data)

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
        return Refused(told, said)

    def _plain(self, text: str) -> str:
        """A line of somebody else's words, without the key."""
        if key := self._key.get_secret_value():
            text = text.replace(key, "***")
        text = text[:10_000]  # of eight megabytes no more is looked at
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= 200 else text[:200] + " ..."


def words_of(data: bytes) -> tuple[str, str]:
    """What an error says, and the name that it gives itself."""
    try:
        error = json.loads(data)["error"]
        return str(error["message"]), str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return data.decode(errors="replace"), ""
