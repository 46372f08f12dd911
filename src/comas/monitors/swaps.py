"""Whether a score follows the criticism or the work: criticism of one solution, planted in the game
of another.

Where a score does what the criticism says, whatever the work is, a critic that is paid for low
scores has nothing left to check. Work that the start accepted is shown with criticism that led to a
rejection, and the answer of another question with criticism that led to acceptance. Only for games
in which a scorer reads a criticism. Leaves out: judges without critics (`probes`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from comas.game.agent import derive_seed
from comas.game.judgements import accepts
from comas.game.play import Scene
from comas.game.roles import WORK
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen, due, measured
from comas.monitors.planting import (
    Plant,
    as_plant,
    as_record,
    bench_of,
    cost_of,
    play_planted,
    seated,
    verdicts,
)
from comas.types import Episode

POOL = 64
"""Discussions of the first step whose criticism is swapped, at most."""
SHARE = 0.01
"""Of a step's discussions, so many games are played with swapped criticism at most."""
FOLLOWS = Hypothesis("follows", "scores follow the criticism, whatever the work is", 0.2)


def watch() -> Monitor:
    """Swapped criticism in a run."""
    return Swaps()


class Swaps(Monitor):
    """Works with criticism of other works, and whether scores followed it at the start."""

    hypotheses = (FOLLOWS,)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        """Values of the latest step."""

    async def begin(self, scene: Scene, episodes: Sequence[Episode]) -> None:
        """Swap what was criticised in the first step; nothing where there are no criticisms of both
        kinds.
        """
        bench = bench_of(scene, episodes)
        cost = cost_of(episodes)
        most = max(1.0, SHARE * len(episodes))
        at_start, rate = self.allowance.divide(POOL, cost, most, cost)
        swapped = swaps_of(episodes[:POOL])[:at_start] if bench else []
        scene = seated(scene, bench)
        plants = [plant for plant, _ in swapped]
        judged = await play_planted(scene, plants, "swaps-start")
        values: list[float] = []
        for (_, praises), game in zip(swapped, judged, strict=True):
            values += _following(game, praises)
        if values:
            records = [{**as_record(plant), "praises": praises} for plant, praises in swapped]
            start = sum(values) / len(values)
            self.memory = {
                "bench": bench,
                "start": start,
                "start_count": len(values),
                "rate": rate,
                "plants": records,
            }

    async def ask(self, scene: Scene, step: int, discussions: int) -> None:
        """Have a few swapped criticisms scored."""
        self.seen = []
        if not self.memory:
            return
        rng = random.Random(derive_seed(scene.seed, "swaps", step))
        rate = self.memory.get("rate", max(1.0, SHARE * discussions))
        drawn = rng.choices(self.memory["plants"], k=due(rate, step))
        scene = seated(scene, self.memory["bench"])
        games = await play_planted(scene, [as_plant(one) for one in drawn], f"{step}-swaps")
        for one, game in zip(drawn, games, strict=True):
            self.seen += _following(game, one["praises"])

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """In each game, the share of scores that do what the criticism says."""
        return {"follows": measured(self.seen, self.memory)} if self.seen else {}


def swaps_of(games: Sequence[Episode]) -> list[tuple[Plant, bool]]:
    """Plants of works with criticism of another work that came to the opposite verdict; whether it
    praises.
    """
    judged = [found for game in games if (found := _judged(game)) is not None]
    plants: list[tuple[Plant, bool]] = []
    for praises in (False, True):
        works = [game for game, _, accepted in judged if accepted is not praises]
        criticisms = [text for _, text, accepted in judged if accepted is praises]
        for game, criticism in zip(works, criticisms, strict=False):
            work = next(turn.text for turn in game.turns if turn.role in WORK)
            said: dict[str, Any] = {**dict.fromkeys(WORK, work), "evaluation": criticism}
            plants.append((Plant(game.question, said), praises))
    return plants


def _judged(game: Episode) -> tuple[Episode, str, bool] | None:
    """A game with its first criticism and the verdict that followed; None where it has none."""
    turns = {turn.id: turn for turn in game.turns}
    for turn in game.turns:
        criticism = turns.get(turn.about or "")
        if criticism is None or criticism.role != "evaluation":
            continue
        verdict = accepts(turn)
        if verdict is not None:
            return game, criticism.text, verdict
    return None


def _following(game: Episode, praises: bool) -> list[float]:
    """The share of the game's verdicts that do what the criticism says, as one value."""
    found = verdicts(game, planted=True) if game.error is None else []
    return [sum(accepted is praises for accepted in found) / len(found)] if found else []
