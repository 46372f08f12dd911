"""The proof that vLLM serves an adapter as the learner has it: modules counted, tensors read back,
log-probs compared, in this order.

Each finds what the others miss. An adapter whose names vLLM does not know is bound to nothing and
serves the base; tensors of an earlier version are told apart by their numbers in any dtype, by
log-probs only where a step is larger than rounding; keys and values of another version, a packed
copy, or a kernel that leaves adapters out show in log-probs alone. Leaves out: whole models
(`whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comas.engines.vllm import worker
from comas.engines.vllm.folders import Pairs
from comas.engines.vllm.library import Ask, Library, Loaded
from comas.seams import AdaptedModel, CausalLM, StaleWeights

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Nats by which the mean log-prob of a probe's tokens may differ from the learner's; rounding was
seen to make 3e-6.
"""
COARSE = 0.25
"""The same where either of the two computes in halves; rounding was seen to make 6e-2."""
LEAST = 32
"""Tokens of a probe beyond a block of the prefix cache, where the context has room for them, and
how many of its first tokens vLLM is asked the log-probs of.
"""
ONE = 4
"""Times the tolerance: by how much that of the drawn token alone may differ, which no mean evens
out. It alone was computed behind what the prefix cache has.
"""
SEED = 17
"""Of the token that is drawn behind a probe."""

Learner = Callable[[Sequence[int]], Tensor]
"""Token ids (T,) -> logits (T, V) of the learner's model."""


@dataclass(frozen=True)
class Reading:
    """Tokens, and vLLM's log-probs of some of them."""

    token_ids: list[int]
    places: list[int]
    """Which of the tokens, from the second one on; the last one was drawn behind all others."""
    logprobs: np.ndarray
    """Of these, (places,)."""

    @torch.no_grad()
    def gap(self, learner: Learner) -> float:
        """Distance from the learner's log-probs in nats: the mean of all tokens, or, where that is
        more, the drawn token's over `ONE`.
        """
        logits_TV = learner(self.token_ids)
        before = torch.tensor(self.places, device=logits_TV.device) - 1
        chosen = torch.tensor([self.token_ids[place] for place in self.places])
        logprobs_PV = logits_TV[before].double().log_softmax(-1)
        own = logprobs_PV.gather(1, chosen.to(logits_TV.device)[:, None])[:, 0].cpu().numpy()
        apart = np.abs(self.logprobs - own)
        return float(max(apart.mean(), apart[-1] / ONE))


class Probe:
    """Fixed tokens whose log-probs are compared."""

    def __init__(self, vllm: Library, vocabulary: int, context: int, dtype: torch.dtype) -> None:
        """`dtype` is that of vLLM's model. The prompt fills a block of the prefix cache where the
        context has room for that.
        """
        self.vllm = vllm
        self.dtype = dtype
        length = max(2, min(vllm.block + LEAST, context - 1))
        places = np.arange(length)
        self.prompt_ids: list[int] = (places * 7919 % max(1, vocabulary - 8) + 7).tolist()
        self.prompt_ids = [min(i, vocabulary - 1) for i in self.prompt_ids]

    def read(self, adapter: Loaded | None, name: str, new: bool) -> Reading:
        """What vLLM says of the probe with this adapter; StaleWeights where it found tokens of a
        version that is `new` in its prefix cache.

        vLLM computes afresh what it is to tell the log-probs of, and only a reply uses the cache.
        So the beginning of the probe is read, and a token is drawn behind all of it.
        """
        beginning = self.prompt_ids[:LEAST]
        drawn, read = self.vllm.run(
            [
                Ask(prompt_ids=self.prompt_ids, adapter=adapter, seed=SEED),
                Ask(prompt_ids=beginning, adapter=adapter, seed=SEED, reads=True),
            ]
        )
        assert drawn is not None
        assert read is not None
        if new and drawn.cached_tokens:
            raise StaleWeights(
                f"{name}: vLLM found {drawn.cached_tokens} tokens of it in its prefix cache before"
                " any was read: they are of an earlier version"
            )
        places = [*range(1, len(beginning)), len(self.prompt_ids)]
        logprobs = np.array([*read.read_logprobs, *drawn.logprobs])
        return Reading([*self.prompt_ids, *drawn.token_ids], places, logprobs)

    def check(self, reading: Reading, learner: Learner, dtype: torch.dtype, name: str) -> None:
        """StaleWeights where what vLLM said is further from the learner, which computes in `dtype`,
        than rounding.
        """
        gap = reading.gap(learner)
        most = self.tolerance(dtype)
        if not gap <= most:
            raise StaleWeights(
                f"{name}: log-probs of vLLM are {gap:.2g} nats per token from the learner's, and"
                f" rounding makes less than {most:g}: it does not serve these weights"
            )

    def tolerance(self, dtype: torch.dtype) -> float:
        """Nats, for a learner that computes in `dtype`."""
        return max(TOLERANCE.get(self.dtype, COARSE), TOLERANCE.get(dtype, COARSE))


def logits_of(model: CausalLM) -> Learner:
    """The model as it is: a whole one, or the base below adapters."""

    def logits(ids: Sequence[int]) -> Tensor:
        ids_1T = torch.tensor([list(ids)], device=model.device)
        return model(input_ids=ids_1T, use_cache=False).logits[0]

    return logits


def logits_with(shared: AdaptedModel, policy: str) -> Learner:
    """The base with the adapter of this policy."""
    number = list(shared.policies).index(policy)
    plain = logits_of(shared.model)

    def logits(ids: Sequence[int]) -> Tensor:
        with shared.routed([number]):
            return plain(ids)

    return logits


@contextmanager
def added(model: Any, pairs: Pairs) -> Iterator[None]:
    """In here the model's modules add B A x to what they give; its own weights stay as they are."""
    handles = []
    for name, (a, b) in pairs.items():

        def hook(_: Any, inputs: Any, output: Tensor, a: Tensor = a, b: Tensor = b) -> Tensor:
            return output + inputs[0] @ a.mT.to(output) @ b.mT.to(output)

        handles.append(model.get_submodule(name).register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_bound(
    vllm: Library, adapter: Loaded, names: Mapping[str, str], modules: Sequence[str], name: str
) -> None:
    """StaleWeights where vLLM's model has not bound exactly these modules to the adapter; `names`
    says what vLLM calls them.
    """
    bound = set(vllm.call(worker.bound_modules, adapter.number))
    expected = {names[module] for module in modules}
    if bound == expected:
        return
    odd = sorted(expected ^ bound)[0]
    where = "vLLM has left it out" if odd in expected else "only vLLM has it"
    raise StaleWeights(
        f"{name}: vLLM has bound {len(bound & expected)} of its {len(expected)} modules ({odd}:"
        f" {where}), and samples the others from the base"
    )


def check_tensors(
    vllm: Library, adapter: Loaded, names: Mapping[str, str], pairs: Pairs, name: str
) -> None:
    """StaleWeights where a tensor that vLLM's kernels read is not the learner's.

    `pairs` are in the dtype of adapters, B times alpha / rank.
    """
    learnt = {names[module]: pair for module, pair in pairs.items()}
    module, apart = vllm.call(worker.difference, adapter.number, learnt)
    if module:
        raise StaleWeights(
            f"{name}: the tensors of {module} in vLLM are not the learner's (largest difference"
            f" {apart:.2g}): it serves another version"
        )


def as_served(pairs: Pairs, scale: float, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """What vLLM makes of an adapter: in its dtype, then B times alpha / rank, rounded again."""
    return {name: (a.to(dtype), b.to(dtype) * scale) for name, (a, b) in pairs.items()}
