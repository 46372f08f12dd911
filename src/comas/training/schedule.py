"""Learning rates over a run: a function of the step, so that a resumed run has the same.

Leaves out: schedules of anything else; a method puts phases into its state.
"""

from __future__ import annotations

import math
from dataclasses import replace

from comas.config.schema import Config
from comas.types import Method


def scheduled(method: Method, config: Config, step: int) -> Method:
    """The method as it learns in this step, counted from 0."""
    scale = lr_scale(config.schedule, config.warmup, config.steps, step)
    return method if scale == method.lr_scale else replace(method, lr_scale=scale)


def lr_scale(schedule: str, warmup: int, steps: int, step: int) -> float:
    """What the learning rate is multiplied with in `step`, counted from 0, of `steps`.

    It rises in a line over the first `warmup` steps. From there it is constant, falls in a line, or
    falls along half a cosine, and would reach 0 in the step after the last.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    share = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return 1.0 - share
    return 0.5 * (1.0 + math.cos(math.pi * share))
