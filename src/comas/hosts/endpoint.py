"""One endpoint that speaks OpenAI's chat protocol: its address and key, the client with the proxies
and certificates of the environment, and one request: what is sent, what its answer says, what is
wrong with it, and what it has cost.

What cannot work is a mistake in one line before any request. Leaves out: when to ask, and again
(`hosts.api`), keeping what was spent in a folder (`team.spending`), streams.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import numpy as np
from pydantic import SecretStr

from comas.hosts.table import ApiTable as Table
from comas.program import Work
from comas.types import HostFailure, Sampling, UserMistake

MOST = 10**12
"""Tokens that one answer may cost; a number above is no count."""
FAILED = ("abort", "error")
"""Reasons for an end, in vLLM's words, that are failures of the server."""
_MARK = re.compile("</?think>")


class Trouble(Exception):
    """A request that may succeed if it is made again."""

    def __init__(
        self, kind: str, said: str, after: float | None = None, *, nowhere: bool = False
    ) -> None:
        """`kind` is what it counts as; `after` the seconds that the server asks to wait; `nowhere`:
        there is no machine of that name.
        """
        super().__init__(said)
        self.kind = kind
        self.after = after
        self.nowhere = nowhere


@dataclass(frozen=True)
class Usage:
    """What an answer has cost; None where the server does not tell."""

    prompt_tokens: int | None = None
    tokens: int | None = None

    @property
    def told(self) -> bool:
        """Whether the server told all of it."""
        return self.prompt_tokens is not None and self.tokens is not None


class Unusable(Trouble):
    """An answer of 2xx that says nothing, and may have cost all the same."""

    def __init__(
        self, said: str, usage: Usage | None = None, *, kind: str = "invalid body"
    ) -> None:
        super().__init__(kind, said)
        self.usage = usage or Usage()


@dataclass(frozen=True)
class Said:
    """What is read from an answer."""

    text: str
    thoughts: str
    finished: bool
    logprob: float
    usage: Usage
    filtered: bool = False
    """Whether a filter of the server's ended it: the text is empty then."""
    first: Mapping[str, float] | None = None
    """Log-probs of the first token and its alternatives, by their text, added up where texts differ
    in the space around them; None where the server does not tell.
    """


def read_said(data: bytes) -> Said:
    """A chat completion; whatever is not one is `Unusable`."""
    try:
        body: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable(
            f"the answer is no JSON ({type(error).__name__}, {len(data)} bytes)"
        ) from None
    body = body if isinstance(body, dict) else {}
    usage = _usage(body.get("usage"))
    match body.get("choices"):
        case [dict(choice), *_]:
            reason = choice.get("finish_reason")
        case _:
            raise Unusable(f"the answer has no choices: {words_of(data)[0]}", usage)
    if reason in FAILED:
        raise Unusable(f"the server ended its answer with {reason!r}", usage, kind="broken off")
    message = choice.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
        raise Unusable("the answer has no message of text", usage)
    content = message.get("content")
    if not content and isinstance(refusal := message.get("refusal"), str):
        content = refusal
    text, thoughts_within = split_thoughts(content or "")
    # vLLM and Ollama spell the key of thoughts in two ways
    apart = (message.get(key) for key in ("reasoning_content", "reasoning"))
    reasoning = next(
        (text_apart for text_apart in apart if isinstance(text_apart, str) and text_apart), ""
    )
    thoughts = "\n".join(filter(None, (reasoning, thoughts_within)))
    if usage.tokens == 0 and (text or thoughts):  # nobody writes with no token
        usage = Usage(usage.prompt_tokens, None)
    is_filtered = reason == "content_filter"
    return Said(
        "" if is_filtered else _whole_text(text),
        _whole_text(thoughts),
        reason != "length",
        _logprob(choice.get("logprobs")),
        usage,
        is_filtered,
        _first_token(choice.get("logprobs")),
    )


