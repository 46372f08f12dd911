"""Sampling with vLLM in this process: the adapters of many policies on one base, or one whole
model.

Leaves out: how weights get into it and are proved (`adapters`, `whole`), several GPUs, servers
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from comas.engines.batcher import Batcher
from comas.engines.rows import by_policy, check_choices, check_context, check_policy
from comas.engines.vllm.adapters import Adapters
from comas.engines.vllm.library import Ask, Loaded, Reply, Vllm, version
from comas.engines.vllm.whole import Whole
from comas.seams import (
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    Weighing,
    Weights,
    always,
)


class VLLMEngine:
    """Samples for the policies that `weights` serves."""

    def __init__(
        self,
        plan: EnginePlan,
        policies: Sequence[str],
        vllm: Vllm,
        weights: Adapters | Whole,
        *,
        deterministic: bool,
        sleeps: bool,
    ) -> None:
        """`sleeps`: whether it gives its memory to the learner while that works."""
        self.facts = EngineFacts(deterministic, False, f"vllm {version()}", counts=True)
        self.plan = plan
        self.policies = sorted(policies)
        self.vllm = vllm
        self.weights = weights
        self.sleeps = sleeps
        self._asleep = False
        self._batcher = Batcher(self.generate, plan.worker)
        self._weighing = Batcher(self.weigh_all, self._batcher.worker)

    async def sample(self, request: Request) -> Generation:
        """One reply, decoded together with whatever else is asked for at the time."""
        return await self._batcher(request)

    async def weigh(self, weighing: Weighing) -> list[np.ndarray]:
        """Log-probs of given continuations, computed together with whatever else is weighed at the
        time.
        """
        return await self._weighing(weighing)

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
        self._batcher.close()
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
