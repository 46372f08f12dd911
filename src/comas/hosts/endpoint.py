"""One endpoint that speaks OpenAI's chat protocol, asked by the package `openai`: what is sent and
in how many tries, what refusals mean, what servers and models are learnt to take.

The library says when a request is tried again. Each try passes through `ApiClient._try`, which
sends what the config says and nothing of what the library finds in the environment, limits it, and
counts what it costs. What cannot work is a mistake in one line before any request. Imported where a
host is opened, since the library takes half a second. Leaves out: reading completions
(`hosts.completion`), budgets (`hosts.ledger`).
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import anyio
import httpx2
import openai
from pydantic import SecretStr

from comas.hosts.completion import (
    Completion,
    NoRoomAtServer,
    RefusedByServer,
    Unanswered,
    Unusable,
    body_of,
    error_in,
    read_completion,
)
from comas.hosts.keys import ApiTable as Table
from comas.hosts.ledger import Ledger
from comas.types import HostFailure, Sampling, UserMistake

PATH = "/chat/completions"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""Variables that the library reads, in small letters and in capitals."""
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
LARGEST = 8_000_000
"""Bytes of a reply; one that is larger is given up."""
LONGEST = 120.0
"""Seconds for which the library lets a server make us wait; one that asks for more has failed."""
AGAIN = (408, 409, 429)
"""Statuses, besides 5xx, after which the library asks again."""
GIVEN_UP = (502, 504, 524)
"""Statuses of a gateway behind which a server may go on, and bill it."""
WAITS = ("retry-after-ms", "retry-after", "x-should-retry")
"""Headers by which a server says when to ask again."""
MAX_TOKENS = "max_tokens"
NEWER_MAX_TOKENS = "max_completion_tokens"
"""Name of `max_tokens` for newer models of OpenAI; most other servers know the older one alone."""
REPEATED = 3
"""Different prompts in a row that a model which has answered turns down by 403 or 404: then it is
no matter of a single one.
"""
UNPAID = (
    *("402", "insufficient_quota", "insufficient_credits", "insufficient_balance", "arrearage"),
    *("billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"),
    *("billing_error", "insufficient_user_quota"),
)
"""Codes and types of errors, in small letters, that mean an empty account, whatever the status."""
UNPAID_WORDS = re.compile(
    r"insufficient (credit|balance|fund)|(credit|account) balance is too low|out of credits"
    r"|payment required|余额不足|欠费",
    re.IGNORECASE,
)
"""Words that mean an empty account, among the first ones of a message."""
BROKEN = (httpx2.RequestError, OSError, anyio.EndOfStream)
"""Errors of a connection; the last two come through the library from TLS."""


class _Again(httpx2.RequestError):
    """Error that the library takes for a broken connection, after which it tries again."""

    def __init__(self, failure: Unanswered) -> None:
        super().__init__(str(failure))
        self.failure = failure


class _Final(openai.OpenAIError):
    """Error that the library passes on at once."""

    def __init__(self, error: HostFailure | UserMistake) -> None:
        super().__init__(str(error))
        self.error = error


Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
"""Sends a request, and leaves the body of its answer to be read."""


