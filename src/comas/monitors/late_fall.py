"""Accuracy on the validation split that falls again after its best: needs labels.

The best of several measurements is flattered by chance: the highest lower limit of all is what
later ones are compared with, and all limits of a run hold at once, with a probability of
`1 - ERROR`. Leaves out: the held-out split, which is measured at the ends of a run alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from comas.monitors.evidence import highest_mean
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen

FALLEN = Hypothesis(
    "fallen",
    "validation accuracy falls below its best",
    0.05,
    lately="of answers wrong lately",
    before="at most at the best",
)

ERROR = 0.0007
"""The probability that any limit of a run does not hold: half of what a hypothesis of the default
set gets, which needs the other half.
"""


def watch() -> Monitor:
    """Late falls in a run."""
    return LateFall()


class LateFall(Monitor):
    """Remembers the highest lower limit so far, and how many there were."""

    hypotheses = (FALLEN,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per validation question, the share of answers that are wrong."""
        if not seen.validated:
            return {}
        before = self.memory.get("best", 0.0)
        wrong = [1.0 - share for share in seen.validated]
        measured = self.memory.get("measured", 0) + 1
        # the m-th of endlessly many has the part 6 / (pi m)^2 of the error
        error = ERROR * 6.0 / (math.pi * measured) ** 2
        low = 1.0 - highest_mean(fmean(wrong), len(wrong), error)
        self.memory = {"best": max(before, low), "measured": measured}
        return {"fallen": Reading(wrong, start=1.0 - before)}
