"""A host of other people's models: any endpoint that speaks OpenAI's `POST {url}/chat/completions`.

It answers and never learns; what it costs is counted, and a budget stops the run. Requests live in
a thread and an event loop of their own, so that connections outlast the loops that ask. Leaves out:
learning, token ids, the size of the server's context; what answers say
(`hosts.endpoint.completion`), what they cost (`hosts.endpoint.ledger`), proxies and addresses
(`hosts.endpoint.connection`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from comas.config.schema import HostConfig
from comas.game.agent import derive_seed
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
    through_proxies,
    wrong_address,
)
from comas.hosts.endpoint.ledger import Ledger
from comas.hosts.plan import HostPlan
from comas.program import Work
from comas.types import (
    Account,
    Fit,
    HostFailure,
    Learned,
    Method,
    Payoff,
    Reply,
    Sampling,
    UserMistake,
)

T = TypeVar("T")
LARGEST = 8_000_000
"""Bytes of a reply; one that is larger is given up."""
LONGEST = 300.0
"""Seconds that a server may have us wait; one that asks for more has failed."""
PATIENCE = 60.0
"""Seconds in which a server that does not answer the first request is asked again: it may be
starting up.
"""
SOON = 5.0
"""Seconds between two such tries, at most."""
AGAIN = (408, 409, 425, 429)
"""Answers, besides 5xx, after which the same request may succeed."""
ROOMS = ("max_tokens", "max_completion_tokens")
"""What the room of a reply is called: newer models of OpenAI refuse the first, most other servers
know nothing else.
"""
GREETING = ({"role": "user", "content": "Hello"},)


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


class ApiHost:
    """Policies are names of models at one endpoint."""

    learns = False
    meter = None

    def __init__(
        self,
        name: str,
        models: Mapping[str, str],
        config: HostConfig,
        delay: float = 1.0,
        work: Work | None = None,
    ) -> None:
        """`delay`: seconds before the second try; doubled before each further one."""
        self.name = name
        self.models = dict(models)
        self.config = config
        self.delay = delay
        self.url = address_of(config)
        self.versions = dict.fromkeys(models, 0)
        self.seconds = {"sampling": 0.0, "learning": 0.0}
        """Seconds in which at least one request was open."""
        self.ledger = Ledger(name, config, work)
        self._room_of: dict[str, str] = {}
        """Model -> what the room of a reply is called there, where that has been learnt."""
        self._key = SecretStr("")
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = 0
        self._since = 0.0

    @property
    def spent(self) -> Counter[str]:
        return self.ledger.spent

    @property
    def events(self) -> Counter[str]:
        return self.ledger.events

    def open(self) -> None:
        """Find key and library, check address and proxies, start the thread; the first ask does it
        where nobody else has.
        """
        if self._loop is not None:
            return
        self._key = key_of(self.name, self.config)
        self._client = client_of(self.name, self.config, self._key)
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(started)), name=f"host-{self.name}", daemon=True
        )
        self._thread.start()
        self._loop = started.result()

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._room = asyncio.Semaphore(self.config.concurrency)
        self._over = asyncio.Event()
        async with self._client:
            started.set_result(asyncio.get_running_loop())
            await self._over.wait()

    def close(self) -> None:
        """Close connections and end the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop = None

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """The server knows; what it refuses is a failure of that turn."""
        return Fit(True)

    async def ask(
        self,
        turn: str,
        policy: str,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        seed: int,
        keep: bool,
        role: str,
    ) -> Reply:
        """One reply; `logprob` is 0.0 unless `logprobs` is set and the server tells them."""
        if keep:
            raise UserMistake(
                f"turn {turn}: nobody learns at host {self.name}, which is behind an API: freeze"
                " its agents"
            )
        self.open()
        body = self._body(self.models[policy], messages, sampling, seed)
        began = time.perf_counter()
        said = await self._there(self._answer(body, seed))
        seconds = time.perf_counter() - began
        return Reply(
            said.text,
            said.finished,
            self.versions[policy],
            said.prompt_tokens or 0,
            said.tokens or 0,
            said.logprob,
            seconds,
            thoughts=said.thoughts,
        )

    def _body(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Sampling, seed: int
    ) -> dict[str, Any]:
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

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """What some work comes to in the host's own loop."""
        assert self._loop is not None
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except (HostFailure, UserMistake, Trouble) as error:
            # what a library raised may repeat what the server sent, which may repeat the key
            error.__context__ = None
            raise

    async def greet(
        self,
        sampling: Sampling,
        note: Callable[[str], None],
        known: set[tuple[str, ...]] | None = None,
    ) -> None:
        """Have each model say one token, so that what is wrong with address, key or name is found
        before any work.

        A server that does not answer yet is asked again for `PATIENCE` seconds, and `note` is told
        so; with `retries = 0` it is not. `known` holds endpoints and models that have been greeted
        already, and takes up those of this host.
        """
        self.open()
        known = set() if known is None else known
        for model in sorted(set(self.models.values())):
            place = (self.url, self.config.key_env or "", model)
            if place not in known:
                await self._greet(
                    self._body(model, GREETING, replace(sampling, max_tokens=1), 0), note
                )
                known.add(place)
        self.ledger.check_told()

    async def _greet(self, body: Mapping[str, Any], note: Callable[[str], None]) -> None:
        began = time.monotonic()
        patience = PATIENCE if self.config.retries else 0.0
        seen: set[str] = set()
        for attempt in itertools.count():
            try:
                await self._there(self._once(body))
                return
            except Refused as refused:
                if refused.about_tokens:  # one is too little for a model that thinks: it is there
                    return
                self.events["given up"] += 1
                remedy = f"check hosts.{self.name} (api, base), and what its server takes"
                raise UserMistake(f"host {self.name}: {refused}; {remedy}") from None
            except HostFailure as error:
                raise UserMistake(f"host {self.name}: {error}") from None
            except Trouble as trouble:
                self.events[trouble.kind] += 1
                if trouble.kind == "429":  # it lives, and asks are made again anyhow
                    return
                told = f"host {self.name}: {trouble}"
                pause = trouble.after or min(self._pause(0, attempt, trouble), SOON)
                if trouble.after:  # it says itself when it will be there
                    patience = max(patience, min(trouble.after, LONGEST) + 1.0)
                repeated = isinstance(trouble, Unusable) and str(trouble) in seen
                hopeless = repeated or (isinstance(trouble, NotReached) and trouble.nowhere)
                if hopeless or time.monotonic() - began + pause > patience:
                    self.events["given up"] += 1
                    remedy = (
                        f"check hosts.{self.name}.api{through_proxies()}, and that its server runs"
                    )
                    raise UserMistake(f"{told}; {remedy}") from None
                if not attempt:
                    note(
                        f"{told}; asking again for {patience:.0f} seconds, since it may be starting"
                    )
                seen.add(str(trouble))
                await asyncio.sleep(pause)

    async def _once(self, body: Mapping[str, Any]) -> Said:
        """One try, when there is room."""
        async with self._room:
            self.ledger.check_budget()
            with self._busy():
                return await self._post_renamed(body)

    async def _answer(self, body: Mapping[str, Any], seed: int) -> Said:
        """Ask until there is an answer; a try that waits keeps its place, so that a busy server is
        asked less.
        """
        seen: set[str] = set()
        async with self._room:
            with self._busy():
                for attempt in range(self.config.retries + 1):
                    self.ledger.check_budget()  # a try that came to nothing may have been billed
                    try:
                        return await self._post_renamed(body)
                    except Refused:
                        self.events["given up"] += 1
                        raise
                    except Trouble as trouble:
                        self.events[trouble.kind] += 1
                        lasting = (
                            isinstance(trouble, Unusable)
                            and trouble.lasting
                            and str(trouble) in seen
                        )
                        if lasting or attempt == self.config.retries:
                            self.events["given up"] += 1
                            raise HostFailure(f"{trouble} (tried {attempt + 1} times)") from None
                        seen.add(str(trouble))
                        await asyncio.sleep(self._pause(seed, attempt, trouble))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _busy(self) -> Iterator[None]:
        if not self._open:
            self._since = time.perf_counter()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.seconds["sampling"] += time.perf_counter() - self._since

    def _pause(self, seed: int, attempt: int, trouble: Trouble) -> float:
        """Doubled each time, and somewhere between half and all of that, as the request's own seed
        says.
        """
        share = 0.5 + 0.5 * derive_seed(seed, "pause", attempt) / 2**63
        pause = min(self.delay * 2**attempt, LONGEST) * share
        if trouble.after is None:
            return pause
        if trouble.after > LONGEST:
            self.events["given up"] += 1
            raise HostFailure(
                f"{trouble}; the server asks to wait {trouble.after:.0f} seconds, longer than"
                f" {LONGEST:.0f}"
            )
        return trouble.after + min(pause, 1.0)  # not all of them in the same moment

    async def _post_renamed(self, body: Mapping[str, Any]) -> Said:
        """With the room of the reply under the name that the model wants; a refusal teaches it,
        once per model.
        """
        model = body["model"]
        for _ in ROOMS:
            name = self._room_of.get(model, ROOMS[0])
            try:
                return await self._post(
                    {**{k: v for k, v in body.items() if k != ROOMS[0]}, name: body[ROOMS[0]]},
                    body[ROOMS[0]],
                )
            except Renamed:
                self._room_of[model] = ROOMS[1]
        raise AssertionError("the second name is never refused with Renamed")

    async def _post(self, body: Mapping[str, Any], room: int) -> Said:
        """One request; whatever comes of it, what it has cost is counted, or what
        it may have cost.
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
            self.events[f"{ROOMS[0]} refused"] += 1
            raise Renamed
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
            if wrong.code is None:
                raise Unusable(
                    f"{self.url} answers with an error: {self._plain(wrong.said)}"
                ) from None
            raise self._refused(wrong.code, headers, wrong.said, "") from None
        self.ledger.count(Usage(said.prompt_tokens, said.tokens))
        if said.called:
            self.events["tool call"] += 1
        return said

    async def _exchange(self, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of what is answered."""
        import httpx

        headers = {"Content-Type": "application/json"}
        asking = self._client.stream("POST", self.url, content=sent, headers=headers)
        data = bytearray()
        try:
            async with asyncio.timeout(self.config.timeout), asking as response:
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > LARGEST:
                        self.events["too large"] += 1
                        self.events["given up"] += 1
                        raise HostFailure(f"reply too large: more than {LARGEST} bytes")
        except TimeoutError:
            limit = f"{self.config.timeout:g} seconds (hosts.{self.name}.timeout)"
            raise Trouble("timeout", f"no whole answer within {limit}") from None
        except (*NO_ADDRESS, ExceptionGroup) as error:
            raise wrong_address(self.name, self.url, error) from None
        except httpx.RequestError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                self.events["certificate"] += 1
                raise UserMistake(
                    f"host {self.name}: the certificate of {self.url} is not trusted: name its"
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
        self.events[str(status)] += 1
        if status < 400 or status in (401, 403, 404, 407):
            self.events["given up"] += 1
        if status == 407:
            return UserMistake(
                f"host {self.name}: {told}; a proxy wants a user: name it in the variable that"
                " names the proxy"
            )
        if status in (401, 403):
            key = (
                f"the key in the environment variable {self.config.key_env}"
                if self.config.key_env
                else "no key was sent"
            )
            return UserMistake(f"host {self.name}: {told}; check hosts.{self.name}.key_env ({key})")
        if status == 404 or status < 400:
            names = ", ".join(sorted(set(self.models.values())))
            return UserMistake(
                f"host {self.name}: {told}; check hosts.{self.name}.api, and that it has the model"
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

    async def learn(self, payoffs: Mapping[str, Sequence[Payoff]], method: Method) -> Learned:
        """Nothing: payoffs of frozen agents never leave the loop."""
        return Learned({}, {})

    async def save(self, path: Path) -> None:
        """The account: there is nothing else."""
        (path / f"{self.name}.json").write_text(json.dumps(self.ledger.account()), encoding="utf-8")

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        self.ledger.restore(json.loads((path / f"{self.name}.json").read_text(encoding="utf-8")))

    def clock(self) -> Mapping[str, float]:
        """Seconds in which at least one request was open."""
        return dict(self.seconds)

    def facts(self) -> Mapping[str, Any]:
        """There is no device here."""
        return {"device": "api"}

    def account(self) -> Account:
        """Tokens and money over all processes, and what went wrong."""
        return self.ledger.account()


def build(plan: HostPlan) -> ApiHost:
    """The host that a plan describes; opened where a run is going to learn beside it, so that what
    is wrong with it is told before models are loaded.
    """
    host = ApiHost(plan.name, plan.policies, plan.table, work=plan.work)
    if plan.method is not None:
        host.open()
    return host


def words_of(data: bytes) -> tuple[str, str]:
    """What an error says, and the name that it gives itself."""
    try:
        error = json.loads(data)["error"]
        return str(error["message"]), str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return data.decode(errors="replace"), ""
