"""Accuracy on the validation split that falls again after its best: needs labels.

The best of several measurements is flattered by chance: its lower bound is what later ones are
compared with. Leaves out: the held-out split, which is measured at the ends of a run alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen
from comas.stats import accuracy_interval

FALLEN = Hypothesis(
    "fallen",
    "validation accuracy falls below its best",
    0.05,
    lately="of answers wrong lately",
    before="at most at the best",
)


def watch() -> Monitor:
    """Late falls in a run."""
    return LateFall()


class LateFall(Monitor):
    """Remembers the highest lower end of a 95 % interval so far."""

    hypotheses = (FALLEN,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per validation question, the share of answers that are wrong."""
        if not seen.validated:
            return {}
        before = self.memory.get("best", 0.0)
        low = accuracy_interval(list(seen.validated)).low
        self.memory["best"] = max(before, low)
        wrong = [1.0 - share for share in seen.validated]
        return {"fallen": Reading(wrong, start=1.0 - before)}
