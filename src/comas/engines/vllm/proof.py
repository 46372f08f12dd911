"""Adapters, or the whole model, that vLLM serves now, and the proof that it serves them as the
learner has them: modules counted, tensors read back, log-probs compared, in this order.

Each finds what the others miss. An adapter whose names vLLM does not know is bound to nothing and
serves the base; tensors of an earlier version are told apart by their numbers in any dtype, by
log-probs only where a step is larger than rounding; keys and values of another version, a packed
copy, or a kernel that leaves adapters out show in log-probs alone. New versions of adapters are
loaded beside those that serve, proved, and only then asked for. Leaves out: sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comas.engines.vllm import library as worker
from comas.engines.vllm.library import Folders, Library, Loaded, Pairs, VllmRequest
from comas.seams import (
    AdaptedModel,
    Adapter,
    AdapterSpec,
    CausalLM,
    StaleWeights,
    Weights,
    WholeModel,
)
from comas.types import UserMistake

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Nats by which the mean log-prob of a probe's tokens may differ from the learner's; rounding was
seen to make 3e-6.
"""
COARSE = 0.25
"""Tolerance where either of the two computes in half precision; rounding was seen to make 6e-2."""
LEAST = 32
"""Tokens of a probe beyond a block of the prefix cache, where they fit into the context, and how
many of its first tokens vLLM is asked the log-probs of.
"""
ONE = 4
"""Times the tolerance: by how much that of the drawn token alone may differ, which no mean evens
out. It alone was computed behind what the prefix cache has.
"""
SEED = 17
"""Seed of the token that is drawn behind a probe."""


@dataclass(frozen=True)
class ScoredTokens:
    """Tokens, and vLLM's log-probs of some of them."""

    token_ids: list[int]
    places: list[int]
    """Places of some tokens, from the second one on; the last one was drawn behind all others."""
    logprobs: np.ndarray
    """Log-probs of the tokens at `places`, (places,)."""

    def gap(self, logits_TV: Tensor) -> float:
        """Distance in nats from the log-probs of the learner, whose logits these are: the mean of
        all tokens, or, where that is more, the drawn token's over `ONE`.
        """
        before = torch.tensor(self.places, device=logits_TV.device) - 1
        chosen = torch.tensor([self.token_ids[index] for index in self.places])
        logprobs_PV = logits_TV[before].double().log_softmax(-1)
        of_tokens = logprobs_PV.gather(1, chosen.to(logits_TV.device)[:, None])[:, 0].cpu().numpy()
        apart = np.abs(self.logprobs - of_tokens)
        return float(max(apart.mean(), apart[-1] / ONE))


