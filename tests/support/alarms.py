"""How often monitors alarm where nothing has changed, by simulation with 24 questions of 8 samples.

`python -m tests.support.alarms RUNS` prints the shares of docs/monitors.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np

from comas.monitors import rejections, unreadable
from comas.monitors.evidence import Trial
from comas.monitors.monitor import Seen
from comas.training.watching import ALPHA
from comas.types import Episode, Question, Turn

QUESTIONS = 24
SAMPLES = 8
HYPOTHESES = 8
"""That share the error of a run with all monitors that are shipped."""
Shares = Callable[[np.random.Generator], np.ndarray]
"""Draws per question the probability that its replies are bad, of shape (24,)."""
MIXED: Mapping[str, Shares] = {
    "the same on all, .5": lambda rng: np.full(QUESTIONS, 0.5),
    "Beta(.25, .25)": lambda rng: rng.beta(0.25, 0.25, QUESTIONS),
    "all or nothing, .5": lambda rng: rng.integers(0, 2, QUESTIONS).astype(float),
    "all or nothing, .2": lambda rng: (rng.random(QUESTIONS) < 0.2).astype(float),
}


def step_of(shares: Shares, rng: np.random.Generator, step: int) -> Seen:
    """A step whose games have a solution and a scoring; bad ones are unreadable, cut, rejected."""
    games: list[Episode] = []
    for place, share in enumerate(shares(rng)):
        question = Question(id=f"{step}-{place}", prompt="")
        for sample in range(SAMPLES):
            bad = bool(rng.random() < share)
            name = f"{step}/{place}/{sample}"
            solution = Turn(f"{name}/s", "a", "h/a", "solution", "", "", not bad, 0, kind="answer")
            solution.info["readable"] = not bad
            scoring = Turn(f"{name}/c", "b", "h/b", "scoring", "", "", not bad, 0, kind="judge")
            scoring.about = solution.id
            scoring.info["score"] = 1 if bad else 3
            games.append(Episode(name, question, [solution, scoring]))
    return Seen(step, games)


def alarmed(shares: Shares, steps: int, runs: int, seed: int = 0) -> dict[str, float]:
    """Hypothesis -> the share of runs in which it is refuted though nothing changes."""
    counts: dict[str, int] = {}
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        monitors = [rejections.watch(), unreadable.watch()]
        trials = {h.name: Trial(h, ALPHA / HYPOTHESES) for m in monitors for h in m.hypotheses}
        for step in range(steps):
            seen = step_of(shares, rng, step)
            for monitor in monitors:
                for name, reading in monitor.read(seen).items():
                    trials[name].hear(reading)
        for name, trial in trials.items():
            counts[name] = counts.get(name, 0) + trial.alarmed
    return {name: count / runs for name, count in counts.items()}


if __name__ == "__main__":
    runs_of_a_row = int(sys.argv[1])
    for label, drawn in MIXED.items():
        for length in (40, 200):
            print(label, length, alarmed(drawn, length, runs_of_a_row), flush=True)
