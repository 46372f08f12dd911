"""Rows, a method and a host for tests of learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from comas.engines import hf, stacked
from comas.hosts.local import make_local_host
from comas.learners.recipe import Recipe
from comas.learners.step import logprobs
from comas.objective.credit import grpo, reinforce_pp
from comas.objective.losses import clipped, plain
from comas.seams import AdapterSpec
from comas.types import Ask, Method, Row, Sampling

POLICIES = ("a", "b")
KINDS = {
    "whole, stacked": {"engine": stacked},
    "whole, hf": {"engine": hf},
    "adapters, hf": {"engine": hf, "adapters": True},
    "adapters, stacked": {"engine": stacked, "adapters": True},
}
"""Ways in which a host may learn and sample."""
METHOD = Method(lambda: None, lambda: None, reinforce_pp, clipped, kl={"solution": 0.1})  # type: ignore[arg-type, return-value]


COMPARED = Method(lambda: None, lambda: None, grpo, plain)  # type: ignore[arg-type, return-value]


def rows(count: int = 12, seed: int = 0, temperature: float = 1.0) -> list[Row]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        prompt = int(rng.integers(2, 9))
        reply = int(rng.integers(1, 9))
        ids = rng.integers(4, 50, prompt + reply)
        mask = np.arange(prompt + reply) >= prompt
        role = "solution" if i % 3 else "evaluation"
        made.append(
            Row(
                f"t{i}",
                role,
                temperature,
                ids,
                mask,
                np.zeros(len(ids), np.float32),
                f"g{i % 2}",
                float(rng.random()),
            )
        )
    return made


def logprobs_of(
    learner: Any, policy: str, part: Sequence[Row], reference: bool = False
) -> list[np.ndarray]:
    """Log-probs of the rows of one policy, or of its start."""
    return logprobs(learner, [(policy, row) for row in part], reference)


async def say(host, turn: str, policy: str = "a", keep: bool = True, **sampling: float):  # type: ignore[no-untyped-def]
    messages = [{"role": "user", "content": "solve 1 2 4 5 -> 7"}]
    how = Sampling(max_tokens=12, **sampling)
    return await host.ask(Ask(turn, policy, messages, "solution", keep, how, 9))


def learning_host(
    bases: Mapping[str, str],
    below: Path,
    engine: Any,
    adapters: bool = False,
    method: Method = METHOD,
    **more: Any,
) -> Any:
    """One of the `KINDS`; adapters are those of `bases`, or new ones, on the base `below`."""
    keys: dict[str, Any] = {}
    if adapters:
        keys = {"under": str(below), "shapes": dict.fromkeys(POLICIES, AdapterSpec(4, 8.0))}
    keys |= more
    recipe = Recipe(1e-2)
    return make_local_host("home", bases, method=method, recipe=recipe, engine=engine, **keys)


def host_of(base: Path, method: Method = COMPARED, **changes: Any) -> Any:
    """A host of two policies, `a` and `b`, that learns by a method."""
    bases = {"a": str(base), "b": str(base)}
    return make_local_host("home", bases, method=method, recipe=Recipe(1e-2), **changes)
