"""How many turns a step had, and how many of them need an eye."""

from __future__ import annotations

from comas.seams import TIE
from comas.training.metrics.record import StepRecord


def metric(step: StepRecord) -> dict[str, int | None]:
    """Turns, paid ones, failed discussions, cut replies, dropped pieces of history, near-ties; None
    of those where no host measures how near a draw came (a margin is 1 then).
    """
    measured = not step.turns or any(turn.margin < 1 for turn in step.turns)
    near_ties = sum(turn.margin < TIE for turn in step.turns)
    return {
        "turns": len(step.turns),
        "paid": len(step.paid),
        "failed": sum(episode.error is not None for episode in step.episodes),
        "unfinished": sum(not turn.finished for turn in step.turns),
        "dropped": sum(turn.dropped for turn in step.turns),
        "near_ties": near_ties if measured else None,
    }
