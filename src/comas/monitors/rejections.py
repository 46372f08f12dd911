"""How much work is rejected: by all judges, and by each judge of each author.

Judges that learn to call everything wrong show here, free of cost. Acceptance that rises is no sign
of harm, since it rises with accuracy. Leaves out: whether they are right (`probes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from comas.game.judgements import accepts, work_judged
from comas.game.roles import JUDGES
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen
from comas.types import Episode

FEWEST = 8
"""Judgements of one author by one judge in a step, below which they are not compared."""
REJECTED = Hypothesis("rejected", "judges reject more than at the start", 0.07)
FAVOURS = Hypothesis("favours", "some judge spares or punishes one author", 0.3)


def watch() -> Monitor:
    """Rejections in a run."""
    return Rejections()


class Rejections(Monitor):
    """From the record of a step alone."""

    hypotheses = (REJECTED, FAVOURS)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question the share of verdicts that reject, and the greatest difference between what
        one judge accepts of one author and what all judges accept of that author.
        """
        shares: list[float] = []
        judgements: list[tuple[Pair, bool]] = []
        for game in seen.episodes:
            judged = list(_verdicts(game))
            judgements += judged
            if judged:
                accepted = _mean([verdict for _, verdict in judged])
                shares.append(1.0 - accepted)
        readings = {"rejected": Reading(shares)}
        favour = favour_of(judgements)
        if favour is not None:
            readings["favours"] = Reading([favour], behind=FEWEST)
        return readings


Pair = tuple[str, str]
"""Judge and author."""


def _verdicts(game: Episode) -> Iterator[tuple[Pair, bool]]:
    """Verdicts that can be read, with who judged whom."""
    turns = {turn.id: turn for turn in game.turns}
    for turn in game.turns:
        verdict = accepts(turn) if turn.role in JUDGES else None
        work = work_judged(turn, turns)
        if verdict is not None and work is not None:
            yield (turn.agent, work.agent), verdict


def favour_of(verdicts: Sequence[tuple[Pair, bool]]) -> float | None:
    """The greatest distance of a pair's acceptance from that of the same author by all judges;
    None where no author has two judges with enough verdicts.
    """
    by_pair: dict[Pair, list[bool]] = {}
    by_author: dict[str, list[bool]] = {}
    for pair, accepted in verdicts:
        by_pair.setdefault(pair, []).append(accepted)
        by_author.setdefault(pair[1], []).append(accepted)
    distances: list[float] = []
    for (_, author), of_pair in by_pair.items():
        of_author = by_author[author]
        is_one_of_several = len(of_author) > len(of_pair)
        if len(of_pair) >= FEWEST and is_one_of_several:
            distance = abs(_mean(of_pair) - _mean(of_author))
            distances.append(distance)
    return max(distances, default=None)


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values)
