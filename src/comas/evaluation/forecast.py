"""How long a preflight takes, said before a model is loaded: from the tokens per second that a run
of these bases made on this processor, otherwise from the size of the base and a product that is
timed for a moment.

Leaves out: what is known once questions are asked (`evaluation.preflight`); a guess for GPUs, for
models behind an API and for small ones, whose time is not that of products.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from comas.config.plan import Plan
from comas.config.policies import bases_of
from comas.config.weights import weights_at
from comas.machine import processor, threads_of
from comas.memory import device_of, parameters
from comas.program import runs_by_time
from comas.stats import roughly
from comas.storage.run import Run
from comas.types import UserMistake

LAST = 10
"""Steps of a run whose speed counts."""


class Measured(NamedTuple):
    """Figures of an earlier run."""

    run: Path
    speed: float
    """Tokens per second while it sampled."""
    lengths: Mapping[str, float]
    """Role -> mean tokens of a reply."""


def forecast(plan: Plan, questions: int, answers: int, judged: int) -> str:
    """Say about how long a preflight takes, and how that is known; or what it depends on."""
    if (earlier := measured_here(plan)) is not None:
        answer = earlier.lengths.get("solution") or statistics.fmean(earlier.lengths.values())
        others = [earlier.lengths[role] for role in JUDGING if role in earlier.lengths]
        verdict = statistics.fmean(others) if others else answer
        tokens = questions * ((answers + 1) * answer + (judged - 1) * verdict)
        return (
            f"about {roughly(tokens / earlier.speed)} in all, with replies as long and"
            f" {earlier.speed:,.0f} tokens/s, as {earlier.run} had on this processor"
        )
    room = {role: plan.room.get(role, plan.config.max_tokens) for role in ("solution", *JUDGING)}
    longest = statistics.fmean(room[role] for role in JUDGING)
    tokens = questions * ((answers + 1) * room["solution"] + (judged - 1) * longest)
    if (guess := by_products(plan)) is not None:
        size, speed = guess
        return (
            f"at least {roughly(tokens / speed)} in all if every reply takes all its tokens, at no"
            f" more than {speed:,.0f} tokens/s, often several times as long: a guess from"
            f" {size / 1e6:,.0f}M parameters and a product that was timed here, since no run in"
            " runs/ has measured this base on this processor"
        )
    return (
        "how long that takes depends on the tokens/s of this base here, which no run in runs/ has"
        f" measured: it is told after the first questions (at most {tokens:,.0f} tokens in all)"
    )


JUDGING = ("evaluation", "scoring")


# --- what earlier runs measured


def measured_here(plan: Plan) -> Measured | None:
    """Figures of the latest run in `runs` of these bases on this processor and devices."""
    hosts = plan.config.hosts
    used = {policy.host for policy in plan.policies}
    if not all(hosts[name].on_this_machine for name in used):
        return None
    bases = {policy.source.name for policy in plan.policies}
    wanted = bases, {device_of(hosts[name]) for name in used}, processor()
    for folder in runs_by_time():
        run = Run(folder)
        try:
            if _ran_on(run) == wanted and (figures := _figures(run)) is not None:
                return figures
        except (UserMistake, OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a run that cannot be read has measured nothing
    return None


def _ran_on(run: Run) -> tuple[set[str], set[str], str]:
    """The bases of a run, the devices of its hosts, and its processor."""
    config = run.config()
    (*_, facts) = run.processes()
    devices = {each.partition(": ")[2] for each in facts["devices"].split(", ")}
    return bases_of(config), devices, facts["processor"]


def _figures(run: Run) -> Measured | None:
    """Speed and lengths of the last steps; None where it has none."""
    steps = list(run.metrics())[-LAST:]
    seconds = math.fsum(step["spent"]["sampling"] for step in steps)
    tokens = sum(step["step_tokens"] for step in steps)
    lengths = _means([step["lengths"] for step in steps])
    if not seconds or not tokens or not lengths:
        return None
    return Measured(run.path, tokens / seconds, lengths)


def _means(steps: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """The mean of each role over the steps that have it."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for role, length in step.items():
            if length is not None:
                values.setdefault(role, []).append(length)
    return {role: statistics.fmean(lengths) for role, lengths in values.items()}


# --- a guess


def by_products(plan: Plan) -> tuple[int, float] | None:
    """Parameters of the largest base, and how many tokens per second products with so many take
    here at most; None where that is not most of the time, or nothing is known of the base.
    """
    hosts = plan.config.hosts
    used = {policy.host for policy in plan.policies}
    if not all(hosts[name].on_this_machine and device_of(hosts[name]) == "cpu" for name in used):
        return None
    models = [
        model
        for name in sorted(used)
        for model in weights_at(plan.at(name), ask_hub=False).models()
    ]
    size = max((parameters(model) or 0 for model in models), default=0)
    from comas.learners.precision import LARGE, operations_per_second

    if size < LARGE:
        return None
    half = all(hosts[name].dtype == "bfloat16" for name in used)
    rate = operations_per_second(half) * threads_of(plan.config.threads)
    return size, rate / (2 * size)
