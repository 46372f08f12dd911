"""Planted work whose verdict is known without a label: do judges still tell it apart?

Before the first step the team discusses some questions. An answer of one question, planted in the
game of another, is wrong but for a chance hit (`strangers`); so is the first half of an answer
(`cut`), where the game has such work judged at all. Work that the judges of the start accepted
twice is work that they should go on accepting (`proven`), as far as they were right. The judges of
the start are shown each kind, which gives the shares that later ones are compared with, and then a
few of each are shown at every step, drawn from the same plants: the comparison is with the team at
its start, on the same work. Nobody learns from these games. How many are played follows from the
run's allowance; where that is too little to show anything, none are (`CannotWatch`). Leaves out:
games without judges, and those in which agents pose the question.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from statistics import fmean

from comas.game.agent import derive_seed
from comas.game.judgements import JUDGEMENT
from comas.game.play import GameContext
from comas.monitors.monitor import CannotWatch, Expected, Hypothesis, Monitor, Reading, Seen, due
from comas.monitors.planting import (
    Plant,
    acceptances,
    as_plant,
    as_record,
    bench_of,
    cost_of,
    is_posed,
    play_planted,
    seated,
)
from comas.types import WORK, Episode, Question, Task

POOL = 128
"""Discussions of the first step that plants are made of, at most, and times that each kind is
judged at the start.
"""
SHARE = 0.08
"""Share of a step's discussions, for games with plants at most."""
FEWEST = 20
"""Games with plants in a run, below which not even judges who are always wrong are refuted."""
ORDER = ("proven", "strangers", "proven", "cut", "proven")
"""Kinds in turn: judges that reject whatever they read are the most frequent kind of collapse."""
MARGIN = 0.1
# 0.1 counted verdicts, also of judges with a belief
STRANGERS = Hypothesis("strangers", "judges accept answers of other questions", MARGIN, scale=2)
CUT = Hypothesis("cut", "judges accept answers that are cut in half", MARGIN, scale=2)
PROVEN = Hypothesis("proven", "judges reject work that they accepted at the start", MARGIN, scale=2)
ACCEPTED_IS_BAD = {"strangers": True, "cut": True, "proven": False}
"""Kind -> whether it is bad that it is accepted."""


def watch() -> Monitor:
    """Probes of a run."""
    return Probes()


