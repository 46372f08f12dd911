"""A host of other people's models: any endpoint that speaks OpenAI's `POST {url}/chat/completions`.

It answers and never learns; what it costs is counted, and a budget stops the run. Requests live in
a thread and an event loop of their own, so that connections outlast the loops that ask. Leaves out:
learning, token ids, the size of the server's context; requests (`hosts.endpoint`), what they cost
(`hosts.ledger`) and what is read from answers (`hosts.completion`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from comas.game.weighing import said_of
from comas.hosts.completion import Completion, RefusedByServer, Unanswered, Unusable
from comas.hosts.keys import ApiTable as Table
from comas.hosts.ledger import Ledger
from comas.hosts.plan import HostPlan
from comas.sync import Busy
from comas.types import (
    Account,
    Ask,
    Calls,
    Fit,
    HostFailure,
    Learned,
    Reply,
    Sampling,
    ToldToWait,
    TurnReward,
    UserMistake,
)

if TYPE_CHECKING:
    from comas.hosts.endpoint import ApiClient

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds in which a server that does not answer the first request is asked again: it may be
starting up.
"""
FIRST, LAST = 0.5, 5.0
"""Seconds between two such tries: first, and at most."""
ALTERNATIVES = 20
"""Likeliest first tokens of which log-probs are asked for: as many as OpenAI's protocol allows."""
GREETING = ({"role": "user", "content": "Hello"},)


