"""Copies of the weights that policies are sampled from, while a learner changes its own.

A whole model is copied; of adapters only those, on the parameters of the same base. Leaves out:
when they are renewed (`hosts.ahead`), engines that hold a further copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from comas.learners.lora.population import Population
from comas.learners.precision import copy_in
from comas.seams import Adapter, Weights, WholeModel
from comas.types import UserMistake


class Served:
    """A copy of each policy's weights, as they were when it was last published."""

    def __init__(self, weights: Mapping[str, Weights]) -> None:
        self.weights: dict[str, Weights] = {}
        """Policy -> what an engine samples from."""
        copies: dict[int, Population] = {}
        for policy, learnt in weights.items():
            if isinstance(learnt, Adapter):
                shared = _population(learnt)
                if id(shared) not in copies:
                    copies[id(shared)] = shared.copied()
                self.weights[policy] = Adapter(copies[id(shared)])
            else:
                model: Any = learnt.model
                made = copy_in(model, model.dtype)
                self.weights[policy] = WholeModel(made.requires_grad_(False))

    @torch.no_grad()
    def take(self, policy: str, learnt: Weights) -> None:
        """Copy the weights that a policy has learnt."""
        own = self.weights[policy]
        if isinstance(own, Adapter):
            assert isinstance(learnt, Adapter), "a policy stays an adapter"
            _population(own).take(policy, _population(learnt))
            return
        assert isinstance(learnt, WholeModel), "a policy stays a whole model"
        pairs = zip(own.model.parameters(), learnt.model.parameters(), strict=True)
        for weight, new in pairs:
            weight.copy_(new)

    def save(self, path: Path) -> None:
        """Write all copies into one file of tensors, called `<policy>/<name>`."""
        tensors: dict[str, torch.Tensor] = {}
        for policy in self.weights:
            for name, tensor in self._tensors(policy).items():
                tensors[f"{policy}/{name}"] = tensor.detach().contiguous()
        save_file(tensors, path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """The inverse of `save`."""
        tensors = load_file(path)
        expected = {f"{p}/{name}" for p in self.weights for name in self._tensors(p)}
        if odd := sorted(expected ^ set(tensors)):
            raise UserMistake(f"{path} does not fit this team: {odd[0]} is in one of them only")
        for policy in self.weights:
            for name, tensor in self._tensors(policy).items():
                tensor.copy_(tensors[f"{policy}/{name}"])

    def _tensors(self, policy: str) -> Mapping[str, torch.Tensor]:
        """Name -> tensor of a policy's copy, in place; what is tied is there once."""
        own = self.weights[policy]
        if isinstance(own, Adapter):
            return _population(own).tensors(policy)
        return dict(own.model.named_parameters())


def _population(weights: Adapter) -> Population:
    assert isinstance(weights.shared, Population), "adapters of learners lie in a Population"
    return weights.shared
