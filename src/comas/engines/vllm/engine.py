"""Sampling with vLLM in this process: the adapters of many policies on one base, or one whole
model.

Leaves out: how it is started (`start`), how weights get into it and are proved (`adapters`,
`whole`), several GPUs, servers elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from comas.engines.batcher import BatchedEngine
from comas.engines.rows import by_policy, check_choices, check_context, check_policy
from comas.engines.vllm import start
from comas.engines.vllm.adapters import Adapters, pairs_of
from comas.engines.vllm.folders import Folders
from comas.engines.vllm.library import Ask, Library, Loaded, Reply, version
from comas.engines.vllm.proof import Probe
from comas.engines.vllm.whole import Whole, is_tied
from comas.seams import (
    Adapter,
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    Weighing,
    Weights,
    WholeModel,
    always,
)
from comas.types import UserMistake


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> VLLMEngine:
    """Start vLLM on the weights of a host and prove what it serves; UserMistake where it cannot
    serve them.
    """
    host = f"hosts.{plan.host}"
    adapted = {id(w.shared): w.shared for w in models.values() if isinstance(w, Adapter)}
    whole = [w.model for w in models.values() if isinstance(w, WholeModel)]
    if len(adapted) + len(whole) != 1:
        raise UserMistake(
            f"{host}.engine = 'vllm' serves adapters on one base, or one whole model, and"
            f" {len(models)} policies have {len(whole) + len(adapted)} models: set"
            f" {host}.learner=adapters, give each policy a host of its own, or set {host}.engine=hf"
        )
    shared = next(iter(adapted.values()), None)
    model: Any = whole[0] if shared is None else shared.model
    device = model.device.type
    policies = list(models)
    arguments: dict[str, Any] = {}
    if shared is not None:
        ranks = [shared.specs[policy].rank for policy in policies]
        modules = [module for policy in policies for module in pairs_of(shared, policy)]
        arguments = start.adapter_arguments(ranks, modules, host)
    elif plan.learns and device == "cpu" and is_tied(model):
        raise UserMistake(
            f"{host}.engine = 'vllm' cannot take new weights on a CPU of a base whose head is its"
            f" embedding: it would keep the old head; set {host}.learner=adapters, or"
            f" {host}.engine=hf"
        )
    dtype = start.served_dtype(model)
    with ExitStack() as undone:
        folders = Folders()
        undone.callback(folders.close)
        folder = start.folder_of(model) or folders.keep(model)
        vllm = start.start(model, folder, plan, arguments)
        undone.callback(vllm.close)
        with start.in_one_line(host):
            vocabulary = len(model.get_input_embeddings().weight)
            probe = Probe(vllm, vocabulary, plan.context, dtype)
            if shared is None:
                weights = Whole(vllm, policies[0], model, probe)
            else:
                weights = Adapters(
                    vllm, folders, shared, policies, probe, host, prove_every=plan.prove_every
                )
        undone.pop_all()
    if shared is None:  # its folder is read once
        folders.close()
    return VLLMEngine(
        plan,
        policies,
        vllm,
        weights,
        deterministic=start.deterministic(device, dtype),
        sleeps=device == "cuda" and plan.learns,
    )


class VLLMEngine(BatchedEngine):
    """Samples for the policies that `weights` serves."""

    def __init__(
        self,
        plan: EnginePlan,
        policies: Sequence[str],
        vllm: Library,
        weights: Adapters | Whole,
        *,
        deterministic: bool,
        sleeps: bool,
    ) -> None:
        """`sleeps`: whether it gives its memory to the learner while that works."""
        super().__init__(plan.worker)
        self.facts = EngineFacts(deterministic, False, f"vllm {version()}", counts=True)
        self.plan = plan
        self.policies = sorted(policies)
        self.vllm = vllm
        self.weights = weights
        self.sleeps = sleeps
        self._asleep = False

    def generate(
        self, requests: Sequence[Request], wanted: Callable[[], bool] = always
    ) -> list[Generation]:
        """One generation per request, in their order. `wanted()` returning False means that all
        callers were cancelled: stop early; what was not ended is then empty.
        """
        places = by_policy(requests, self.policies)
        check_context(requests, self.plan.context)
        self._wake()
        adapters = self.weights.serving([policy for policy in self.policies if places[policy]])
        asks = [self._ask(request, adapters[request.policy]) for request in requests]
        return list(map(self._generation, self.vllm.run(asks, wanted, self._count)))

    def weigh_all(
        self, weighings: Sequence[Weighing], wanted: Callable[[], bool] = always
    ) -> list[list[np.ndarray]]:
        """Per weighing and choice the log-probs of its tokens: vLLM reads prompt and choice."""
        places = by_policy(weighings, self.policies)
        # vLLM draws a token behind what it reads
        check_choices(weighings, self.plan.context - 1)
        self._wake()
        adapters = self.weights.serving([policy for policy in self.policies if places[policy]])
        choices = [(w, choice) for w in weighings for choice in w.choices]
        asks = [_reading(w, choice, adapters[w.policy]) for w, choice in choices]
        replies = iter(self.vllm.run(asks, wanted))
        return [[_weights(choice, next(replies)) for choice in w.choices] for w in weighings]

    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Return once vLLM was proved to serve these weights."""
        check_policy(policy, self.policies)
        self._wake()
        self.weights.publish(policy, weights, version)

    def sleep(self) -> None:
        """Give a GPU's memory to the learner, until somebody samples or publishes."""
        if self.sleeps and not self._asleep:
            self.vllm.sleep()
            self._asleep = True

    def close(self) -> None:
        """End vLLM, delete what it read, end the thread where it is the engine's own."""
        super().close()
        self.vllm.close()
        self.weights.close()

    def _wake(self) -> None:
        if self._asleep:
            self.vllm.wake()
            self._asleep = False

    def _ask(self, request: Request, adapter: Loaded | None) -> Ask:
        sampling = request.sampling
        return Ask(
            prompt_ids=request.prompt_ids.tolist(),
            adapter=adapter,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed % 2**63,
            max_tokens=sampling.max_tokens,
            end_ids=self.plan.end_ids,
        )

    def _count(self, reply: Reply) -> None:
        self.plan.meter.replies += 1
        self.plan.meter.tokens += len(reply.token_ids)

    def _generation(self, reply: Reply | None) -> Generation:
        if reply is None:
            return Generation(np.zeros(0, np.int64), np.zeros(0, np.float32), False, 1.0)
        token_ids = np.array(reply.token_ids, dtype=np.int64)
        logprobs = np.array(reply.logprobs, dtype=np.float32)
        finished = token_ids[-1] in self.plan.end_ids
        return Generation(token_ids, logprobs, bool(finished), 1.0, reply.seconds)


def _reading(weighing: Weighing, choice: np.ndarray, adapter: Loaded | None) -> Ask:
    """Read a choice behind its prompt."""
    ids = np.concatenate([weighing.prompt_ids, choice])
    return Ask(prompt_ids=ids.tolist(), adapter=adapter, reads=True)


def _weights(choice: np.ndarray, reply: Reply | None) -> np.ndarray:
    """Log-probs of a choice that was read at the end of a prompt; empty where nobody waits."""
    if reply is None:
        return np.zeros(0, np.float32)
    return np.array(reply.read_logprobs[-len(choice) :], dtype=np.float32)
