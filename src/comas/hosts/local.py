"""A host in this process: an engine that samples, a learner that trains, a buffer that never
leaves.

Speaks to games in text only; token ids stay here, filed under the turn's id until they are joined
with their payoffs. Leaves out: other machines (remote hosts), other people's models (API hosts).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from comas.engines.batcher import Batcher
from comas.engines.chat import Chat
from comas.hosts.out_of_memory import in_memory
from comas.machine import place_of
from comas.models.gguf import as_read
from comas.models.sources import adapters_among, apart_up_to, positions_of, whole_model
from comas.training.metrics import TIE
from comas.types import (
    Engine,
    Generation,
    Learner,
    Meter,
    Method,
    Payoff,
    Reply,
    Request,
    Row,
    Sampling,
    UserMistake,
)

LOG = logging.getLogger("comas")


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
    ) -> None:
        self.name = name
        self.chat = chat
        self.engine = engine
        self.learner = learner
        self.context = context
        self.device = device
        self.versions = dict.fromkeys(policies, 0)
        self.seconds = {"sampling": 0.0, "learning": 0.0}
        self.meter = Meter()
        self._counts_for_itself = _counted_by(engine, self.meter)
        _counted_by(learner, self.meter)
        self._buffer: dict[str, dict[str, Row]] = {p: {} for p in policies}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"host-{name}")
        self._batched = Batcher(self._generate, self._worker)

    def fits(self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> bool:
        """Whether prompt and reply have room in the context."""
        needed, there = self.needs(policy, messages, sampling)
        return needed <= there

    def needs(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> tuple[int, int]:
        """Tokens that prompt and reply need, and those that there are."""
        return len(self.chat.encode(messages)) + sampling.max_tokens, self.context

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
        """Sample one reply; with `keep` its tokens are filed under `turn`."""
        if keep and (sampling.top_p < 1 or sampling.temperature == 0):
            raise UserMistake(
                f"training samples from the whole softmax: top_p is {sampling.top_p}, temperature"
                f" {sampling.temperature}; set top_p = 1 and temperature > 0"
            )
        request = Request(policy, self.chat.encode(messages), sampling, seed)
        done = await self._batched(request)
        if not self._counts_for_itself:
            self.meter.replies += 1
            self.meter.tokens += len(done.token_ids)
        if not np.isfinite(done.logprobs).all():
            raise UserMistake(
                f"turn {turn}: the probabilities of policy {self.name}/{policy} are not finite: the"
                " weights of its base are broken, or too large for their dtype"
            )
        if keep:
            self._file(turn, role, request, done)
        text, thoughts = self.chat.decode(done.token_ids, done.finished, self.chat.opens(messages))
        return Reply(
            text,
            done.finished,
            self.versions[policy],
            len(request.prompt_ids),
            len(done.token_ids),
            float(done.logprobs.sum(dtype=np.float64)),
            done.seconds,
            done.margin,
            thoughts,
        )

    def _generate(
        self, requests: Sequence[Request], wanted: Callable[[], bool]
    ) -> list[Generation]:
        began = time.perf_counter()
        remedy = (
            "lower {host}.max_rows or {host}.context"
            + f" (now {self.context}), or have fewer agents"
        )
        try:
            with in_memory(self.name, f"sampling on {self.device}", remedy):
                return self.engine.generate(requests, wanted)
        finally:
            self.seconds["sampling"] += time.perf_counter() - began

    def _file(self, turn: str, role: str, request: Request, done: Generation) -> None:
        ids_T = np.concatenate([request.prompt_ids, done.token_ids])
        mask_T = np.arange(len(ids_T)) >= len(request.prompt_ids)
        sampled_T = np.concatenate([np.zeros(len(request.prompt_ids), np.float32), done.logprobs])
        # a discussion that is played again after a failure says the same turns again: the later one
        # counts
        self._buffer[request.policy][turn] = Row(
            turn,
            role,
            request.sampling.temperature,
            ids_T,
            mask_T,
            np.zeros(len(ids_T), np.float32),
            sampled_logprobs_T=sampled_T,
        )

    async def learn(
        self, payoffs: Mapping[str, Sequence[Payoff]], method: Method
    ) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
        """Join payoffs with rows, take one step per policy, sample from the new weights; empties
        the buffer.
        """
        if self.learner is None:
            raise UserMistake(
                f"host {self.name} was loaded without a learner: load it for training"
            )
        rows = {p: self._join(p, paid) for p, paid in payoffs.items()}
        ties = {p: expected_ties(list(buffer.values())) for p, buffer in self._buffer.items()}
        for buffer in self._buffer.values():
            buffer.clear()
        stats = await asyncio.get_running_loop().run_in_executor(
            self._worker, self._step, rows, method
        )
        for policy, told in stats.items():
            told["near_ties_expected"] = ties[policy]
        turns = {
            row.turn: (float(row.advantages_T[row.mask_T].mean()), _mean_kl(row))
            for part in rows.values()
            for row in part
            if row.advantages_T is not None and np.isfinite(row.advantages_T).all()
        }
        return stats, turns

    def _join(self, policy: str, paid: Sequence[Payoff]) -> list[Row]:
        rows = []
        for payoff in paid:
            row = self._buffer.get(policy, {}).get(payoff.turn)
            if row is None:
                raise KeyError(
                    f"host {self.name}, policy {policy}: paid for turn {payoff.turn}, which was"
                    " never said here"
                )
            row.reward = payoff.reward
            row.group = payoff.group
            rows.append(row)
        if len({r.turn for r in rows}) != len(paid):
            raise KeyError(f"host {self.name}, policy {policy}: a turn was paid twice")
        return rows

    def _step(
        self, rows: Mapping[str, Sequence[Row]], method: Method
    ) -> dict[str, dict[str, float]]:
        assert self.learner is not None
        began = time.perf_counter()
        knobs = (
            "lower {host}.tokens_per_pass or {host}.context"
            + f" (now {self.context}), set {{host}}.checkpointing=true, "
        )
        self.meter.rows_due += method.epochs * sum(map(len, rows.values()))
        with in_memory(self.name, f"learning on {self.device}", knobs + "or have fewer agents"):
            stats = self.learner.step(rows, method)
            self.engine.refresh(self.learner.weights())
        for policy, told in stats.items():
            self.versions[policy] += told["updates"] > 0
        self.seconds["learning"] += time.perf_counter() - began
        return stats

    async def save(self, path: Path) -> None:
        """Per policy a Hugging Face folder with tokenizer and optimizer; `host.json` with the
        versions.
        """
        if self.learner is None:
            raise UserMistake(f"host {self.name} was loaded without a learner: nothing to save")
        try:
            await asyncio.get_running_loop().run_in_executor(self._worker, self.learner.save, path)
        except SafetensorError as error:  # a full disk, in the words of another language
            raise OSError(f"{path}: {error}") from error
        for policy in self.versions:
            self.chat.tokenizer.save_pretrained(path / policy)
        (path / f"{self.name}.json").write_text(json.dumps({"versions": self.versions}))

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        if self.learner is None:
            raise UserMistake(f"host {self.name} was loaded without a learner")
        await asyncio.get_running_loop().run_in_executor(self._worker, self.learner.load, path)
        self.versions = json.loads((path / f"{self.name}.json").read_text())["versions"]
        self.engine.refresh(self.learner.weights())

    def close(self) -> None:
        """End the worker thread."""
        self._worker.shutdown(wait=True)


def expected_ties(rows: Sequence[Row]) -> float:
    """Of how many replies a draw is expected within `TIE` of another token, given the tokens that
    were drawn.

    A draw is uniform within the interval of its token, whose width is its probability p: it lies
    within TIE of an end with probability min(1, 2 TIE / p). A large vocabulary has many narrow
    intervals, and so many near-ties.
    """
    sampled = [
        row.sampled_logprobs_T[row.mask_T] for row in rows if row.sampled_logprobs_T is not None
    ]
    sampled = [logprobs for logprobs in sampled if len(logprobs)]
    if not sampled:
        return 0.0
    near = np.minimum(1 - 1e-9, 2 * TIE * np.exp(-np.concatenate(sampled).astype(np.float64)))
    starts = np.cumsum([0, *map(len, sampled[:-1])])
    return float((-np.expm1(np.add.reduceat(np.log1p(-near), starts))).sum())


def _counted_by(worker: Any, meter: Meter) -> bool:
    """Have an engine or a learner count on this meter; whether it does: those of others may have
    none.
    """
    counts = isinstance(getattr(worker, "meter", None), Meter)
    if counts:
        worker.meter = meter
    return counts


def _mean_kl(row: Row) -> float:
    """Mean of log(pi / pi_ref) over the row's tokens; 0 where no reference was asked for."""
    if row.ref_logprobs_T is None:
        return 0.0
    return float((row.logprobs_T - row.ref_logprobs_T)[row.mask_T].mean())


