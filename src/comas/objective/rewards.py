"""Functions that settlements share: turns by role, baselines that are facts of the game, dialogues
that count once, how new a text is.

Pure, and whatever the order of what is summed: `math.fsum`. Leaves out: whom to reward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from comas.objective.spread import standardised
from comas.types import Episode, Turn

Grams = Counter[tuple[str, ...]]
"""Runs of words -> how often each is there."""
ALIKE = 0.5
"""Similarity from which two questions count as alike."""


def in_role(episode: Episode, *roles: str) -> list[Turn]:
    """The turns of an episode in one of these roles, in their order."""
    return [turn for turn in episode.turns if turn.role in roles]


def by_id(episode: Episode) -> dict[str, Turn]:
    """The turns of an episode by their ids."""
    return {turn.id: turn for turn in episode.turns}


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are there; None where none is."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return math.fsum(present) / len(present)


def compare_turns(turns: Sequence[Turn], rewards: Sequence[float]) -> None:
    """Give each turn its reward less the mean of all, over their standard deviation, and note the
    reward itself; of dialogues that is `compare`.
    """
    compare([Dialogue([turn]) for turn in turns], rewards)


def earned(turn: Turn) -> float:
    """Return what a turn was found to be worth before others' worth was taken off it, on the scale
    of its method; 0 where it was not rewarded.
    """
    worth = turn.info.get("raw", turn.reward)
    return 0.0 if worth is None else float(worth)


# --- dialogues: each counts once, however many replies it has, and all of these get the same


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

    def reward_all(self, worth: float | None, raw: float | None = None) -> None:
        """Reward every reply; `raw` is noted as what the dialogue earned, before any baseline."""
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
    return [
        Dialogue(sorted(replies, key=lambda turn: len(turn.id))) for replies in by_first.values()
    ]


def compare(dialogues: Sequence[Dialogue], rewards: Sequence[float], scale: bool = True) -> None:
    """Give each dialogue its reward less the mean of all, over their standard deviation (`scale`),
    and note the reward itself.
    """
    for dialogue, worth, raw in zip(dialogues, standardised(rewards, scale), rewards, strict=True):
        dialogue.reward_all(float(worth), raw)


# --- how new a text is


def grams(text: str, longest: int = 3) -> Grams:
    """Count the runs of up to `longest` words of a text."""
    words = text.split()
    counts: Grams = Counter()
    for length in range(1, longest + 1):
        starts = range(len(words) - length + 1)
        runs = [words[start : start + length] for start in starts]
        counts.update(map(tuple, runs))
    return counts


def similarity(one: Grams, other: Grams) -> float:
    """The cosine of two counts, from 0 to 1; 0 where one is empty."""
    squares = _square(one) * _square(other)
    if squares == 0:
        return 0.0
    product = sum(count * other[gram] for gram, count in one.items())
    return product / math.sqrt(squares)


def likeness(texts: Sequence[str | None]) -> list[float]:
    """Per text the share of all that are like it, itself among them; a None was no question."""
    posed = [grams(text) for text in texts if text is not None]
    owns = [grams(text or "") for text in texts]
    return [
        sum(similarity(own_grams, other) >= ALIKE for other in posed) / len(texts)
        for own_grams in owns
    ]


def _square(counts: Grams) -> int:
    return sum(count * count for count in counts.values())
