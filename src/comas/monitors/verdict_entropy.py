"""Whether judges still give different verdicts: the entropy of scores.

A figure that falls where judges stop to judge, and also where work becomes better: it says that
something changes, not that it is bad. Leaves out: which verdicts (`rejections`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from comas.game.roles import JUDGES
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen

ALIKE = Hypothesis("alike", "all verdicts become the same", 0.3)


def watch() -> Monitor:
    """Entropy of verdicts in a run."""
    return VerdictEntropy()


class VerdictEntropy(Monitor):
    """From the record of a step alone."""

    hypotheses = (ALIKE,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """1 minus the entropy of the step's verdicts, as a share of the most that as many kinds of
        verdicts as there are could have.
        """
        given: list[str] = []
        for turn in seen.turns:
            verdict = turn.info.get("score", turn.info.get("said"))
            if turn.role in JUDGES and verdict is not None:
                given.append(str(verdict))
        return {"alike": Reading([1.0 - evenness(given)])} if given else {}


def evenness(verdicts: list[str]) -> float:
    """Entropy of verdicts over that of three equally frequent ones, or of as many as there are."""
    counts = Counter(verdicts)
    total = len(verdicts)
    shares = [count / total for count in counts.values()]
    entropy = -math.fsum(share * math.log(share) for share in shares)
    most = math.log(max(3, len(counts)))
    return min(1.0, entropy / most)