def load_models(
    bases: Mapping[str, str],
    device: str = "cpu",
    dtype: Any = None,
    trust_remote_code: bool = False,
) -> Any:
    """Policy -> model, their common tokenizer, and the end-of-turn ids, from Hugging Face names or
    folders.

    `dtype` is a torch dtype, by default float32.

    Policies of one host must share a tokenizer; agents with another belong to a host of their own.
    """
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from comas.engines.hf.trial import try_rows

    transformers_logging.disable_progress_bar()  # bars over a handful of tensors, on top of our own
    models = {}
    tokenizers = {}
    for policy, base in bases.items():
        source, arguments = whole_model(base)
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype or torch.float32,
                trust_remote_code=trust_remote_code,
                use_safetensors=True,
                output_loading_info=True,
                **arguments,
            )
        except (OSError, ValueError, SafetensorError, StrictDataclassError) as error:
            raise UserMistake(
                f"base {base!r} cannot be loaded as a causal language model: {_brief(error)}"
            ) from error
        except RuntimeError as error:
            if "mismatched_sizes" not in str(error):
                raise
            raise UserMistake(
                f"base {base!r}: its weights have other shapes than its config.json says"
            ) from error
        model, found = loaded
        if missing := sorted(found["missing_keys"]):  # transformers would invent them
            raise UserMistake(
                f"base {base!r} lacks weights ({missing[0]} and {len(missing) - 1} more): it is no"
                " whole causal LM"
            )
        try:
            tokenizers[policy] = AutoTokenizer.from_pretrained(
                source, trust_remote_code=trust_remote_code, **arguments
            )
        except (OSError, ValueError) as error:
            raise UserMistake(
                f"base {base!r} has no tokenizer that can be loaded: {_brief(error)}"
            ) from error
        # with peft installed, transformers follows its base
        if getattr(model, "_hf_peft_config_loaded", False):
            raise UserMistake(
                f"base {base!r} is an adapter: download it, and give the folder that it is in"
            )
        models[policy] = (as_read(model, base) if arguments else model).to(device).eval()
        try_rows(models[policy], apart_up_to(model.config) or positions_of(model.config), base)
    first = next(iter(tokenizers.values()))
    for policy, tokenizer in tokenizers.items():
        if (
            tokenizer.get_vocab() != first.get_vocab()
            or tokenizer.chat_template != first.chat_template
        ):
            raise UserMistake(
                f"base {bases[policy]!r} of policy {policy} has another tokenizer than"
                f" {next(iter(bases.values()))!r}: give it a host of its own (hosts.<name>.base)"
            )
    return models, first, _ends(models, first, bases)