class ApiHost:
    """Policies are names of models at one endpoint."""

    learns = False
    meter = None

    def __init__(self, name: str, models: Mapping[str, str], config: Table) -> None:
        self.name = name
        self.models = dict(models)
        self.config = config
        self.versions = dict.fromkeys(models, 0)
        self.busy = Busy()
        self.ledger = Ledger(name, config)
        self.spent = self.ledger.spent
        self.events = self.ledger.events
        self._client: ApiClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> ApiClient:
        """Find key and library, check address and proxies, start the thread; the first ask does it
        where nobody else has.
        """
        if self._loop is not None:
            assert self._client is not None
            return self._client
        try:
            from comas.hosts.endpoint import ApiClient
        except ImportError as error:
            raise UserMistake(
                f'hosts.{self.name}.api needs openai: pip install "comas[api]"'
            ) from error
        models = sorted(set(self.models.values()))
        client = self._client = ApiClient(self.name, self.config, models, self.ledger)
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(client, started)),
            name=f"host-{self.name}",
            daemon=True,
        )
        self._thread.start()
        self._loop = started.result()
        return client

    async def _live(self, client: ApiClient, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._room = asyncio.Semaphore(self.config.concurrency)
        self._over = asyncio.Event()
        async with client.library:
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

    async def ask(self, ask: Ask) -> Reply:
        """One reply; `logprob` is 0.0 unless `logprobs` is set and the server tells them."""
        return (await self._reply(ask, ask.sampling, {}))[0]

    async def _reply(
        self, ask: Ask, sampling: Sampling, also: Mapping[str, Any]
    ) -> tuple[Reply, Completion]:
        """Return the reply to an ask, and all that the server tells; `also` is what the request
        says besides.
        """
        if ask.keep:
            raise UserMistake(
                f"turn {ask.turn}: nobody learns at host {self.name}, which is behind an API:"
                " freeze its agents"
            )
        client = self.open()
        body = client.body(self.models[ask.policy], ask.messages, sampling, ask.seed)
        began = time.perf_counter()
        completion = await self._there(self._answer(client, {**body, **also}))
        reply = Reply(
            completion.text,
            completion.finished,
            self.versions[ask.policy],
            completion.usage.prompt_tokens or 0,
            completion.usage.tokens or 0,
            completion.logprob,
            time.perf_counter() - began,
            thoughts=completion.thoughts,
        )
        return reply, completion

    async def tell(self, ask: Ask, text: str) -> Reply:
        """Nobody learns here, so nobody is told what to say."""
        raise UserMistake(
            f"turn {ask.turn}: nobody learns at host {self.name}, which is behind an API: give role"
            f" {ask.role!r} to agents of other hosts (agents.<name>.roles)"
        )

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """Log-probs of words of one token each, which the server tells among the `ALTERNATIVES`
        likeliest beginnings of its reply; of words that it leaves out, the most that they can be.
        """
        spelt = [choice.strip() for choice in choices]
        if len(set(spelt)) < len(spelt):
            raise UserMistake(
                f"turn {ask.turn}: the choices {list(choices)} differ by spaces alone, of which a"
                " server's alternatives tell nothing: reword one of them"
            )
        no_alternatives = UserMistake(
            f"host {self.name}: its server tells no log-probs of alternatives (top_logprobs),"
            f" which weighing needs: give role {ask.role!r} to agents of other hosts"
            " (agents.<name>.roles), or set options.score=text"
        )
        also = {"logprobs": True, "top_logprobs": ALTERNATIVES}
        try:
            reply, completion = await self._reply(ask, Sampling(max_tokens=1), also)
        except RefusedByServer as refused:
            if "logprobs" in refused.message:
                raise no_alternatives from None
            raise
        if completion.first is None:
            raise no_alternatives
        alternatives, bound = completion.first
        if not alternatives.keys() & set(spelt):
            raise HostFailure(
                f"{spelt[0]!r} is not among the {len(alternatives)} likeliest beginnings of the"
                " reply that the server tells of, nor is another choice: behind an API only words"
                " of one token, which the prompt asks for, can be weighed"
            )
        weights = tuple(alternatives.get(choice, bound) for choice in spelt)
        number, margin = said_of(weights, ask.sampling.temperature, ask.seed)
        return replace(
            reply,
            text=choices[number],
            finished=True,
            logprob=weights[number],
            margin=margin,
            thoughts="",
            weights=weights,
        )

    def calls(self, policy: str) -> Calls | None:
        """None: text is all that is sent and read, and calls of tools are text in plain tags."""
        return None

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the host's own loop, and return its result."""
        assert self._loop is not None
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except (HostFailure, UserMistake) as error:
            # what a library raised may repeat what the server sent, which may repeat the key
            error.__context__ = None
            raise

    async def greet(
        self,
        asked: Iterable[tuple[str, Sampling]],
        note: Callable[[str], None],
        known: set[tuple[object, ...]] | None = None,
    ) -> None:
        """Have each model say one token in each way in which it is going to be asked (policy and
        sampling), so that what is wrong with address, key, name or temperature is found before any
        work.

        A server that does not answer yet is asked again for `PATIENCE` seconds, and `note` gets a
        line about it; with `retries = 0` it is not. `known` holds endpoints, models and samplings
        that have answered already, and takes up those of this host.
        """
        client = self.open()
        known = set() if known is None else known
        for policy, sampling in asked:
            model = self.models[policy]
            one_token = replace(sampling, max_tokens=1)
            way = (client.url, self.config.key_env or "", model, one_token)
            if way not in known:
                await self._greet(client, client.body(model, GREETING, one_token, 0), note)
                known.add(way)
        self.ledger.check_counted()

    async def _greet(
        self, client: ApiClient, body: Mapping[str, Any], note: Callable[[str], None]
    ) -> None:
        from comas.hosts.endpoint import LONGEST, through_proxies

        began = time.monotonic()
        patience = PATIENCE if self.config.retries else 0.0
        seen: set[str] = set()
        for attempt in itertools.count():
            try:
                await self._there(self._post(client, body, 0))
                return
            except RefusedByServer as refused:
                # one is too little for a model that thinks: it is there
                if "token" in refused.message.lower():
                    return
                self.events["given up"] += 1
                remedy = f"check hosts.{self.name} (api, base), and what its server takes"
                raise UserMistake(f"host {self.name}: {refused}; {remedy}") from None
            except Unanswered as failure:
                is_empty = isinstance(failure, Unusable) and failure.empty
                if is_empty or failure.kind == "429":  # it lives, and asks are made again anyhow
                    return
                problem = f"host {self.name}: {failure}"
                pause = failure.after or min(FIRST * 2**attempt, LAST)
                if failure.after:  # it says itself when it will be there
                    patience = max(patience, min(failure.after, LONGEST) + 1.0)
                repeated = isinstance(failure, Unusable) and str(failure) in seen
                if repeated or failure.nowhere or time.monotonic() - began + pause > patience:
                    self.events["given up"] += 1
                    remedy = (
                        f"check hosts.{self.name}.api{through_proxies()}, and that its server runs"
                    )
                    raise UserMistake(f"{problem}; {remedy}") from None
                if not attempt:
                    note(
                        f"{problem}; asking again for {patience:.0f} seconds, since it may be"
                        " starting"
                    )
                seen.add(str(failure))
                await asyncio.sleep(pause)
            except HostFailure as error:
                raise UserMistake(f"host {self.name}: {error}") from None

    async def _post(self, client: ApiClient, body: Mapping[str, Any], retries: int) -> Completion:
        """Ask when less than `concurrency` requests are open; a request that waits for its next try
        keeps its place, so that a busy server is asked less.
        """
        async with self._room:
            with self.busy:
                return await client.post(body, retries)

    async def _answer(self, client: ApiClient, body: Mapping[str, Any]) -> Completion:
        """Ask until there is an answer. Raises ToldToWait where the server wants to be left alone
        for longer than the library waits.
        """
        from comas.hosts.endpoint import LONGEST

        try:
            return await self._post(client, body, self.config.retries)
        except Unanswered as failure:
            self.events["given up"] += 1
            kind = ToldToWait if (failure.after or 0.0) > LONGEST else HostFailure
            raise kind(f"{failure} (tried {failure.tries} times)") from None
        except HostFailure:
            self.events["given up"] += 1
            raise

    async def learn(self, rewards: Mapping[str, Sequence[TurnReward]], lr_scale: float) -> Learned:
        """Do nothing: rewards of frozen agents never leave the loop."""
        return Learned({}, {})

    async def save(self, path: Path) -> None:
        """Write the account: there is nothing else."""
        (path / f"{self.name}.json").write_text(json.dumps(self.ledger.account()), encoding="utf-8")

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        self.ledger.restore(json.loads((path / f"{self.name}.json").read_text(encoding="utf-8")))

    def clock(self) -> Mapping[str, float]:
        """Seconds in which at least one request was open."""
        return {"sampling": self.busy.seconds, "learning": 0.0}

    def facts(self) -> Mapping[str, Any]:
        """There is no device here."""
        return {"device": "api"}

    def account(self) -> Account:
        """Tokens and money over all processes, and what went wrong."""
        return self.ledger.account()


def build(plan: HostPlan[Table]) -> ApiHost:
    """The host that a plan describes; opened where a run is going to learn beside it, so that what
    is wrong with it is reported before models are loaded.
    """
    host = ApiHost(plan.name, plan.policies, plan.table)
    if plan.method is not None:
        host.open()
    return host
