"""A host of other people's models: any endpoint that speaks OpenAI's `POST {url}/chat/completions`.

It answers and never learns; what it costs is counted, and a budget stops the run. Requests live in a thread and an event loop of
their own, so that connections outlast the loops that ask. Leaves out: learning, token ids, the size of the server's context.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from comas.agent import derive_seed
from comas.config import HostConfig
from comas.types import HostFailure, Method, Payoff, Reply, Sampling, UserMistake

LARGEST = 8_000_000
"""Bytes of a reply; one that is larger is given up."""
LONGEST = 300.0
"""Seconds that a server may have us wait; one that asks for more has failed."""
AGAIN = (408, 409, 425, 429)
"""Answers, besides 5xx, after which the same request may succeed."""
ROOMS = ("max_tokens", "max_completion_tokens")
"""What the room of a reply is called: newer models of OpenAI refuse the first, most other servers know nothing else."""


class Renamed(Exception):
    """The server wants the room of a reply under its other name."""


class BudgetSpent(UserMistake):
    """No further request is made; those that are open may end."""


class Trouble(Exception):
    """A request that may succeed if it is made again; `kind` is what it counts as."""

    def __init__(self, kind: str, said: str, after: float | None = None) -> None:
        super().__init__(said)
        self.kind, self.after = kind, after


@dataclass(frozen=True)
class Said:
    """What is read from an answer; the usage is None where the server does not tell."""

    text: str
    thoughts: str
    finished: bool
    logprob: float
    prompt_tokens: int | None
    tokens: int | None


class ApiHost:
    """Policies are names of models at one endpoint."""

    device = "api"

    def __init__(self, name: str, models: Mapping[str, str], config: HostConfig, delay: float = 1.0) -> None:
        """`delay`: seconds before the second try; doubled before each further one."""
        self.name, self.models, self.config, self.delay = name, dict(models), config, delay
        self.url = f"{(config.api or '').rstrip('/')}/chat/completions"
        self.versions = dict.fromkeys(models, 0)
        self.seconds = {"sampling": 0.0, "learning": 0.0}
        """Seconds in which at least one request was open."""
        self.events: Counter[str] = Counter()
        """What went wrong, and how often: `429`, `timeout`, `invalid body` ...; `given up`: requests that got no answer."""
        self.spent: Counter[str] = Counter()
        """`requests` that were answered, their `prompt_tokens` and `tokens`, and those `without usage`, which count as 0."""
        self.spent_elsewhere: tuple[int, float] = (0, 0.0)
        """Tokens and money that count against the same budgets: those of an evaluation's other systems."""
        self.folder: Path | None = None
        """Of the run or evaluation that is worked on: how to go on with it stands in messages."""
        self._room_of: dict[str, str] = {}
        """Model -> what the room of a reply is called there, where that has been learnt."""
        self._key = SecretStr("")
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open, self._since = 0, 0.0

    def open(self) -> None:
        """Find key and library, start the thread; the first ask does it where nobody else has."""
        if self._loop is not None:
            return
        try:
            import httpx
        except ImportError as error:
            raise UserMistake(f'hosts.{self.name}.api needs httpx: pip install "comas[api]"') from error
        self._key = SecretStr(self._find_key())
        headers = {"Accept-Encoding": "identity"}  # the limit on replies is one on what arrives
        if key := self._key.get_secret_value():
            headers["Authorization"] = f"Bearer {key}"
        n = self.config.concurrency
        limits = httpx.Limits(max_connections=n, max_keepalive_connections=n)
        self._client = httpx.AsyncClient(headers=headers, timeout=None, limits=limits)  # the whole request has one limit
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(started)), name=f"host-{self.name}", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _find_key(self) -> str:
        """The key, or nothing where none is wanted."""
        variable = self.config.key_env
        if variable is None:
            return ""
        key = os.environ.get(variable, "").strip()
        if not key:
            raise UserMistake(f"hosts.{self.name}.key_env: the environment variable {variable} is not set: export it, with the key")
        if not re.fullmatch(r"[!-~]+", key):  # otherwise the library says so, and repeats it
            raise UserMistake(f"hosts.{self.name}.key_env: what the environment variable {variable} holds cannot be a key: "
                              "it has spaces or letters beyond ASCII")
        return key

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._room, self._over = asyncio.Semaphore(self.config.concurrency), asyncio.Event()
        async with self._client:
            started.set_result(asyncio.get_running_loop())
            await self._over.wait()

    def close(self) -> None:
        """Close connections and end the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop = None

    def fits(self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> bool:
        """The server knows; what it refuses is a failure of that turn."""
        return True

    async def ask(
        self, turn: str, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling, seed: int, keep: bool, role: str
    ) -> Reply:
        """One reply; `logprob` is 0.0 unless `logprobs` is set and the server tells them."""
        if keep:
            raise UserMistake(f"turn {turn}: nobody learns at host {self.name}, which is behind an API: freeze its agents")
        self.open()
        assert self._loop is not None
        # no more than 31 bits of seed: servers differ in what they take
        body: dict[str, Any] = {
            "model": self.models[policy], "messages": [dict(m) for m in messages], "temperature": sampling.temperature,
            ROOMS[0]: sampling.max_tokens, "seed": seed & 0x7FFFFFFF,
        }
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}  # some servers take one of the two only
        body |= {"logprobs": True} if self.config.logprobs else {}
        began = time.perf_counter()
        try:
            said = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._answer(body, seed), self._loop))
        except (HostFailure, UserMistake) as error:
            error.__context__ = None  # what a library raised may repeat what the server sent, which may repeat the key
            raise
        seconds = time.perf_counter() - began
        return Reply(
            said.text, said.finished, self.versions[policy], said.prompt_tokens or 0, said.tokens or 0, said.logprob, seconds,
            thoughts=said.thoughts,
        )

    async def _answer(self, body: Mapping[str, Any], seed: int) -> Said:
        """Ask until there is an answer; a try that waits keeps its place, so that a busy server is asked less."""
        async with self._room:
            self._check_budget()
            with self._busy():
                for attempt in range(self.config.retries + 1):
                    try:
                        said = await self._post_renamed(body)
                    except Trouble as trouble:
                        self.events[trouble.kind] += 1
                        if attempt == self.config.retries:
                            self.events["given up"] += 1
                            raise HostFailure(f"{trouble} (tried {attempt + 1} times)") from None
                        await asyncio.sleep(self._pause(seed, attempt, trouble))
                    else:
                        self._count(said)
                        return said
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
        """Doubled each time, and somewhere between half and all of that, as the request's own seed says."""
        share = 0.5 + 0.5 * derive_seed(seed, "pause", attempt) / 2**63
        pause = min(self.delay * 2**attempt, LONGEST) * share
        if trouble.after is None:
            return pause
        if trouble.after > LONGEST:
            self.events["given up"] += 1
            raise HostFailure(f"{trouble}; the server asks to wait {trouble.after:.0f} seconds, longer than {LONGEST:.0f}")
        return trouble.after + min(pause, 1.0)  # not all of them in the same moment

    async def _post_renamed(self, body: Mapping[str, Any]) -> Said:
        """With the room of the reply under the name that the model wants; a refusal teaches it, once per model."""
        model = body["model"]
        for _ in ROOMS:
            name = self._room_of.get(model, ROOMS[0])
            try:
                return await self._post({**{k: v for k, v in body.items() if k != ROOMS[0]}, name: body[ROOMS[0]]})
            except Renamed:
                self._room_of[model] = ROOMS[1]
        raise AssertionError("the second name is never refused with Renamed")

    async def _post(self, body: Mapping[str, Any]) -> Said:
        import httpx

        try:
            async with asyncio.timeout(self.config.timeout), self._client.stream("POST", self.url, json=body) as response:
                data = bytearray()
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > LARGEST:
                        self.events["too large"] += 1
                        self.events["given up"] += 1
                        raise HostFailure(f"reply too large: more than {LARGEST} bytes")
        except TimeoutError:
            limit = f"{self.config.timeout:g} seconds (hosts.{self.name}.timeout)"
            raise Trouble("timeout", f"no whole answer within {limit}") from None
        except httpx.RequestError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                self.events["certificate"] += 1
                raise UserMistake(
                    f"host {self.name}: the certificate of {self.url} is not trusted: name its authority in SSL_CERT_FILE"
                ) from None
            kind = "no connection" if isinstance(error, httpx.ConnectError) else "broken off"
            raise Trouble(kind, f"{self.url}: {type(error).__name__} {self._plain(str(error))}") from None
        if 200 <= response.status_code < 300:
            return read_said(bytes(data))
        if ROOMS[0] in body and response.status_code in (400, 422) and ROOMS[1].encode() in data and b"support" in data:
            self.events[f"{ROOMS[0]} refused"] += 1
            raise Renamed
        raise self._refused(response.status_code, response.headers, bytes(data))

    def _refused(self, status: int, headers: Mapping[str, str], data: bytes) -> Exception:
        """What an answer other than 2xx means."""
        try:
            said = str(json.loads(data)["error"]["message"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            said = data.decode(errors="replace")
        told = f"{self.url} answers {status}: {self._plain(said)}"
        if status in AGAIN or status >= 500:
            return Trouble(str(status), told, wait_of(headers.get("retry-after")))
        self.events[str(status)] += 1
        self.events["given up"] += 1
        if status in (401, 403):
            key = f"the key in the environment variable {self.config.key_env}" if self.config.key_env else "no key was sent"
            return UserMistake(f"host {self.name}: {told}; check hosts.{self.name}.key_env ({key})")
        if status == 404 or status < 400:
            names = ", ".join(sorted(set(self.models.values())))
            return UserMistake(f"host {self.name}: {told}; check hosts.{self.name}.api, and that it has the model (base): {names}")
        if re.search(r"context|too long|maximum.{0,20}length", said, re.IGNORECASE):
            return HostFailure(f"the prompt and its reply do not fit the model's context: {told}")
        return HostFailure(told)

    def _plain(self, text: str) -> str:
        """A line of somebody else's words, without the key."""
        if key := self._key.get_secret_value():
            text = text.replace(key, "***")
        text = text[:10_000]  # of eight megabytes no more is looked at
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= 200 else text[:200] + " ..."

    def _count(self, said: Said) -> None:
        self.spent["requests"] += 1
        if said.prompt_tokens is None or said.tokens is None:
            self.spent["without usage"] += 1
        self.spent["prompt_tokens"] += said.prompt_tokens or 0
        self.spent["tokens"] += said.tokens or 0

    def money(self) -> float | None:
        """What the counted tokens have cost; None without a price."""
        if self.config.price is None:
            return None
        return (self.spent["prompt_tokens"] * self.config.price[0] + self.spent["tokens"] * self.config.price[1]) / 1e6

    def _check_budget(self) -> None:
        tokens, money = self.spent["prompt_tokens"] + self.spent["tokens"] + self.spent_elsewhere[0], self.money()
        money = None if money is None else money + self.spent_elsewhere[1]
        budgets = {"budget_tokens": (self.config.budget_tokens, tokens), "budget_money": (self.config.budget_money, money)}
        for name, (budget, used) in budgets.items():
            if budget is None or used is None:
                continue
            key = f"hosts.{self.name}.{name}"
            if unknown := self.spent["without usage"]:
                raise UserMistake(
                    f"host {self.name}: {unknown} replies came without usage, so {key} cannot be held: have the server report it, "
                    "or leave the budget out"
                )
            if used >= budget:
                cost = "" if money is None else f" at a cost of {money:.4f}"
                on = f" and go on: comas resume {shlex.quote(str(self.folder))} {key}=NUMBER" if self.folder else ""
                raise BudgetSpent(
                    f"host {self.name}: its budget is spent: {tokens} tokens{cost}, and {key} is {budget:g}; raise it{on}"
                )

    def account(self) -> dict[str, Any]:
        """What has been spent and what went wrong, as JSON."""
        return {"spent": dict(self.spent), "money": self.money(), "events": dict(self.events)}

    def restore(self, account: Mapping[str, Any]) -> None:
        """The inverse of `account`."""
        self.spent, self.events = Counter(account["spent"]), Counter(account["events"])

    async def learn(
        self, payoffs: Mapping[str, Sequence[Payoff]], method: Method
    ) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
        """Nothing: payoffs of frozen agents never leave the loop."""
        return {}, {}

    async def save(self, path: Path) -> None:
        """The account: there is nothing else."""
        (path / f"{self.name}.json").write_text(json.dumps(self.account()), encoding="utf-8")

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        self.restore(json.loads((path / f"{self.name}.json").read_text(encoding="utf-8")))


def read_said(data: bytes) -> Said:
    """A chat completion; whatever is not one is a `Trouble`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Trouble("invalid body", f"the answer is no JSON ({type(error).__name__}, {len(data)} bytes)") from None
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Trouble("invalid body", "the answer has no choices")
    choice: dict[str, Any] = choices[0]
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else 0
    if not isinstance(message, dict) or not isinstance(content, str | None):
        raise Trouble("invalid body", "the answer has no message")
    thoughts = message.get("reasoning_content")
    usage = found.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Said(
        _whole_text(content or ""), _whole_text(thoughts) if isinstance(thoughts, str) else "",
        choice.get("finish_reason") not in ("length", "content_filter"), _logprob(choice.get("logprobs")),
        _number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens")),
    )


def _whole_text(text: str) -> str:
    """Text as it came, but for halves of characters, which no file can hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _logprob(found: Any) -> float:
    """The sum over generated tokens; 0.0 where they are not told."""
    try:
        total = math.fsum(float(token["logprob"]) for token in found["content"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return 0.0
    return total if math.isfinite(total) else 0.0


def wait_of(said: str | None) -> float | None:
    """Seconds that a Retry-After asks for, which may be a number or a date; None where it says neither."""
    if said is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d+)?", said.strip()):
        return float(said)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
