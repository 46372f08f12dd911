"""What is known of a step's turns by labels and by reading them, noted for those who look at it.

Noted when the step has been paid, learnt from and remembered: neither a game, a settlement nor a
method that remembers has seen it. Leaves out: figures (`training.metrics`).
"""

from __future__ import annotations

from comas.game.judgements import accepts
from comas.game.roles import JUDGES
from comas.training.metrics.record import StepRecord


def note_truth(step: StepRecord) -> None:
    """Note (`types.TRUTH`) `info["right"]` of work whose label is known, where the task's
    verifier is quick, and `info["accepts"]` of judgements: None where they cannot be read.
    """
    labels = step.labels if step.task.quick else {}
    for turn in step.turns:
        if turn.id in labels:
            turn.info["right"] = labels[turn.id]
        elif turn.role in JUDGES and ("score" in turn.info or "said" in turn.info):
            turn.info["accepts"] = accepts(turn)
