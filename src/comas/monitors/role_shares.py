"""Which role learning is about: the share of each role in all advantages, by their size.

A policy whose updates are governed by one role is captured by it (arXiv 2605.24202). A figure that
says that learning has shifted, not that it does harm. Leaves out: gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen

CAPTURED = Hypothesis("captured", "one role takes most of the learning", 0.2)


def watch() -> Monitor:
    """Shares of roles in a run."""
    return RoleShares()


class RoleShares(Monitor):
    """From the record of a step alone."""

    hypotheses = (CAPTURED,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """The greatest share of a role in the sum of absolute advantages times tokens."""
        sizes: dict[str, float] = {}
        for turn in seen.turns:
            advantage = turn.info.get("advantage")
            if isinstance(advantage, float) and math.isfinite(advantage):
                size = abs(advantage) * turn.tokens
                sizes[turn.role] = sizes.get(turn.role, 0.0) + size
        total = math.fsum(sizes.values())
        if len(sizes) < 2 or total == 0.0:
            return {}
        return {"captured": Reading([min(1.0, max(sizes.values()) / total)])}