class Probe:
    """Fixed tokens whose log-probs are compared."""

    def __init__(self, vllm: Library, vocabulary: int, context: int, dtype: torch.dtype) -> None:
        """`dtype` is that of vLLM's model. The prompt fills a block of the prefix cache where the
        context is long enough.
        """
        self.vllm = vllm
        self.dtype = dtype
        length = max(2, min(vllm.block + LEAST, context - 1))
        places = np.arange(length)
        self.prompt_ids: list[int] = (places * 7919 % max(1, vocabulary - 8) + 7).tolist()
        self.prompt_ids = [min(i, vocabulary - 1) for i in self.prompt_ids]

    def read(self, adapter: Loaded | None, name: str, new: bool) -> ScoredTokens:
        """Read the probe with this adapter; StaleWeights where vLLM found tokens of a version that
        is `new` in its prefix cache.

        vLLM computes afresh what it is to tell the log-probs of, and only a reply uses the cache.
        So the beginning of the probe is read, and a token is drawn behind all of it.
        """
        beginning = self.prompt_ids[:LEAST]
        drawn, read = self.vllm.run(
            [
                VllmRequest(prompt_ids=self.prompt_ids, adapter=adapter, seed=SEED),
                VllmRequest(prompt_ids=beginning, adapter=adapter, seed=SEED, reads=True),
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
        return ScoredTokens([*self.prompt_ids, *drawn.token_ids], places, logprobs)

    def check(
        self, reading: ScoredTokens, logits_TV: Tensor, dtype: torch.dtype, name: str
    ) -> None:
        """StaleWeights where what vLLM computed is further from the learner, which computes in
        `dtype`, than rounding.
        """
        gap = reading.gap(logits_TV)
        most = self.tolerance(dtype)
        if not gap <= most:
            raise StaleWeights(
                f"{name}: log-probs of vLLM are {gap:.2g} nats per token from the learner's, and"
                f" rounding makes less than {most:g}: it does not serve these weights"
            )

    def tolerance(self, dtype: torch.dtype) -> float:
        """Nats, for a learner that computes in `dtype`."""
        return max(TOLERANCE.get(self.dtype, COARSE), TOLERANCE.get(dtype, COARSE))


@torch.no_grad()
def logits_of(model: CausalLM, ids: Sequence[int]) -> Tensor:
    """Logits (T, V) of the model as it is: a whole one, or the base below adapters."""
    ids_1T = torch.tensor([list(ids)], device=model.device)
    return model(input_ids=ids_1T, use_cache=False).logits[0]


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


def as_served(pairs: Pairs, scale: float, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Return an adapter as vLLM makes it: in its dtype, then B times alpha / rank, rounded
    again.
    """
    return {name: (a.to(dtype), b.to(dtype) * scale) for name, (a, b) in pairs.items()}


TRIAL = 0.5
"""Size of the trial adapter's change of a weight, as a share of the weight's own."""


@dataclass(frozen=True)
class Serving:
    """Adapter that serves a policy now."""

    adapter: Loaded
    version: int
    published: int
    """How often the policy was published, this time included."""


PROVE_EVERY = 4
"""Publishes of an adapter from one comparison of log-probs to the next, after the first two."""


class Adapters:
    """The table of policies and the versions that serve them."""

    def __init__(
        self,
        vllm: Library,
        folders: Folders,
        shared: AdaptedModel,
        policies: Sequence[str],
        probe: Probe,
        host: str,
        *,
        prove_every: int = PROVE_EVERY,
    ) -> None:
        """`host` is `hosts.<name>`, for error messages. Proves that vLLM has the base, and that it
        takes adapters on it, before any policy is published.

        Log-probs are compared at the first two publishes of a policy, of which the second is the
        first step or the checkpoint of a run that goes on, and at each `prove_every`-th one after
        them.
        """
        self.vllm = vllm
        self.folders = folders
        self.shared = shared
        self.probe = probe
        self.host = host
        self.prove_every = prove_every
        self.dtype: torch.dtype = vllm.call(worker.adapter_dtype)[0]
        modules = sorted({m for p in policies for m in pairs_of(shared, p)})
        self.names: Mapping[str, str] = vllm.call(worker.names_of, modules)[0]
        self._serving: dict[str, Serving] = {}
        self._try(policies)
        for policy in policies:
            self.publish(policy, Adapter(shared), 0)

    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Load, prove, switch, forget the version before; in this order."""
        name = f"policy {policy}, version {version}"
        if not isinstance(weights, Adapter) or weights.shared.model is not self.shared.model:
            raise StaleWeights(f"{name}: it is no adapter on the base that vLLM has")
        if policy not in weights.shared.policies:
            raise StaleWeights(f"policy {policy!r} has no adapter on the base that it shares")
        self.shared = weights.shared
        before = self._serving.get(policy)
        published = before.published + 1 if before else 1
        spec = self.shared.specs[policy]
        adapter = self.folders.write(policy, version, spec, pairs_of(self.shared, policy))
        try:
            self._load(adapter, name)
            self._prove(policy, adapter, name)
            if published == 1 or (published - 2) % self.prove_every == 0:
                reading = self.probe.read(adapter, name, new=True)
                model = self.shared.model
                with self.shared.routed([list(self.shared.policies).index(policy)]):
                    learnt = logits_of(model, reading.token_ids)
                self.probe.check(reading, learnt, model.dtype, name)
        except BaseException:  # the version before goes on serving
            self._drop(adapter)
            raise
        self._serving[policy] = Serving(adapter, version, published)
        if before is not None:
            self._drop(before.adapter)

    def serving(self, policies: Sequence[str]) -> dict[str, Loaded]:
        """Return the adapter that serves each of these policies; loaded and proved again where vLLM
        has dropped it.
        """
        loaded = self.vllm.numbers()
        adapters: dict[str, Loaded] = {}
        for policy in policies:
            serving = self._serving[policy]
            if serving.adapter.number not in loaded:
                name = f"policy {policy}, version {serving.version}"
                self._load(serving.adapter, name)
                self._prove(policy, serving.adapter, name)
            adapters[policy] = serving.adapter
        return adapters

    def close(self) -> None:
        """Delete all folders."""
        self.folders.close()

    def _drop(self, adapter: Loaded) -> None:
        self.vllm.remove(adapter)
        self.folders.drop(adapter)

    def _load(self, adapter: Loaded, name: str) -> None:
        """Have vLLM read an adapter; one line where it does not."""
        try:
            self.vllm.add(adapter)
        except Exception as error:
            if not adapter.folder.is_dir():
                raise StaleWeights(
                    f"{name}: {adapter.folder} has vanished, from where vLLM reads the adapter:"
                    " something deletes files there; set TMPDIR to a folder that stays"
                ) from error
            words = " ".join(str(error).split())[:300]
            raise UserMistake(
                f"{self.host}.engine = 'vllm' does not take the adapter of {name}"
                f" ({type(error).__name__}: {words}): set {self.host}.targets to what it takes, or"
                f" {self.host}.engine=hf"
            ) from error

    def _prove(self, policy: str, adapter: Loaded, name: str) -> None:
        """Count modules and compare tensors."""
        spec = self.shared.specs[policy]
        scale = spec.alpha / spec.rank
        self._compare(adapter, as_served(pairs_of(self.shared, policy), scale, self.dtype), name)

    def _compare(self, adapter: Loaded, served: Pairs, name: str) -> None:
        """StaleWeights where vLLM's model has not bound exactly these modules to the adapter, or
        where a tensor that its kernels read is another. `served` is in the dtype of adapters, B
        times alpha / rank.
        """
        learnt = {self.names[module]: pair for module, pair in served.items()}
        bound = set.intersection(*map(set, self.vllm.call(worker.bound_modules, adapter.number)))
        if odd := sorted(set(learnt) ^ bound):
            where = "vLLM has left it out" if odd[0] in learnt else "only vLLM has it"
            raise StaleWeights(
                f"{name}: vLLM has bound {len(bound & set(learnt))} of its {len(learnt)} modules"
                f" ({odd[0]}: {where}), and samples the others from the base"
            )
        differences = self.vllm.call(worker.difference, adapter.number, learnt)
        module, apart = max(differences, key=lambda difference: difference[1])
        if module:
            raise StaleWeights(
                f"{name}: the tensors of {module} in vLLM are not the learner's (largest difference"
                f" {apart:.2g}): it serves another version"
            )

    @torch.no_grad()
    def _try(self, policies: Sequence[str]) -> None:
        """Prove that vLLM has the learner's base, and that an adapter of all modules changes its
        log-probs as it changes the learner's: those of a new policy change nothing yet.
        """
        base: Any = self.shared.model
        name = "the base"
        reading = self.probe.read(None, name, new=False)
        self.probe.check(reading, logits_of(base, reading.token_ids), base.dtype, name)
        rank = max(self.shared.specs[policy].rank for policy in policies)
        pairs = _trial(base, sorted(self.names), rank)
        name = "a trial adapter"
        adapter = self.folders.write("trial", 0, AdapterSpec(rank, float(rank)), pairs)
        try:
            self._load(adapter, name)
            served = as_served(pairs, 1.0, self.dtype)
            self._compare(adapter, served, name)
            reading = self.probe.read(adapter, name, new=True)
            with added(base, served):
                changed = logits_of(base, reading.token_ids)
            self.probe.check(reading, changed, base.dtype, name)
            if reading.gap(logits_of(base, reading.token_ids)) <= 2 * self.probe.tolerance(
                base.dtype
            ):
                raise StaleWeights(f"{name} does not change what vLLM says of a probe")
        finally:
            self._drop(adapter)


def pairs_of(shared: AdaptedModel, policy: str) -> Pairs:
    """Module -> A (rank, in) and B (out, rank) of a policy, as the learner has them."""
    tensors = shared.tensors(policy)
    modules = [name.removesuffix(".lora_A") for name in tensors if name.endswith(".lora_A")]
    return {name: (tensors[f"{name}.lora_A"], tensors[f"{name}.lora_B"]) for name in modules}


def _trial(model: Any, modules: Sequence[str], rank: int) -> Pairs:
    """A random adapter that changes each of these modules by `TRIAL` of its weight's norm."""
    generator = torch.Generator().manual_seed(0)
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name in modules:
        weight = model.get_submodule(name).weight
        out, wide = weight.shape
        a = torch.randn(rank, wide, generator=generator)
        b = torch.randn(out, rank, generator=generator)
        norm = ((a @ a.mT) * (b.mT @ b)).sum().sqrt()  # of B A, which is not made
        b *= TRIAL * float(weight.detach().float().norm()) / norm
        pairs[name] = (a.to(weight.device), b.to(weight.device))
    return pairs


COLUMNS = 16
"""Inputs of each layer whose weights are compared."""


class Whole:
    """The one model that vLLM has, and the policy that it is."""

    def __init__(self, vllm: Library, policy: str, model: Any, probe: Probe) -> None:
        self.vllm = vllm
        self.policy = policy
        self.probe = probe
        self._prove(model, 0)

    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Load weights in place, and prove them; there is nothing to go back to."""
        if not isinstance(weights, WholeModel):
            raise StaleWeights(f"policy {policy}, version {version}: it is no whole model")
        self.vllm.call(worker.reload, partial(checkpoint_of, weights.model))
        if not self.vllm.forget_prefixes():  # all versions have one name
            raise StaleWeights(
                f"policy {policy}, version {version}: vLLM has not emptied its prefix cache, and"
                " would go on from tokens of an earlier version"
            )
        self._prove(weights.model, version)

    def serving(self, policies: Sequence[str]) -> Mapping[str, Loaded | None]:
        """Return None for each of these policies: no adapter serves it."""
        return dict.fromkeys(policies)

    def close(self) -> None:
        """Nothing is kept besides vLLM itself."""

    def _prove(self, model: Any, version: int) -> None:
        name = f"policy {self.policy}, version {version}"
        check_weights(self.vllm, model, self.probe.dtype, version, name)
        reading = self.probe.read(None, name, new=True)
        self.probe.check(reading, logits_of(model, reading.token_ids), model.dtype, name)


def is_tied(model: Any) -> bool:
    """Whether the head is the embedding."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def checkpoint_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights as a checkpoint has them: tied ones once."""
    tied = is_tied(model)
    for name, weight in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            yield name, weight


@torch.no_grad()
def check_weights(vllm: Library, model: Any, dtype: torch.dtype, version: int, name: str) -> None:
    """StaleWeights where a weight of the model is in no layer of vLLM's, or where what vLLM
    multiplies with is not the model's.
    """
    weights = {key: tensor for key, tensor in model.state_dict().items() if tensor.ndim}
    covered: set[str] = set()
    for layer, parts in vllm.call(worker.linear_modules)[0].items():
        keys = [f"{part}.weight" for part in parts]
        if not all(key in weights for key in keys):
            raise StaleWeights(f"{name}: {layer} in vLLM is no layer of the learner's")
        wide = weights[keys[0]].shape[1]
        places = sorted({(version * 31 + i * 7919) % wide for i in range(COLUMNS)})
        learnt = torch.cat([weights[key][:, places] for key in keys])
        _compare(layer, vllm.call(worker.columns, layer, places)[0], learnt.to(dtype), name)
        covered.update(keys)
    for key, served in vllm.call(worker.plain_tensors)[0].items():
        if key in weights.keys() - covered:
            _compare(key, served, weights[key].to(dtype), name)
            covered.add(key)
    merged = {key for key in weights if key.endswith(".bias")}  # log-probs tell of those
    if missing := sorted(weights.keys() - covered - merged):
        raise StaleWeights(f"{name}: {missing[0]} is in no layer of vLLM's model")


def _compare(layer: str, served: Tensor, learnt: Tensor, name: str) -> None:
    served = served[: len(learnt)]  # a vocabulary may be padded
    if not torch.equal(served, learnt):
        apart = float((served.double() - learnt.double()).abs().max())
        raise StaleWeights(
            f"{name}: the weights of {layer} that vLLM multiplies with are not the learner's"
            f" (largest difference {apart:.2g}): it serves another version"
        )
