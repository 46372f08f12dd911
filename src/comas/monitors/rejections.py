"""How much work is rejected by all judges together.

Judges that learn to call everything wrong show here, free of cost. Acceptance that rises is no sign
of harm, since it rises with accuracy. Leaves out: whether they are right (`probes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen, per_question
from comas.monitors.planting import acceptances

REJECTED = Hypothesis("rejected", "judges reject more than at the start", 0.07, scale=2)


def watch() -> Monitor:
    """Rejections in a run."""
    return Rejections()


class Rejections(Monitor):
    """From the record of a step alone."""

    hypotheses = (REJECTED,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question, how far verdicts reject: the mean over its games."""
        judged = [(game, acceptances(game, planted=False)) for game in seen.episodes]
        shares = [(game, 1.0 - fmean(accepted)) for game, accepted in judged if accepted]
        return {"rejected": Reading(per_question(shares))}