def split_thoughts(content: str) -> tuple[str, str]:
    """Text and thoughts, by the rule of local hosts (`engines.chat`): the text is what follows the
    last thought, and where one is still open there is none. Tokens are not seen here, so that the
    spelling of the marks tells.
    """
    marks = list(_MARK.finditer(content))
    if not marks:
        return content, ""
    start = len(content) if marks[-1][0] == "<think>" else marks[-1].end()
    return content[start:].strip(), _MARK.sub("", content[:start]).strip()


def _usage(usage: Any) -> Usage:
    """The numbers of `usage`; None where one is none, and of a prompt of no token."""
    table: Any = usage if isinstance(usage, dict) else {}
    counts = [table.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, generated = (n if type(n) is int and 0 <= n <= MOST else None for n in counts)
    return Usage(prompt or None, generated)


def _whole_text(text: str) -> str:
    """Text as it came, but for halves of characters, which no file can hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _logprob(value: Any) -> float:
    """The sum over generated tokens; 0.0 where they are not told."""
    try:
        total = math.fsum(float(token["logprob"]) for token in value["content"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return 0.0
    return total if math.isfinite(total) else 0.0


SLACK = 0.01
"""Nats by which rounding may put a log-prob above 0."""


def _first_token(found: Any) -> dict[str, float] | None:
    """Log-probs of the alternatives to the first token; None where they are not told."""
    try:
        listed = found["content"][0]["top_logprobs"]
        alternatives = [(str(one["token"]).strip(), float(one["logprob"])) for one in listed]
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return None
    by_word: dict[str, float] = {}
    for text, logprob in alternatives:
        if logprob > SLACK or math.isnan(logprob):
            return None
        if math.isfinite(logprob):
            by_word[text] = float(np.logaddexp(logprob, by_word.get(text, -math.inf)))
    return by_word or None


REST = 30.0
"""Seconds in which a server that wants to be paid is not asked again: games that wait for their
turn would all ask it.
"""


class BudgetSpent(UserMistake):
    """No further request is made; those that are open may end."""


class Ledger:
    """Counts tokens, money and what went wrong, over all processes."""

    def __init__(self, host: str, config: Table, work: Work | None = None) -> None:
        self.host = host
        self.config = config
        self.events: Counter[str] = Counter()
        """What went wrong, and how often: `429`, `timeout`, `invalid body` ...; `given up`:
        requests that got no answer.
        """
        self.spent: Counter[str] = Counter()
        """`requests` that were answered, their `prompt_tokens` and `tokens`, and those `without
        usage`, which count as 0.
        """
        self.unsettled: Counter[str] = Counter()
        """`requests` without an answer that may be billed, and the `prompt_tokens` and `tokens`
        that they cost at most.
        """
        self.elsewhere: tuple[int, float] = (0, 0.0)
        """Tokens and money that count against the same budgets: those of an evaluation's other
        systems.
        """
        self._unpaid: tuple[float, str] = (-math.inf, "")
        """When the server last wanted to be paid, and how that is told."""
        self.work = work or Work()

    def count(self, usage: Usage) -> None:
        """Add an answer."""
        self.spent["requests"] += 1
        if not usage.told:
            self.spent["without usage"] += 1
        self.spent["prompt_tokens"] += usage.prompt_tokens or 0
        self.spent["tokens"] += usage.tokens or 0

    def count_unsettled(self, prompt_tokens: int, tokens: int) -> None:
        """Add a request of which nobody told what it has cost, with what it can
        have cost at most.
        """
        self.unsettled.update(requests=1, prompt_tokens=prompt_tokens, tokens=tokens)

    def money(self, counted: Mapping[str, int] | None = None) -> float | None:
        """What the counted tokens have cost; None without a price."""
        if self.config.price is None:
            return None
        counted = self.spent if counted is None else counted
        prompt, generated = self.config.price
        return (
            counted.get("prompt_tokens", 0) * prompt + counted.get("tokens", 0) * generated
        ) / 1e6

    def check_budget(self) -> None:
        """An error where a budget is spent, or cannot be held."""
        since, refusal = self._unpaid
        if time.monotonic() - since < REST:
            raise BudgetSpent(refusal)
        self.check_told()
        used = self.spent + self.unsettled
        tokens = used["prompt_tokens"] + used["tokens"] + self.elsewhere[0]
        money = self.money(used)
        money = None if money is None else money + self.elsewhere[1]
        for name, amount in (("budget_tokens", tokens), ("budget_money", money)):
            budget = getattr(self.config, name)
            if budget is None or amount is None or amount < budget:
                continue
            key = f"hosts.{self.host}.{name}"
            cost = "" if money is None else f" at a cost of {money:.4f}"
            if self.unsettled:
                most = self.unsettled["prompt_tokens"] + self.unsettled["tokens"]
                requests = f"{self.unsettled['requests']} requests that were not answered"
                cost += f" (up to {most} of them by {requests})"
            raise BudgetSpent(
                f"host {self.host}: its budget is spent: {tokens} tokens{cost}, and {key} is"
                f" {budget:g}; raise it{self.work.going_on(f'{key}=NUMBER')}"
            )

    def out_of_credit(self, answer: str) -> BudgetSpent:
        """What was paid for at the server is used up: waiting does not help, and what has been
        played is kept.
        """
        self.events["out of credit"] += 1
        answer = (
            f"host {self.host}: {answer}; what was paid for there is used up: add to"
            f" it{self.work.going_on()}"
        )
        self._unpaid = (time.monotonic(), answer)
        return BudgetSpent(answer)

    def check_told(self) -> None:
        """An error where there is a budget, and the server does not tell what its answers cost."""
        unknown = self.spent["without usage"]
        for name in ("budget_tokens", "budget_money"):
            if unknown and getattr(self.config, name) is not None:
                key = f"hosts.{self.host}.{name}"
                raise UserMistake(
                    f"host {self.host}: {unknown} replies came without usage, so {key} cannot be"
                    " held: have the server report it, or leave the budget"
                    f" out{self.work.going_on(f'{key}=none')}"
                )

    def account(self) -> dict[str, Any]:
        """What has been spent and what went wrong, as JSON."""
        account: dict[str, Any] = {
            "spent": dict(self.spent),
            "money": self.money(),
            "events": dict(self.events),
        }
        if self.unsettled:
            account["unsettled"] = {**self.unsettled, "money": self.money(self.unsettled)}
        return account

    def restore(self, account: Mapping[str, Any]) -> None:
        """The inverse of `account`."""
        unsettled = {**account.get("unsettled", {})}
        unsettled.pop("money", None)
        saved = account["spent"], account["events"], unsettled
        for counter, counts in zip((self.spent, self.events, self.unsettled), saved, strict=True):
            counter.clear()
            counter.update(counts)


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
        key = f"hosts.{self.host}.api = {self.config.api!r}"
        if (self.config.api or "").rstrip("/").endswith(PATH):
            raise UserMistake(f"{key}: leave {PATH} out, it is added to what stands there")
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise UserMistake(f"{key} is no address: {error}") from None
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
            reason = error.strerror or type(error).__name__
            where = _that_are_set(CERTIFICATES) or "the system's certificates"
            raise UserMistake(
                f"host {self.host}: certificates cannot be read ({reason}): correct {where}, or"
                " unset it"
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
                return self._read(sent, body[ROOM], data)
            message, code = words_of(data)
            refused = _refused_parameter(sent, message) if status in (400, 422) else None
            if refused is None:
                raise self._refused(status, headers, message, code)
            taken[refused] = NEWER_ROOM if refused == ROOM else None

    async def _exchange(
        self, body: Mapping[str, Any], room: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of what is answered; where nobody tells what a request has cost,
        what it may have cost is counted.
        """
        import httpx

        sent = _as_json(body)
        is_settled = False  # nor is it where nobody waits for it any more
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
            is_settled = response.status_code not in GIVEN_UP
            return response.status_code, response.headers, bytes(data)
        except TimeoutError:
            limit = f"{self.config.timeout:g} seconds (hosts.{self.host}.timeout)"
            raise Trouble("timeout", f"no whole answer within {limit}") from None
        except (ValueError, OverflowError, ExceptionGroup) as error:
            # what the look-up of names and ports raises for what can be written, and is none
            is_settled = True
            raise UserMistake(
                f"host {self.host}: {self.url} cannot be reached ({type(error).__name__}): check"
                f" hosts.{self.host}.api{through_proxies()}"
            ) from None
        except httpx.RequestError as error:
            is_settled = isinstance(error, httpx.ConnectError)
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                self.ledger.events["certificate"] += 1
                raise UserMistake(
                    f"host {self.host}: the certificate of {self.url} is not trusted: name its"
                    " authority in SSL_CERT_FILE"
                ) from None
            reason = f"{self.url}: {type(error).__name__} {self._plain(str(error))}"
            kind = "no connection" if is_settled else "broken off"
            raise Trouble(kind, reason, nowhere=_is_unknown_name(error)) from None
        finally:
            if not is_settled:
                self.ledger.count_unsettled(len(sent), room)

    def _read(self, sent: Mapping[str, Any], room: int, data: bytes) -> Said:
        """What a 2xx says; whatever comes of it, what it has cost is counted."""
        try:
            completion = read_said(data)
        except Unusable as wrong:
            if wrong.usage.told:
                self.ledger.count(wrong.usage)
            else:
                self.ledger.count_unsettled(len(_as_json(sent)), room)
            reason = self._plain(str(wrong))
            raise Unusable(reason, wrong.usage, kind=wrong.kind) from None
        self.ledger.count(completion.usage)
        if completion.filtered:
            self.ledger.events["content filter"] += 1
        return completion

    def _refused(
        self, status: int, headers: Mapping[str, str], message: str, code: str
    ) -> Exception:
        """What an answer other than 2xx means."""
        answer = f"{self.url} answers {status}: {self._plain(message)}"
        if status == 402 or code == "insufficient_quota":
            return self.ledger.out_of_credit(answer)
        if status in AGAIN or status >= 500:
            wait = headers.get("retry-after", "").strip()
            is_number = re.fullmatch(r"\d{1,9}(\.\d+)?", wait)
            return Trouble(str(status), answer, float(wait) if is_number else None)
        self.ledger.events[str(status)] += 1
        if status < 400 or status in (401, 403, 404, 407):
            self.ledger.events["given up"] += 1
        if status == 407:
            return UserMistake(
                f"host {self.host}: {answer}; a proxy wants a user: name it in the variable that"
                " names the proxy"
            )
        if status in (401, 403):
            key = "no key was sent"
            if self.config.key_env:
                key = f"the key in the environment variable {self.config.key_env}"
            return UserMistake(
                f"host {self.host}: {answer}; check hosts.{self.host}.key_env ({key})"
            )
        if status == 404 or status < 400:
            names = ", ".join(self.models)
            return UserMistake(
                f"host {self.host}: {answer}; check hosts.{self.host}.api, and that it has the"
                f" model (base): {names}"
            )
        if re.search(r"context|too long|maximum.{0,20}length", message, re.IGNORECASE):
            return Refused(
                f"the prompt and its reply do not fit the model's context: {answer}", message
            )
        if re.search(r"\btemperature\b", message):
            answer += (
                "; models that take one temperature only take 1: set"
                " agents.<name>.temperature=1 for its agents, in an evaluation eval_temperature=1"
            )
        return Refused(answer, message)

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


def _refused_parameter(sent: Mapping[str, Any], message: str) -> str | None:
    """The parameter without which, or under another name, the same model may take a request."""
    if ROOM in sent and NEWER_ROOM in message and "support" in message:
        return ROOM
    if "seed" in sent and re.search(r"\bseed\b", message):
        return "seed"
    # refused outright: a model that has one temperature has that of the protocol, which is 1
    if sent.get("temperature") == 1.0 and re.search(r"\btemperature\b", message):
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
