"""Intervals as JSON, which has no infinity: an open end is null."""

from __future__ import annotations

import math

from comas.stats import Interval


def interval_record(found: Interval) -> dict[str, float | None]:
    """The fields of an interval."""
    return {name: finite(value) for name, value in found._asdict().items()}


def finite(value: float) -> float | None:
    """The number, or None where it is infinite."""
    return value if math.isfinite(value) else None