class Tries(openai.DefaultAsyncHttpxClient):
    """The library's HTTP client, of which each `send` is one try."""

    def __init__(
        self, one_try: Callable[[httpx2.Request, Send], Awaitable[httpx2.Response]], **keys: Any
    ) -> None:
        super().__init__(**keys)
        self.one_try = one_try

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Make one try; redirects are never followed."""
        return await self.one_try(request, partial(super().send, stream=True))


class ApiClient:
    """Takes requests of one host, one at a time or many at once."""

    def __init__(self, host: str, config: Table, models: Sequence[str], ledger: Ledger) -> None:
        """Find the key, check address and proxies, and make a client for as many connections as
        requests may be open; it belongs to the first event loop that it is used in.
        """
        self.host = host
        self.config = config
        self.models = models
        self.ledger = ledger
        address = (config.api or "").rstrip("/")
        self.url = f"{address}{PATH}"
        key = f"hosts.{host}.api = {config.api!r}"
        if address.endswith(PATH):
            raise UserMistake(f"{key}: leave {PATH} out, it is added to what stands there")
        self._secrets = _secrets_of(host, config)
        try:
            httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise UserMistake(f"{key} is no address: {error}") from None
        self._http = self._made_client()
        self.library = openai.AsyncOpenAI(
            # all that it would look up in the environment; `_try` sends none of it
            api_key="unused",
            organization="",
            project="",
            base_url=address,
            http_client=self._http,
        )
        self._taken: dict[str, dict[str, str | int | None]] = {model: {} for model in models}
        """Model -> parameters that it has refused -> under which name it takes them, up to which
        number, or None for not at all.
        """
        self._turned_down: dict[str, set[str]] = {}
        """Model that has answered -> prompts that it has turned down since."""

    def _made_client(self) -> Tries:
        n = self.config.concurrency
        try:
            return Tries(
                self._try,
                # no request may depend on the ones before
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                timeout=None,  # each try has one limit
                limits=httpx2.Limits(max_connections=n, max_keepalive_connections=n),
                follow_redirects=False,
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
                ' pip install "httpx2[socks]"; or unset it'
            ) from None
        except (ValueError, httpx2.InvalidURL):
            raise UserMistake(
                f"host {self.host}: what {_that_are_set(PROXIES)} holds names no proxy that can be"
                " used: correct it, or unset it"
            ) from None

    def body(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Sampling, seed: int
    ) -> dict[str, Any]:
        """The JSON that asks for a reply."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{key: _sendable(text) for key, text in m.items()} for m in messages],
            "temperature": sampling.temperature,
            MAX_TOKENS: sampling.max_tokens,
            # no more than 31 bits: servers differ in what they take
            "seed": seed & 0x7FFFFFFF,
        }
        # some servers take one of temperature and top_p only
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        body |= {"logprobs": True} if self.config.logprobs else {}
        return {**(self.config.body or {}), **body}

    # --- a request, in several tries

    async def post(self, body: Mapping[str, Any], retries: int) -> Completion:
        """Send a request as far as the model takes what it says: a refusal names a parameter that
        it does not take, and an answer without it proves that, once per model.
        """
        model = body["model"]
        taken = dict(self._taken[model])
        while True:
            sent = _as_taken(body, taken)
            try:
                response = await self.library.post(
                    PATH, cast_to=httpx2.Response, body=sent, options={"max_retries": retries}
                )
            except _Final as final:
                raise final.error from None
            except openai.APIStatusError as error:
                message = _error_of(error.response.content)[0]
                change = _change_of(sent, message) if error.status_code in (400, 422) else {}
                if not change:
                    raise self._refused(error.response, sent, message) from None
                taken |= change
            except openai.APIConnectionError as error:
                failure = error.__cause__
                assert isinstance(failure, _Again)
                failure.failure.tries = _tries(error.request)
                raise failure.failure from None
            else:
                for name in taken.keys() - self._taken[model].keys():
                    self.ledger.events[f"{name} refused"] += 1
                self._taken[model] |= taken
                self._turned_down[model] = set()
                return response.extensions["completion"]

    def _refused(
        self, response: httpx2.Response, sent: Mapping[str, Any], message: str
    ) -> Exception:
        """Return the error that the last response other than 2xx means."""
        status = response.status_code
        answer = f"{self.url} answers {status}: {self._plain(message)}"
        if status in AGAIN or status >= 500:
            after = _wait_of(response.headers)
            if after is not None and after > LONGEST:
                answer += (
                    f"; the server asks to wait {after:.0f} seconds, longer than {LONGEST:.0f}"
                )
            failure = Unanswered(str(status), answer, after)
            failure.tries = _tries(response.request)
            return failure
        self.ledger.events[str(status)] += 1
        if self._is_of_one_prompt(status, sent):
            return RefusedByServer(answer, self._plain(message))
        if status < 400 or status in (401, 403, 404, 407):
            self.ledger.events["given up"] += 1
            return UserMistake(f"host {self.host}: {answer}; {self._remedy(status)}")
        if re.search(r"context|too long|maximum.{0,20}length", message, re.IGNORECASE):
            answer = f"the prompt and its reply do not fit the model's context: {answer}"
            return NoRoomAtServer(answer, self._plain(message))
        if re.search(r"\btemperature\b.*\btop_p\b|\btop_p\b.*\btemperature\b", message):
            answer += "; top_p is sent where it is not 1: leave it at 1"
        elif re.search(r"\btemperature\b", message):
            answer += (
                "; models that take one temperature only take 1: set"
                " agents.<name>.temperature=1 for its agents, in an evaluation eval_temperature=1"
            )
        elif re.search(r"\bsystem\b|developer instruction", message, re.IGNORECASE) and any(
            m["role"] == "system" for m in sent["messages"]
        ):
            answer += (
                "; a model that takes no system message can have no persona: leave"
                " agents.<name>.system out"
            )
        return RefusedByServer(answer, self._plain(message))

    def _is_of_one_prompt(self, status: int, sent: Mapping[str, Any]) -> bool:
        """Whether a refusal may be of this prompt alone: the model has answered others, and has not
        turned down one after the other since.
        """
        prompts = self._turned_down.get(sent["model"])
        if status not in (403, 404) or prompts is None:
            return False
        prompts.add(json.dumps(sent["messages"]))
        return len(prompts) < REPEATED

    def _remedy(self, status: int) -> str:
        """Say what to check where a server will not answer anybody like us."""
        if status == 407:
            return "a proxy wants a user: name it in the variable that names the proxy"
        if status in (401, 403):
            key = "no key was sent"
            if self.config.key_env:
                key = f"the key in the environment variable {self.config.key_env}"
            return f"check hosts.{self.host}.key_env ({key})"
        names = ", ".join(self.models)
        return f"check hosts.{self.host}.api, and that it has the model (base): {names}"

    # --- one try

    async def _try(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Answer one try of the library's: with a completion, a status that it is to judge, or an
        error after which it tries again or not.
        """
        try:
            self.ledger.check_budget()  # a try that came to nothing may have been billed
            return await self._exchange(request, send)
        except Unanswered as failure:
            self.ledger.events[failure.kind] += 1
            raise _Again(failure) from None
        except (HostFailure, UserMistake) as error:
            raise _Final(error) from None

    async def _exchange(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Send a request, and count what its answer says that it has cost."""
        sent = json.loads(request.content)
        most = sent.get(MAX_TOKENS) or sent.get(NEWER_MAX_TOKENS) or 0
        # no token is shorter than a byte, and the frame of JSON is longer than any template
        bounds = (len(request.content), most)
        response, data = await self._answer(request, send, bounds)
        status = response.status_code
        message, code = _error_of(data)
        if 200 <= status < 300 and (within := _status_of(code)) is not None:
            status = within
            if status in GIVEN_UP:
                self.ledger.count_unsettled(*bounds)
        if 200 <= status < 300:
            completion = self._read(data, response.charset_encoding, bounds)
            return httpx2.Response(status, request=request, extensions={"completion": completion})
        is_unpaid = status == 402 or code.lower() in UNPAID
        # of a busy server such words tell little, and a prompt that is repeated may have them
        if status != 429 and not UNPAID_WORDS.search(request.content.decode()):
            is_unpaid = is_unpaid or UNPAID_WORDS.search(message[:200]) is not None
        if is_unpaid:
            refusal = f"{self.url} answers {status}: {self._plain(message)}"
            raise self.ledger.out_of_credit(refusal)
        if status in AGAIN or status >= 500:
            self.ledger.events[str(status)] += 1
        headers = {name: response.headers[name] for name in WAITS if name in response.headers}
        return httpx2.Response(status, headers=headers, content=data, request=request)

    async def _answer(
        self, request: httpx2.Request, send: Send, bounds: tuple[int, int]
    ) -> tuple[httpx2.Response, bytes]:
        """The answer and its body. Where nobody tells what a request has cost, the most that it may
        have cost is counted: `bounds`, tokens of the prompt and of the reply.
        """
        secrets = {name: secret.get_secret_value() for name, secret in self._secrets.items()}
        # bodies are not packed: the limit on replies is one on what arrives
        plain = {"Accept": "application/json", "Accept-Encoding": "identity"}
        headers = {"Content-Type": "application/json", **plain, **secrets}
        ours = self._http.build_request("POST", self.url, content=request.content, headers=headers)
        is_settled = False  # nor is it where nobody waits for it any more
        data = bytearray()
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await send(ours)
                try:
                    async for chunk in response.aiter_bytes():
                        data += chunk
                        if len(data) > LARGEST:
                            self.ledger.events["too large"] += 1
                            raise HostFailure(f"reply too large: more than {LARGEST} bytes")
                finally:
                    await response.aclose()
            is_settled = response.status_code not in GIVEN_UP
            return response, bytes(data)
        except TimeoutError:
            limit = f"{self.config.timeout:g} seconds (hosts.{self.host}.timeout)"
            raise Unanswered("timeout", f"no whole answer within {limit}") from None
        except (ValueError, OverflowError, ExceptionGroup) as error:
            # what the look-up of names and ports raises for what can be written, and is none
            is_settled = True
            raise UserMistake(
                f"host {self.host}: {self.url} cannot be reached ({type(error).__name__}): check"
                f" hosts.{self.host}.api{through_proxies()}"
            ) from None
        except BROKEN as error:
            is_settled = isinstance(error, httpx2.ConnectError)
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                self.ledger.events["certificate"] += 1
                raise UserMistake(
                    f"host {self.host}: the certificate of {self.url} is not trusted: name its"
                    " authority in SSL_CERT_FILE"
                ) from None
            reason = f"{self.url}: {type(error).__name__} {self._plain(str(error))}"
            kind = "no connection" if is_settled else "broken off"
            raise Unanswered(kind, reason, nowhere=_is_unknown_name(error)) from None
        finally:
            if not is_settled:
                self.ledger.count_unsettled(*bounds)

    def _read(self, data: bytes, encoding: str | None, bounds: tuple[int, int]) -> Completion:
        """Read a 2xx; whatever comes of it, what it has cost is counted."""
        try:
            completion = read_completion(data, encoding)
        except Unusable as wrong:
            if wrong.usage.is_complete:
                self.ledger.count(wrong.usage)
            else:
                self.ledger.count_unsettled(*bounds)
            reason = self._plain(str(wrong))
            raise Unusable(reason, wrong.usage, kind=wrong.kind, empty=wrong.empty) from None
        self.ledger.count(completion.usage)
        if completion.filtered:
            self.ledger.events["content filter"] += 1
        if not completion.is_reason_known:
            self.ledger.events["unknown finish_reason"] += 1
        return completion

    def _plain(self, text: str) -> str:
        """A line of somebody else's words, without our secrets."""
        for secret in self._secrets.values():
            text = text.replace(secret.get_secret_value().removeprefix("Bearer "), "***")
        text = text[:10_000]  # of eight megabytes no more is looked at
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= 200 else text[:200] + " ..."


def _sendable(text: str) -> str:
    """Text without halves of characters, which UTF-8 cannot hold."""
    return text.encode(errors="replace").decode()


def _as_taken(body: Mapping[str, Any], taken: Mapping[str, str | int | None]) -> Mapping[str, Any]:
    """A request in the way in which its model takes it."""
    sent: dict[str, Any] = {}
    for key, value in body.items():
        match taken.get(key, key):
            case str(name):
                sent[name] = value
            case int(most):
                sent[key] = min(value, most)
            case None if key == "temperature" and value != 1.0:
                sent[key] = value  # which the model refuses: what it has is 1
            case None:
                pass
    return sent


def _change_of(sent: Mapping[str, Any], message: str) -> dict[str, str | int | None]:
    """A parameter without which, under another name, or with a smaller number the same model may
    take a request; empty where a refusal names none.
    """
    if MAX_TOKENS in sent and NEWER_MAX_TOKENS in message and "support" in message:
        return {MAX_TOKENS: NEWER_MAX_TOKENS}
    if "top_logprobs" in sent and re.search(r"\b(?:top_|sample )logprobs\b", message):
        numbers = [int(number) for number in re.findall(r"(?<![\w.-])\d{1,2}(?!\w|\.\d)", message)]
        smaller = [number for number in numbers if 0 < number < sent["top_logprobs"]]
        if smaller:
            return {"top_logprobs": max(smaller)}
    if "seed" in sent and re.search(r"\bseed\b", message):
        return {"seed": None}
    # refused outright: a model that has one temperature has that of the protocol, which is 1
    is_of_temperature = re.search(r"\btemperature\b", message) and "top_p" not in message
    if sent.get("temperature") == 1.0 and is_of_temperature:
        return {"temperature": None}
    return {}


def _status_of(code: str) -> int | None:
    """The status that the code of an error in a 2xx stands for; None where it is none."""
    if code.lower() in UNPAID:
        return 402
    return int(code) if re.fullmatch(r"[45]\d\d", code) else None


def _error_of(data: bytes) -> tuple[str, str]:
    """Return the message of an error, and the name that it gives itself."""
    try:
        return error_in(body_of(data), data)
    except (ValueError, LookupError, RecursionError):
        return data.decode(errors="replace"), ""


def _tries(request: httpx2.Request) -> int:
    """How often the library has made a request by now."""
    return int(request.headers.get("x-stainless-retry-count", 0)) + 1


def _wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, which it may give as a date; None where it does not."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if re.fullmatch(r"\d{1,12}(\.\d+)?", value := headers.get(name, "").strip()):
            return float(value) / unit
    if (date := email.utils.parsedate_tz(headers.get("retry-after"))) is None:
        return None
    try:
        return max(0.0, email.utils.mktime_tz(date) - time.time())
    except (ValueError, OverflowError):  # a date that no calendar has
        return None


def _secrets_of(host: str, config: Table) -> dict[str, SecretStr]:
    """The headers that hold what environment variables hold."""
    secrets: dict[str, SecretStr] = {}
    if config.key_env is not None:
        key = _secret(f"hosts.{host}.key_env", config.key_env, r"[!-~]+")
        secrets["Authorization"] = SecretStr(f"Bearer {key}")
    for name, variable in (config.header_env or {}).items():
        secrets[name] = SecretStr(_secret(f"hosts.{host}.header_env.{name}", variable, r"[ -~]+"))
    return secrets


def _secret(key: str, variable: str, pattern: str) -> str:
    """Read an environment variable; UserMistake where it is not set, or no header can hold its
    value.
    """
    secret = os.environ.get(variable, "").strip()
    if not secret:
        raise UserMistake(
            f"{key}: the environment variable {variable} is not set: export it, with the key"
        )
    if not re.fullmatch(pattern, secret):  # otherwise the library says so, and repeats it
        raise UserMistake(
            f"{key}: what the environment variable {variable} holds cannot be a key: it has spaces"
            " or letters beyond ASCII"
        )
    return secret


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
