"""The adapters that vLLM serves now: new versions are loaded beside those that serve, proved, and
only then asked for.

Leaves out: what a proof is (`proof`), sampling (`engine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from comas.engines.vllm import proof, worker
from comas.engines.vllm.folders import Folders, Pairs, Shape
from comas.engines.vllm.library import Library, Loaded
from comas.engines.vllm.proof import Probe
from comas.seams import AdaptedModel, Adapter, StaleWeights, Weights
from comas.types import UserMistake

TRIAL = 0.5
"""Size of the trial adapter's change of a weight, as a share of the weight's own."""


@dataclass(frozen=True)
class Serving:
    """What serves a policy now."""

    adapter: Loaded
    version: int
    published: int
    """How often the policy was published, this time included."""


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
        prove_every: int,
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
        self.dtype: torch.dtype = vllm.call(worker.adapter_dtype)
        modules = sorted({m for p in policies for m in pairs_of(shared, p)})
        self.names: Mapping[str, str] = vllm.call(worker.names_of, modules)
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
                learner = proof.logits_with(self.shared, policy)
                self.probe.check(reading, learner, self.shared.model.dtype, name)
        except BaseException:  # the version before goes on serving
            self._drop(adapter)
            raise
        self._serving[policy] = Serving(adapter, version, published)
        if before is not None:
            self._drop(before.adapter)

    def serving(self, policies: Sequence[str]) -> dict[str, Loaded]:
        """What serves each of these policies; loaded and proved again where vLLM has dropped it."""
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
        pairs = pairs_of(self.shared, policy)
        served = proof.as_served(pairs, spec.alpha / spec.rank, self.dtype)
        proof.check_bound(self.vllm, adapter, self.names, list(pairs), name)
        proof.check_tensors(self.vllm, adapter, self.names, served, name)

    @torch.no_grad()
    def _try(self, policies: Sequence[str]) -> None:
        """Prove that vLLM has the learner's base, and that an adapter of all modules changes its
        log-probs as it changes the learner's: those of a new policy change nothing yet.
        """
        base: Any = self.shared.model
        plain = proof.logits_of(base)
        name = "the base"
        self.probe.check(self.probe.read(None, name, new=False), plain, base.dtype, name)
        rank = max(self.shared.specs[policy].rank for policy in policies)
        pairs = _trial(base, sorted(self.names), rank)
        name = "a trial adapter"
        adapter = self.folders.write("trial", 0, Shape(rank, float(rank)), pairs)
        try:
            self._load(adapter, name)
            served = proof.as_served(pairs, 1.0, self.dtype)
            proof.check_bound(self.vllm, adapter, self.names, list(pairs), name)
            proof.check_tensors(self.vllm, adapter, self.names, served, name)
            reading = self.probe.read(adapter, name, new=True)
            with proof.added(base, served):
                self.probe.check(reading, plain, base.dtype, name)
            if reading.gap(plain) <= 2 * self.probe.tolerance(base.dtype):
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
