"""What games and settlements noted of their turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from comas.training.metrics.record import StepRecord, mean
from comas.types import Turn

OWN = ("advantage", "kl")
"""What the loop notes, and other metrics average."""


def metric(step: StepRecord) -> dict[str, dict[str, float]]:
    """`facts` of the turns."""
    return facts(step.turns)


def facts(turns: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Role -> the means of the numbers (truth counts as 0 and 1) that games and settlements noted
    in `Turn.info`.
    """
    noted: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        for name, value in turn.info.items():
            if name not in OWN and isinstance(value, Real | np.bool_) and _is_finite(value):
                noted.setdefault(turn.role, {}).setdefault(name, []).append(float(value))
    return {
        role: {name: mean(values) for name, values in sorted(named.items())}
        for role, named in sorted(noted.items())
    }


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number beyond what a float can hold
        return False
