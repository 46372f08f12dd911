"""Populations of uneven adapters, and distances between gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.seams import AdapterSpec
from comas.types import Row
from tests.support.learning import METHOD, rows
from tests.support.models import llama

SPECS = {
    "a": AdapterSpec(4, 8.0),
    "b": AdapterSpec(12, 32.0),
    "c": AdapterSpec(3, 5.0, ("q_proj", "down_proj")),
    "d": AdapterSpec(1, 2.0, ("model.layers.1.mlp.up_proj",)),
}
"""Ranks, scales (32 / 12 is no binary fraction) and targets differ."""


UNEVEN = {"a": 5, "b": 9, "d": 7}


EVEN = {"a": 4, "b": 4, "c": 4, "d": 4}
"""Rows per policy; in the first one in the middle has none."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small operations: threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def population(
    specs: Mapping[str, AdapterSpec] = SPECS,
    dtype: torch.dtype = torch.float64,
    spread: float = 0.3,
    model: Any = None,
    only: Sequence[str] | None = None,
) -> Population:
    """Adapters that are not zero, where `spread` is not; those of `only`, as they would be among
    all.
    """
    here = {p: s for p, s in specs.items() if only is None or p in only}
    made = Population((llama(7) if model is None else model).to(dtype), here)
    for p in here:
        fill(made, p, spread, sorted(specs).index(p))
    return made


def fill(made: Population, policy: str, spread: float, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in made.tensors(policy).items():
            if name.endswith("lora_B"):
                tensor.copy_(
                    spread * torch.randn(tensor.shape, generator=noise, dtype=torch.float64)
                )


def learner_of(made: Population, **changes: Any) -> AdapterLearner:
    return AdapterLearner(
        made, Recipe(**{"lr": 1e-2, "grad_norm": 1e9, **changes}), METHOD, 0, "base"
    )


def parts_of(counts: Mapping[str, int]) -> dict[str, list[Row]]:
    return {p: rows(n, seed=i) for i, (p, n) in enumerate(counts.items())}


class Gradients(AdapterLearner):
    """Keeps the gradients of each optimizer step before they are clipped."""

    def finish(self, policy: str, loss: float) -> float | None:
        self.__dict__.setdefault("kept", {}).setdefault(policy, []).append(
            {n: g.clone() for n, g in self.population.tensors(policy, self.grads_PN).items()}
        )
        return super().finish(policy, loss)


def gradients(
    made: Population, parts: Mapping[str, list[Row]], method: Any = METHOD, **changes: Any
) -> dict[str, Any]:
    learner = Gradients(
        made, Recipe(**{"lr": 1e-3, "grad_norm": 1e9, **changes}), method, 0, "base"
    )
    learner.step(copy.deepcopy(parts))
    return learner.kept  # type: ignore[attr-defined]


def distance(one: Any, two: Any) -> float:
    """Of the gradients of one policy, over the size of them, the worst of its optimizer steps;
    wherever they lie.
    """

    def flat(steps: Any) -> list[torch.Tensor]:
        return [torch.cat([g.flatten() for g in s.values()]).double().cpu() for s in steps]

    return max(float((a - b).norm() / b.norm()) for a, b in zip(flat(one), flat(two), strict=True))
