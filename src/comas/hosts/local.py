"""A host in this process: an engine that samples, a learner that trains, a buffer that never
leaves; and how it is built: models are loaded, a learner and an engine are built on them.

Speaks to games in text only; token ids stay here, filed under the turn's id until they are joined
with their rewards. Leaves out: the keys of its table (`hosts.keys`), what a base name means
(`models.sources`), configs (`team.build`), other machines (`hosts.ray`), other people's models
(`hosts.api`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError

from comas.engines.chat import Chat
from comas.game.weighing import check_tokens, said_of
from comas.hosts.keys import MAX_ROWS
from comas.hosts.keys import LocalTable as Table
from comas.hosts.plan import HostPlan, Lag
from comas.machine import in_turn, own_thread, peak_bytes_of, return_large_blocks, uncollected
from comas.models.loading import context_of, load_models, place_of
from comas.seams import (
    Adapter,
    Engine,
    EnginePlan,
    Learner,
    Request,
    Sleeper,
    Weighing,
    WholeModel,
    out_of_memory,
)
from comas.sync import Busy
from comas.types import (
    Account,
    Ask,
    Calls,
    Fit,
    Learned,
    Meter,
    NoRoom,
    Reply,
    Row,
    Sampling,
    TurnReward,
    UserMistake,
)

LOG = logging.getLogger("comas")
T = TypeVar("T")
LONG = 20_000
"""Characters of a prompt beyond which turning it into tokens takes many milliseconds."""


class LocalHost:
    """Owns `policies`; `context` is the number of tokens that prompt and reply share."""

    def __init__(
        self,
        name: str,
        policies: Sequence[str],
        chat: Chat,
        engine: Engine,
        learner: Learner | None,
        context: int,
        device: str = "cpu",
        dtype: str = "float32",
        *,
        lags: Mapping[str, Lag] | None = None,
        meter: Meter | None = None,
        worker: Executor | None = None,
    ) -> None:
        """`lags`: earlier selves among `policies`. `meter` is the one that engine and learner
        count on; `worker` the thread that the engine samples in, where it reads the learner's
        weights in place.
        """
        self.name = name
        self.chat = chat
        self.engine = engine
        self.learner = learner
        self.learns = learner is not None
        self.context = context
        self.device = device
        self.dtype = dtype
        self.versions = dict.fromkeys(policies, 0)
        self.lags = dict(lags or {})
        self.learned = 0
        """Learning steps so far: earlier selves follow at multiples."""
        self.busy = Busy()
        """Seconds in which at least one reply is waited for, and how many are."""
        self.learning = 0.0
        """Seconds in which the learner worked."""
        self.halved: dict[str, int] = {}
        """Keys of the config that were halved for want of memory, and what they are now."""
        self.meter = meter or Meter()
        self._buffer: dict[str, dict[str, Row]] = {p: {} for p in policies}
        """A discussion that is played again after a failure says the same turns again: the later
        one counts.
        """
        self._worker = worker or ThreadPoolExecutor(1, thread_name_prefix=f"host-{name}")

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Whether prompt and reply fit into the context."""
        if sum(len(message["content"]) for message in messages) > LONG:
            # others are asked meanwhile; the chat remembers the tokens for `ask`
            prompt_ids = await asyncio.to_thread(self.chat.encode, messages)
        else:
            prompt_ids = self.chat.encode(messages)
        needed = len(prompt_ids) + sampling.max_tokens
        return Fit(needed <= self.context, needed, self.context)

    async def ask(self, ask: Ask) -> Reply:
        """Sample one reply; with `keep` its tokens are filed under the turn's id."""
        sampling = ask.sampling
        if ask.keep and (sampling.top_p < 1 or sampling.temperature == 0):
            raise UserMistake(
                f"training samples from the whole softmax: top_p is {sampling.top_p}, temperature"
                f" {sampling.temperature}; set top_p = 1 and temperature > 0"
            )
        self._check_kept(ask)
        request = Request(ask.policy, self.chat.encode(ask.messages), sampling, ask.seed)
        done = await self._answered("sampling", lambda: self.engine.sample(request))
        if not self.engine.facts.counts:
            self.meter.replies += 1
            self.meter.tokens += len(done.token_ids)
        self._check_finite(ask, done.logprobs)
        opened = self.chat.opens(ask.messages)
        text, thoughts = self.chat.decode(done.token_ids, done.finished, opened)
        reply = self._filed(
            ask, text, request.prompt_ids, done.token_ids, done.logprobs, sampling.temperature
        )
        return replace(
            reply,
            finished=done.finished,
            seconds=done.seconds,
            margin=done.margin,
            thoughts=thoughts,
        )

    async def tell(self, ask: Ask, text: str) -> Reply:
        """Return `text` as a reply; with `keep` its tokens and an end token are filed."""
        self._check_kept(ask)
        prompt_ids = self.chat.encode(ask.messages)
        reply_ids = self.chat.encode_reply(ask.messages, text)
        needed = len(prompt_ids) + len(reply_ids)
        if needed > self.context:
            raise UserMistake(
                f"turn {ask.turn}: this demonstration needs {needed} tokens with its prompt, and"
                f" the context of {self.name}/{ask.policy} has {self.context}: shorten it or leave"
                f" it out, or raise hosts.{self.name}.context where the base allows it"
            )
        return self._filed(ask, text, prompt_ids, reply_ids)

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """Return the log-probs of these choices; with `keep` the tokens of the one that is drawn
        are filed.
        """
        self._check_kept(ask)
        if not hasattr(self.engine, "weigh"):  # one of somebody's own that samples, and no more
            raise UserMistake(
                f"turn {ask.turn}: the engine of host {self.name} ({type(self.engine).__name__})"
                f" has no `weigh`: take another (hosts.{self.name}.engine), or set"
                " options.score=text"
            )
        prompt_ids = self.chat.encode(ask.messages)
        spelt = [self.chat.encode_beginning(ask.messages, choice) for choice in choices]
        check_tokens(choices, [ids.tolist() for ids in spelt], ask.turn)
        drawn = getattr(self.engine, "draws_behind", 0)  # some engines cannot but draw a token more
        needed = len(prompt_ids) + max(map(len, spelt)) + drawn
        if needed > self.context:
            raise NoRoom(
                f"turn {ask.turn}: the prompt and its longest choice need {needed} tokens, and the"
                f" context of {self.name}/{ask.policy} has {self.context}: shorten the question, or"
                f" raise hosts.{self.name}.context where the base allows it"
            )
        began = time.perf_counter()
        common = self._common_tokens(ask, prompt_ids)
        weighing = Weighing(ask.policy, prompt_ids, spelt, common)
        logprobs = await self._answered("weighing", lambda: self.engine.weigh(weighing))
        weights = tuple(float(of_choice.sum(dtype=np.float64)) for of_choice in logprobs)
        self._check_finite(ask, weights)
        chosen, margin = said_of(weights, ask.sampling.temperature, ask.seed)
        self.meter.replies += 1
        self.meter.tokens += len(spelt[chosen])
        reply = self._filed(ask, choices[chosen], prompt_ids, spelt[chosen], logprobs[chosen])
        return replace(reply, seconds=time.perf_counter() - began, margin=margin, weights=weights)

    def _common_tokens(self, ask: Ask, prompt_ids: np.ndarray) -> int:
        """Count the tokens of the prompt that come of its `common` characters and what precedes."""
        if not ask.common:
            return 0
        *before, last = ask.messages
        cut = {**last, "content": last["content"][: ask.common]}
        cut_ids = self.chat.encode([*before, cut])
        shorter = min(len(cut_ids), len(prompt_ids) - 1)  # one token is left to read
        return int((cut_ids[:shorter] == prompt_ids[:shorter]).cumprod().sum())

    def _check_finite(self, ask: Ask, logprobs: np.ndarray | Sequence[float]) -> None:
        """Refuse weights that give no probabilities."""
        if not np.isfinite(logprobs).all():
            raise UserMistake(
                f"turn {ask.turn}: the probabilities of policy {self.name}/{ask.policy} are not"
                " finite: the weights of its base are broken, or too large for their dtype"
            )

    def calls(self, policy: str) -> Calls | None:
        """How the chat template of all policies writes calls of tools."""
        return self.chat.calls

    def _trained(self, otherwise: str) -> Learner:
        """The learner; UserMistake where there is none."""
        if self.learner is None:
            raise UserMistake(f"host {self.name} was loaded without a learner: {otherwise}")
        return self.learner

    def _check_kept(self, ask: Ask) -> None:
        """Refuse to keep a turn where nobody learns."""
        if ask.keep:
            self._trained(f"nothing is kept for learning of turn {ask.turn}")

    def _filed(
        self,
        ask: Ask,
        text: str,
        prompt_ids: np.ndarray,
        reply_ids: np.ndarray,
        logprobs: np.ndarray | None = None,
        temperature: float = 1.0,
    ) -> Reply:
        """A finished reply of these tokens. If the turn is kept, a row of T = prompt + reply tokens
        is filed, not yet rewarded; `logprobs` are the engine's of the reply, None where no engine
        read it.
        """
        if ask.keep:
            ids_T = np.concatenate([prompt_ids, reply_ids])
            mask_T = np.arange(len(ids_T)) >= len(prompt_ids)
            unread_T = np.zeros(len(ids_T), np.float32)
            row = Row(ask.turn, ask.role, temperature, ids_T, mask_T, unread_T)
            if logprobs is not None:
                row.sampled_logprobs_T = np.concatenate([unread_T[~mask_T], logprobs])
            self._buffer[ask.policy][ask.turn] = row
        logprob = 0.0 if logprobs is None else float(logprobs.sum(dtype=np.float64))
        version = self.versions[ask.policy]
        return Reply(text, True, version, len(prompt_ids), len(reply_ids), logprob, 0.0)

    async def _answered(self, doing: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the engine's results; where memory is too small for the rows that it decodes at
        once, they are halved, once, and all of them are asked again.
        """
        host = f"hosts.{self.name}"
        remedy = (
            f"lower {host}.max_rows or {host}.context (now {self.context}), or have fewer agents"
        )
        with self.busy, in_memory(self.name, f"{doing} on {self.device}", remedy):
            engine: Any = self.engine
            most: int = getattr(engine, "max_rows", 1)
            try:
                return await ask()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error) or most == 1:
                    raise
                if engine.max_rows == most:  # the first to hear of it
                    if "max_rows" in self.halved:
                        raise
                    engine.max_rows = max(1, min(most, self.busy.inside) // 2)
                    self._halve("max_rows", engine.max_rows)
            # the error, which holds the tensors of the batch, is gone by now
            return await ask()

    def _halve(self, key: str, value: int) -> None:
        self.halved[key] = value
        LOG.warning(
            "hosts.%s.%s=%s from now on: there was no memory left for more", self.name, key, value
        )

    async def learn(
        self, rewards: Mapping[str, Sequence[TurnReward]], lr_scale: float = 1.0
    ) -> Learned:
        """Join rewards with rows, take one step per policy at `lr_scale` times its learning rate,
        sample from the new weights; empties the buffer.
        """
        self._trained("load it for training")
        rows = {policy: self._join(policy, of_policy) for policy, of_policy in rewards.items()}
        for buffer in self._buffer.values():
            buffer.clear()
        loop = asyncio.get_running_loop()
        stats = await loop.run_in_executor(self._worker, self._step, rows, lr_scale)
        return Learned(stats, turn_facts([row for part in rows.values() for row in part]))

    def _join(self, policy: str, rewards: Sequence[TurnReward]) -> list[Row]:
        rows = []
        for each in rewards:
            row = self._buffer.get(policy, {}).get(each.turn)
            if row is None:
                raise KeyError(
                    f"host {self.name}, policy {policy}: a reward for turn {each.turn}, which was"
                    " never said here"
                )
            row.reward = each.reward
            row.group = each.group
            rows.append(row)
        if len({r.turn for r in rows}) != len(rewards):
            raise KeyError(f"host {self.name}, policy {policy}: a turn was rewarded twice")
        return rows

    def _step(
        self, rows: Mapping[str, Sequence[Row]], lr_scale: float
    ) -> dict[str, dict[str, float]]:
        assert self.learner is not None
        began = time.perf_counter()
        host = f"hosts.{self.name}"
        remedy = (
            f"lower {host}.tokens_per_pass or {host}.context (now {self.context}), set"
            f" {host}.checkpointing=true, or have fewer agents"
        )
        self.meter.rows_due += self.learner.method.epochs * sum(map(len, rows.values()))
        if isinstance(self.engine, Sleeper):
            self.engine.sleep()
        with in_memory(self.name, f"learning on {self.device}", remedy):
            stats = self.learner.step(rows, lr_scale)
            recipe = getattr(self.learner, "recipe", None)
            if recipe is not None and recipe.halved and "tokens_per_pass" not in self.halved:
                self._halve("tokens_per_pass", recipe.tokens_per_pass)
            for policy, own_stats in stats.items():
                self.versions[policy] += own_stats["updates"] > 0
            self._publish([*stats, *self._follow()])
        self.learning += time.perf_counter() - began
        return stats

    def _follow(self) -> list[str]:
        """Give earlier selves whose time has come the weights of their policies."""
        assert self.learner is not None
        self.learned += 1
        due = [name for name, lag in self.lags.items() if self.learned % lag.steps == 0]
        for name in due:
            leader = self.lags[name].policy
            self.learner.copy(leader, name)
            self.versions[name] = self.versions[leader]
        return due

    def _publish(self, policies: Iterable[str]) -> None:
        """Have the engine sample from the learner's weights of these policies."""
        assert self.learner is not None
        weights = self.learner.weights()
        for policy in policies:
            self.engine.publish(policy, weights[policy], self.versions[policy])

    async def save(self, path: Path) -> None:
        """Per policy a Hugging Face folder with tokenizer and optimizer; `host.json` with the
        versions.
        """
        learner = self._trained("nothing to save")
        try:
            await asyncio.get_running_loop().run_in_executor(self._worker, learner.save, path)
        except SafetensorError as error:  # a full disk, in the words of another language
            raise OSError(f"{path}: {error}") from error
        for policy in self.versions:
            self.chat.tokenizer.save_pretrained(path / policy)
        record: dict[str, Any] = {"versions": self.versions}
        if self.lags:
            record["learned"] = self.learned
        (path / f"{self.name}.json").write_text(json.dumps(record))

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        learner = self._trained("load it for training")
        await asyncio.get_running_loop().run_in_executor(self._worker, learner.load, path)
        record = json.loads((path / f"{self.name}.json").read_text())
        self.versions = record["versions"]
        self.learned = record.get("learned", 0)
        self._publish(self.versions)

    def clock(self) -> Mapping[str, float]:
        """Seconds in which the engine, or the learner, worked."""
        return {"sampling": self.busy.seconds, "learning": self.learning}

    def facts(self) -> Mapping[str, Any]:
        """Tell the device with its peak, the dtype of sampling and of learning, and what the engine
        promises of its texts.
        """
        library = self.engine.facts.library
        return {
            **({"engine": library} if library else {}),
            "device": self.device,
            "dtype": self.dtype,
            "context": self.context,
            "peak_bytes": peak_bytes_of(self.device),
            "deterministic": self.engine.facts.deterministic,
            "margin_known": self.engine.facts.margin_known,
            "halved": dict(self.halved),
        }

    def account(self) -> Account:
        """Nothing is billed."""
        return {}

    def close(self) -> None:
        """End the engine and the worker thread."""
        self.engine.close()
        self._worker.shutdown(wait=True)


@contextmanager
def in_memory(host: str, doing: str, remedy: str) -> Iterator[None]:
    """Tell of memory that runs out in here in one line; `remedy` says which keys help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:120]
        reason_text = f" ({reason})" if reason else ""
        raise UserMistake(
            f"host {host}: out of memory while {doing}{reason_text}: {remedy}"
        ) from error


def turn_facts(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Turn -> mean advantage and mean KL, log(pi / pi_ref), of its generated tokens; the KL is 0
    without a reference. Turns with advantages that are not finite are left out.
    """
    facts: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row.advantages_T is None or not np.isfinite(row.advantages_T).all():
            continue
        kl = 0.0
        if row.ref_logprobs_T is not None:
            kl = float((row.logprobs_T - row.ref_logprobs_T)[row.mask_T].mean())
        facts[row.turn] = float(row.advantages_T[row.mask_T].mean()), kl
    return facts


def build(plan: HostPlan[Table]) -> LocalHost:
    """Build the host that a plan describes; it learns where the plan names a method.

    With `plan.under`, policies are adapters on that one model: those found in the folders that
    `plan.policies` names, elsewhere new ones of `plan.shapes`. Otherwise each has a model of its
    own: what learns is loaded in float32, and copied where the table's dtype is another; what only
    samples is loaded in that dtype, once.
    """
    remedy = f"have fewer agents, set hosts.{plan.name}.learner=adapters, or take a smaller base"
    with in_memory(plan.name, "loading", remedy), uncollected():
        return _build(plan)


def _build(plan: HostPlan[Table]) -> LocalHost:
    from comas.engines import auto
    from comas.learners.lora.learner import AdapterLearner
    from comas.learners.lora.peft_folder import load_population
    from comas.learners.whole import FullLearner

    table = plan.table
    method = plan.method
    trusted = table.trust_remote_code
    torch_device, kind = place_of(table.device, table.dtype)
    if torch_device.type == "cpu":
        return_large_blocks()  # memory is kept compact from then on
    meter = Meter()
    learner: Learner | None = None
    population = None
    with in_turn(torch_device.type):
        if plan.under is not None:
            population, tokenizer, ends = load_population(
                plan.policies, plan.under, torch_device, kind, trusted, plan.shapes or {}, plan.seed
            )
            models = {plan.under: population.model}
            weights = dict.fromkeys(population.policies, Adapter(population))
        else:
            stored = kind if method is None else None
            models, tokenizer, ends = load_models(plan.policies, torch_device, stored, trusted)
            weights = {policy: WholeModel(model) for policy, model in models.items()}
        vocabulary = min(len(model.get_input_embeddings().weight) for model in models.values())
        # what padding says is read by nobody
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
        pad_id = pad_id if pad_id < vocabulary else 0  # it was added to the tokenizer alone
        if method is not None and population is not None:
            origin = str(population.model.config.name_or_path)
            learner = AdapterLearner(population, plan.recipe, method, pad_id, origin, meter=meter)
            # new adapters differ in their random half
            for earlier, lag in plan.lags.items():
                learner.copy(lag.policy, earlier)
        elif method is not None:
            learner = FullLearner(models, plan.recipe, method, pad_id, kind, meter=meter)
    context = min(context_of(model, table.context, plan.name) for model in models.values())
    worker = own_thread(f"host-{plan.name}", torch_device.type)
    engine_plan = EnginePlan(
        end_ids=ends,
        pad_id=pad_id,
        context=context,
        max_rows=table.max_rows or MAX_ROWS,
        learns=learner is not None,
        gpus=plan.gpus,
        reserved=getattr(learner, "moments", 0),
        host=plan.name,
        meter=meter,
        worker=worker,
    )
    module = plan.engine or auto
    try:
        engine = module.build(engine_plan, weights if learner is None else learner.weights())
    except BaseException:
        worker.shutdown()
        raise
    chat = Chat(tokenizer, ends, table.thinking, vocabulary)
    if token := chat.unheard_end():
        LOG.warning(
            "hosts.%s: the chat template of %r ends replies with %s, which is not an end token of"
            " the model, so that replies may go on to their token limit: name it in"
            " eos_token_id of generation_config.json",
            plan.name,
            chat.tokenizer.name_or_path,
            token,
        )
    return LocalHost(
        plan.name,
        list(plan.policies),
        chat,
        engine,
        learner,
        context,
        str(torch_device),
        str(kind).removeprefix("torch."),
        lags=plan.lags,
        meter=meter,
        worker=worker,
    )


def make_local_host(name: str, bases: Mapping[str, str], **keys: Any) -> LocalHost:
    """Build a host without a config: policies with these bases; with `method` and `recipe` also a
    learner. `keys` are fields of `HostPlan`, or keys of its table, such as `device`.
    """
    of_plan = {field.name for field in fields(HostPlan)}
    planned = {key: value for key, value in keys.items() if key in of_plan}
    table = Table(**{key: value for key, value in keys.items() if key not in of_plan})
    return build(HostPlan(name=name, table=table, policies=bases, **planned))
