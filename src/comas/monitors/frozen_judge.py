"""Whether judges that learn still agree with the judges that they were: a few of each step's works
are judged once more by the weights of the start of the run.

When a step has been played, and before anybody learns from it, works of it are planted in the
method's own game, in which those who learn have the weights of the start (the base, where policies
are new adapters): their verdicts are compared with those of the step. In the first step both are
the same judges, which gives the disagreement that is due to sampling alone. Leaves out: who of the
two is right; hosts that keep no weights of the start (`CannotWatch`); games without judges, and
those in which agents pose the question.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

from comas.game.agent import Member, derive_seed
from comas.game.judgements import accepts, is_work, work_judged
from comas.game.play import Scene
from comas.game.roles import JUDGES, WORK
from comas.monitors.monitor import CannotWatch, Hypothesis, Monitor, Reading, Seen, due, measured
from comas.monitors.planting import Plant, bench_of, cost_of, is_posed, play_planted, seated
from comas.types import Episode, KeepsStart, Turn

POOL = 128
"""Works of the first step that are judged twice, at most."""
SHARE = 0.1
"""Of a step's discussions, so many have a work judged once more at most."""
APART = Hypothesis("apart", "judges disagree with the judges that they were at the start", 0.2)


def watch() -> Monitor:
    """The frozen judge of a run."""
    return FrozenJudge()


class FrozenJudge(Monitor):
    """How often verdicts of the latest step and of the start differ, on the same work."""

    hypotheses = (APART,)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        """Values of the latest step."""

    async def begin(self, scene: Scene, episodes: Sequence[Episode]) -> None:
        """Measure how often the judges of the start differ from themselves; nothing where no judge
        learns.
        """
        games = list({game.question.id: game for game in episodes}.values())
        bench = [] if any(map(is_posed, games)) else bench_of(scene, games)
        if not bench:
            return
        cost = cost_of(games)
        most = max(1.0, SHARE * len(episodes))
        at_start, rate = self.allowance.divide(POOL, cost, most, cost)
        values = await _disagreements(scene, bench, games[:at_start], "frozen_judge-start")
        if values:
            start = sum(values) / len(values)
            self.memory = {
                "bench": bench,
                "start": start,
                "start_count": len(values),
                "rate": rate,
            }

    async def ask_about(self, scene: Scene, step: int, episodes: Sequence[Episode]) -> None:
        """Have a few works judged by the judges of the start."""
        self.seen = []
        if not self.memory:
            return
        seed = derive_seed(scene.seed, "frozen_judge", step)
        rng = random.Random(seed)
        rate = self.memory.get("rate", max(1.0, SHARE * len(episodes)))
        drawn = rng.sample(episodes, min(due(rate, step), len(episodes)))
        bench = self.memory["bench"]
        self.seen = await _disagreements(scene, bench, drawn, f"{step}-frozen_judge")

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per work, the share of pairs of a verdict now and one of the start that differ."""
        return {"apart": measured(self.seen, self.memory)} if self.seen else {}


async def _disagreements(
    scene: Scene, bench: Sequence[str], games: Sequence[Episode], occasion: str
) -> list[float]:
    """Have the first judged work of each game judged by the members of the `bench` as they were at
    the start; a value per work with readable verdicts of both.
    """
    bench_now = seated(scene, bench)
    members = [await _as_at_start(member) for member in bench_now.members]
    bench_then = replace(scene, members=members)
    judges = {member.name for member in scene.members if not member.frozen}
    works: list[tuple[Episode, Turn]] = []
    plants: list[Plant] = []
    for game in games:
        work = _first_judged(game, judges)
        if work is None:
            continue
        works.append((game, work))
        said: dict[str, str] = dict.fromkeys(WORK, work.text)
        plant = Plant(game.question, said)
        plants.append(plant)
    again = await play_planted(bench_then, plants, occasion)
    values: list[float] = []
    for (game, work), game_again in zip(works, again, strict=True):
        # the game is played anew, in which the work has the same place
        place = work.id.removeprefix(game.id)
        now = _verdicts(game, work.id, judges)
        then = _verdicts(game_again, game_again.id + place, judges)
        differing = [one is not other for one, other in product(now, then)]
        if differing:
            share = sum(differing) / len(differing)
            values.append(share)
    return values


async def _as_at_start(member: Member) -> Member:
    """The member with the weights of the start; one who never learns has them."""
    if member.frozen:
        return member
    host = member.host
    start = None
    if isinstance(host, KeepsStart):
        start = await host.at_start()
    if start is None:
        raise CannotWatch(
            f"host {host.name} cannot be asked with the weights of the start of the run"
            " (docs/monitors.md says which hosts can)"
        )
    return replace(member, host=start)


def _first_judged(game: Episode, judges: Collection[str]) -> Turn | None:
    """The first work of a game of which one of these judges has a readable verdict."""
    work = (turn for turn in game.turns if is_work(turn))
    return next((turn for turn in work if _verdicts(game, turn.id, judges)), None)


def _verdicts(game: Episode, work: str, judges: Collection[str]) -> list[bool]:
    """Whether these judges accept the work of this id: each verdict that can be read; none in a
    game that a machine let down.
    """
    if game.error is not None:
        return []
    turns = {turn.id: turn for turn in game.turns}
    found: list[bool] = []
    for turn in game.turns:
        if turn.role not in JUDGES or turn.agent not in judges:
            continue
        verdict = accepts(turn)
        about = work_judged(turn, turns)
        if verdict is not None and about is not None and about.id == work:
            found.append(verdict)
    return found