def _ends(models: Mapping[str, Any], tokenizer: Any, bases: Mapping[str, str]) -> list[int]:
    """Ids that end a turn: the tokenizer's and those of each generation_config.json."""
    own: int | None = tokenizer.eos_token_id
    ends: set[int] = set() if own is None else {own}
    sizes: list[int] = []
    for policy, model in models.items():
        configured = model.generation_config.eos_token_id
        listed = (
            configured
            if isinstance(configured, list)
            else [configured]
            if configured is not None
            else []
        )
        if odd := [i for i in listed if type(i) is not int]:
            raise UserMistake(
                f"base {bases[policy]!r}: eos_token_id in its generation_config.json is {odd[0]!r},"
                " not a number"
            )
        size = len(model.get_input_embeddings().weight)
        if beyond := [i for i in listed if not 0 <= i < size]:
            raise UserMistake(
                f"base {bases[policy]!r}: eos_token_id {beyond[0]} in its generation_config.json is"
                f" beyond its vocabulary of {size}, and no reply would end by it: set the id of its"
                " end token"
            )
        ends |= set(listed)
        sizes.append(size)
    # one that was added to the tokenizer and not to the model is never sampled
    ends = {i for i in ends if i < max(sizes)}
    if not ends:
        lost = (
            f" but {own}, which is beyond its vocabulary of {max(sizes)}" if own is not None else ""
        )
        first = next(iter(bases.values()))
        raise UserMistake(
            f"base {first!r} names no end token{lost}: set eos_token_id in its"
            " generation_config.json"
        )
    return sorted(ends)