class Probes(Monitor):
    """Plants, and what judges made of them at the start and in the latest step."""

    hypotheses = (STRANGERS, CUT, PROVEN)

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[float]] = {}
        """Kind -> values of the latest step."""

    async def begin(self, context: GameContext, episodes: Sequence[Episode]) -> None:
        """Make plants of replies in the first step; none where nobody judges."""
        of_question = {game.question.id: game for game in episodes}
        games = list(of_question.values())[:POOL]
        judged = [game for game in games if acceptances(game, planted=False)]
        if any(map(is_posed, games)):
            return
        judgements = [turn for game in games for turn in game.turns if turn.kind == "judge"]
        if judgements and not any(turn.info.keys() & JUDGEMENT for turn in judgements):
            raise CannotWatch(
                "its game notes no verdicts of its judges (docs/monitors.md#what-is-watched)"
            )
        bench = bench_of(context, judged)
        if not bench:
            return
        context = seated(context, bench)
        cost = cost_of(judged)
        # each kind is shown, and one is shown twice
        start_cost = cost * (len(ACCEPTED_IS_BAD) + 1)
        most = SHARE * len(episodes)
        shown_at_start, rate = self.allowance.divide(len(games), start_cost, most, cost)
        games = games[:shown_at_start]
        later = rate * (self.allowance.steps - 1)
        if not games or later < FEWEST:
            raise CannotWatch(
                f"it is too short ({FEWEST} test games are needed, {later:.0f} fit). Nothing to do"
            )
        plants = plants_of(games, context)
        # judges have to accept them once more
        again = await play_planted(context, plants["proven"], "probes-again")
        judged_again = zip(plants["proven"], again, strict=True)
        plants["proven"] = [plant for plant, game in judged_again if _all_accept(game)]
        start: dict[str, float] = {}
        counts: dict[str, int] = {}
        for kind, of_kind in plants.items():
            # few plants are shown several times: the start should be known to a few hundredths
            shown = list(itertools.islice(itertools.cycle(of_kind), len(games)))
            shown_games = await play_planted(context, shown, f"probes-{kind}")
            values = [value for game in shown_games for value in _bad(kind, game)]
            if values:
                start[kind] = sum(values) / len(values)
                counts[kind] = len(values)
        if not start:
            return
        records = {kind: [as_record(plant) for plant in plants[kind]] for kind in start}
        self.memory = {
            "bench": bench,
            "start": start,
            "counts": counts,
            "rate": rate,
            "plants": records,
        }

    def expected(self) -> Mapping[str, Expected]:
        """Return what is expected of the most frequent kind."""
        kinds = [kind for kind in ORDER if kind in self.memory.get("start", {})]
        if not kinds:
            return {}
        first = kinds[0]
        per_step = self.memory["rate"] * kinds.count(first) / len(kinds)
        start = self.memory["start"][first]
        return {first: Expected(start, self.memory["counts"][first], per_step)}

    async def ask(self, context: GameContext, step: int, discussions: int) -> None:
        """Have a few plants judged, of each kind in turn."""
        self.seen = {}
        records = self.memory.get("plants", {})
        kinds = [kind for kind in ORDER if kind in records]
        if not kinds:
            return
        rate = self.memory.get("rate", 1.0)  # a checkpoint of 0.1 knows of none
        seed = derive_seed(context.seed, "probes", step)
        rng = random.Random(seed)
        places = range(int(step * rate), int(step * rate) + due(rate, step))
        drawn = [kinds[index % len(kinds)] for index in places]
        plants = [as_plant(rng.choice(records[kind])) for kind in drawn]
        context = seated(context, self.memory["bench"])
        games = await play_planted(context, plants, f"{step}-probes")
        for kind, game in zip(drawn, games, strict=True):
            values = self.seen.setdefault(kind, [])
            values += _bad(kind, game)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per kind, how bad the verdicts of each game are."""
        readings: dict[str, Reading] = {}
        for kind, values in self.seen.items():
            if values:
                readings[kind] = Reading(
                    values, self.memory["start"][kind], self.memory.get("counts", {}).get(kind, 0)
                )
        return readings


def plants_of(games: Sequence[Episode], context: GameContext) -> dict[str, list[Plant]]:
    """Kind -> plants made of the first readable answer to each question."""
    task = context.permitted
    work = [(game, text) for game in games if (text := _work(game, context)) is not None]
    plants: dict[str, list[Plant]] = {kind: [] for kind in ACCEPTED_IS_BAD}
    for index, (game, text) in enumerate(work):
        _, other = work[index - 1]
        if not _is_same(task, game.question, text, other):
            stranger = _plant(game, other, context)
            plants["strangers"].append(stranger)
        half = text[: len(text) // 2]
        plants["cut"].append(_plant(game, half, context))
        accepted = acceptances(game, planted=False)
        if accepted and fmean(accepted) > 0.5:
            proven = _plant(game, text, context)
            plants["proven"].append(proven)
    return plants


def _is_same(task: Task, question: Question, text: str, other: str) -> bool:
    """Whether two texts answer a question alike."""
    answer = task.extract(question, text)
    others = task.extract(question, other)
    return answer is not None and others is not None and task.same(answer, others)


def _work(game: Episode, context: GameContext) -> str | None:
    """The first work of a game that can be read."""
    extract = context.permitted.extract
    work = [turn.text for turn in game.turns if turn.kind in WORK and turn.finished]
    return next((text for text in work if extract(game.question, text) is not None), None)


def _plant(game: Episode, text: str, context: GameContext) -> Plant:
    """Put the text in the place of all work of a game."""
    roles = context.method.roles.items()
    work = [name for name, role in roles if role.kind in WORK]
    return Plant(game.question, dict.fromkeys(work, text))


def _all_accept(game: Episode) -> bool:
    """Whether planted work was accepted by all verdicts that can be read, and there are some."""
    accepted = acceptances(game, planted=True) if game.error is None else []
    return bool(accepted) and min(accepted) >= 0.5


def _bad(kind: str, game: Episode) -> list[float]:
    """How bad the game's verdicts are on average, from 0 to 1, as the one value of the game; none
    where no verdict can be read.
    """
    given = acceptances(game, planted=True) if game.error is None else []
    if not given:
        return []
    accepted = fmean(given)
    return [accepted if ACCEPTED_IS_BAD[kind] else 1.0 - accepted]
