"""What can be seen of a run without looking at what is said: KL, entropy and the size of updates.

Published monitors alarm when these move. They move where a team learns as well as where it
collapses, and no label-free test of them can tell the two apart; here they stand for comparison.
Each hypothesis is that the figure is as likely to fall as to rise over a few steps. Leaves out:
what is said (the other monitors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen

SPAN = 5
"""Steps over which a figure is compared with itself; every so many steps, so that no step counts
twice.
"""
EVEN = 0.5
"""Chance that a figure without a trend has risen."""
MARGIN = 0.1
KL = Hypothesis("kl", "the KL to the start rises and rises", MARGIN)
ENTROPY = Hypothesis("entropy", "the entropy of replies falls and falls", MARGIN)
UPDATES = Hypothesis("updates", "gradients grow and grow", MARGIN)


def watch() -> Monitor:
    """The geometry of a run."""
    return Geometry()


class Geometry(Monitor):
    """Remembers the figures of SPAN steps before."""

    hypotheses = (KL, ENTROPY, UPDATES)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """1 where a figure has risen (entropy: fallen) in SPAN steps."""
        if seen.step % SPAN:
            return {}
        now = figures_of(seen)
        readings: dict[str, Reading] = {}
        for name in now.keys() & self.memory.keys():
            has_risen = now[name] > self.memory[name]
            readings[name] = Reading([float(has_risen)], start=EVEN)
        self.memory = dict(now)
        return readings


def figures_of(seen: Seen) -> dict[str, float]:
    """Means over learnt turns and policies; what is not known is left out."""
    learnt = [turn for turn in seen.turns if "kl" in turn.info]
    updated = [stats for stats in seen.policies.values() if "grad_norm" in stats]
    tokens = sum(turn.tokens for turn in seen.turns)
    found: dict[str, float] = {}
    if learnt:
        found["kl"] = math.fsum(turn.info["kl"] for turn in learnt) / len(learnt)
    if updated:
        found["updates"] = math.fsum(stats["grad_norm"] for stats in updated) / len(updated)
    if tokens:
        # mean log-prob of a sampled token: minus the entropy of the policy, on average
        found["entropy"] = math.fsum(turn.logprob for turn in seen.turns) / tokens
    return found