def load_population(
    sources: Mapping[str, str],
    under: str,
    device: Any,
    dtype: Any,
    trust_remote_code: bool,
    shapes: Mapping[str, Any],
    seed: int,
) -> Any:
    """A population on the base `under`, its tokenizer and end-of-turn ids; `sources` are adapter
    folders, or the base itself.
    """
    from comas.learners.lora import peft_folder
    from comas.learners.lora.population import Population, Spec, targets_of

    models, tokenizer, ends = load_models({"base": under}, device, dtype, trust_remote_code)
    kept = adapters_among(sources)
    found = {
        p: peft_folder.spec_of(kept[p]) if p in kept else shapes.get(p, Spec()) for p in sources
    }
    for policy, folder in kept.items():
        try:
            targets_of(models["base"], found[policy])
        except UserMistake as error:
            raise UserMistake(f"adapter {folder} does not fit base {under!r}: {error}") from error
    population = Population(models["base"], found, seed)
    for policy, folder in kept.items():
        peft_folder.load(population, policy, Path(folder))
    return population, tokenizer, ends


def _brief(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= 200 else words[:200] + " ..."


def context_of(model: Any, limit: int | None, name: str = "<name>") -> int:
    """Tokens of room at this host: the model's positions, or `limit` where it is smaller; a warning
    where neither can be had.
    """
    room = positions_of(model.config)
    wanted = min(room, limit) if limit else room
    apart = apart_up_to(model.config)
    if apart is None or wanted <= apart:
        return wanted
    LOG.warning(
        "hosts.%s.context is %d, not %d: base %r has LongRoPE, and longer rows would change the"
        " probabilities of the others in their batch",
        name,
        apart,
        wanted,
        str(model.config.name_or_path),
    )
    return apart


def make_local_host(
    name: str,
    bases: Mapping[str, str],
    *,
    method: Method | None = None,
    recipe: Any = None,
    device: str = "auto",
    dtype: str = "auto",
    context: int | None = None,
    thinking: bool | None = None,
    max_rows: int = 512,
    compiled: bool = False,
    trust_remote_code: bool = False,
    under: str | None = None,
    shapes: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> LocalHost:
    """A host with torch inside: policies with these bases; with `method` and `recipe` also a
    learner.

    With `under`, policies are adapters on that one model: those found in the folders of `bases`,
    elsewhere new ones of `shapes` (policy -> Spec). Otherwise each has a model of its own: what
    learns is loaded in float32, and copied where `dtype` is another; what only samples is loaded in
    `dtype`, once.
    """
    from comas.engines.hf.engine import TorchEngine
    from comas.learners.lora.learner import AdapterLearner
    from comas.learners.whole import FullLearner

    place, kind = place_of(device, dtype)
    if under is not None:
        population, tokenizer, ends = load_population(
            bases, under, place, kind, trust_remote_code, shapes or {}, seed
        )
        weights = population
        models = [population.model]
    else:
        weights, tokenizer, ends = load_models(
            bases, place, None if method is not None else kind, trust_remote_code
        )
        models = list(weights.values())
    known = min(len(m.get_input_embeddings().weight) for m in models)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
    # added to the tokenizer and not to the model; what padding says is read by nobody
    if pad >= known:
        pad = 0
    learner: AdapterLearner | FullLearner | None = None
    if method is not None and under is not None:
        learner = AdapterLearner(weights, recipe, method, pad, str(models[0].config.name_or_path))
    elif method is not None:
        learner = FullLearner(weights, recipe, method, pad, kind)
    room = min(context_of(m, context, name) for m in models)
    engine = TorchEngine(
        learner.weights() if learner else weights, ends, pad, room, max_rows, compiled
    )
    return LocalHost(
        name, list(bases), Chat(tokenizer, ends, thinking, known), engine, learner, room, str(place)
    )
