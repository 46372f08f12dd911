"""Runs that play a step while the one before is learnt (`ahead = 1`): for which configs that makes
sense, and which steps are played so.

Leaves out: playing them (`training.ahead`).
"""

from __future__ import annotations

from comas.config.policies import Resolved
from comas.config.schema import Config
from comas.objective.losses import plain
from comas.types import UserMistake


def check_ahead(resolved: Resolved) -> None:
    """An error for what makes no sense where a step is played before the one in front of it is
    learnt.
    """
    config = resolved.config
    if not config.ahead:
        return
    method = resolved.method
    if method.update is not None and not method.draws_behind:
        raise UserMistake(
            f"ahead=1: method {config.method} goes on from what a step brought, and the next one"
            " would be played before that is known: set ahead=0"
        )
    loss = getattr(method.loss, "func", method.loss)
    for name, host in config.hosts.items():
        if host.here and host.compile:
            raise UserMistake(
                f"hosts.{name}.compile: torch.compile and learning cannot share a process at the"
                " same time: set ahead=0, or leave it out"
            )
        if host.old_logprobs == "sampled" and loss is plain and not method.fresh:
            raise UserMistake(
                f"hosts.{name}.old_logprobs=sampled leaves the correction of earlier weights to the"
                " ratio of the loss, and loss plain has none: set ahead=0, or"
                f" hosts.{name}.old_logprobs=recomputed"
            )


def begins_at(config: Config, measures: bool, step: int) -> bool:
    """Whether a step of such a run, which `measures` accuracy on its way or not, is played by what
    was learnt and remembered of all steps before it; otherwise the last of them is missing.
    """
    every = [config.checkpoint_every]
    if measures:
        every.append(config.eval_every)
    return not config.ahead or any(step % count == 0 for count in every)
