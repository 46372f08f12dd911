"""Pay for dialogues: each counts once, however many replies it has.

A settlement compares whole dialogues, and gives every reply of one the same; with the credit
`given` that is the advantage of each of their tokens. Leaves out: what a dialogue is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comas.objective.pay import standardised
from comas.types import Episode, Turn


@dataclass(frozen=True)
class Dialogue:
    """The replies of one agent in one dialogue."""

    replies: Sequence[Turn]

    @property
    def end(self) -> Turn:
        """The reply that answers."""
        return self.replies[-1]

    @property
    def calls(self) -> int:
        """How many of its replies called a tool."""
        return sum("call" in reply.info for reply in self.replies)

    @property
    def worked(self) -> float:
        """The share of its calls that did not fail; 0 where it called nothing."""
        calls = [reply.info["call"] for reply in self.replies if "call" in reply.info]
        return sum(call["failed"] is None for call in calls) / max(1, len(calls))

    def pay(self, worth: float | None, raw: float | None = None) -> None:
        """Pay every reply; `raw` is noted as what the dialogue earned, before any baseline."""
        for reply in self.replies:
            reply.reward = worth
        if raw is not None:
            self.end.info["raw"] = raw


def dialogues(episode: Episode, *roles: str) -> list[Dialogue]:
    """The dialogues of an episode in these roles, in the order of their first replies; a turn that
    belongs to none is one by itself.
    """
    by_first: dict[str, list[Turn]] = {}
    for turn in episode.turns:
        if turn.role in roles:
            by_first.setdefault(turn.info.get("dialogue", turn.id), []).append(turn)
    return [Dialogue(sorted(replies, key=_depth)) for replies in by_first.values()]


def _depth(turn: Turn) -> int:
    """How deep a turn lies below its first; each reply's id goes on from the one before."""
    return len(turn.id)


def compare(dialogues: Sequence[Dialogue], rewards: Sequence[float], scale: bool = True) -> None:
    """Pay each dialogue its reward less the mean of all, over their standard deviation (`scale`),
    and note the reward itself.
    """
    for dialogue, worth, raw in zip(dialogues, standardised(rewards, scale), rewards, strict=True):
        dialogue.pay(worth, raw)
