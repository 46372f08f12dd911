"""A whole model in vLLM: new weights put in place, and the proof of them.

vLLM may keep a copy of a layer that is packed for the processor, or tied to another one, and load
weights beside it; so what is compared is what a layer's own product makes of chosen inputs. Leaves
out: several policies, which vLLM cannot tell apart without adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from comas.engines.vllm import proof, worker
from comas.engines.vllm.library import Library, Loaded
from comas.engines.vllm.proof import Probe
from comas.seams import StaleWeights, Weights, WholeModel

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
        """What serves each of these policies: no adapter."""
        return dict.fromkeys(policies)

    def close(self) -> None:
        """Nothing is kept besides vLLM itself."""

    def _prove(self, model: Any, version: int) -> None:
        name = f"policy {self.policy}, version {version}"
        check_weights(self.vllm, model, self.probe.dtype, version, name)
        reading = self.probe.read(None, name, new=True)
        self.probe.check(reading, proof.logits_of(model), model.dtype, name)


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
    for layer, parts in vllm.call(worker.linear_modules).items():
        keys = [f"{part}.weight" for part in parts]
        if not all(key in weights for key in keys):
            raise StaleWeights(f"{name}: {layer} in vLLM is no layer of the learner's")
        wide = weights[keys[0]].shape[1]
        places = sorted({(version * 31 + i * 7919) % wide for i in range(COLUMNS)})
        learnt = torch.cat([weights[key][:, places] for key in keys])
        _compare(layer, vllm.call(worker.columns, layer, places), learnt.to(dtype), name)
        covered.update(keys)
    for key, served in vllm.call(worker.plain_tensors).items():
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
