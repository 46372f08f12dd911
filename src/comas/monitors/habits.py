"""Whether answers hang on how a question is put: a few questions are asked as they are and
rephrased, and nobody sees another's answer.

A majority that locks in on a habit, such as always choosing the first numbers, agrees with itself
more and more, and so does one that learns what is right. The question in another order tells them
apart: two who know the answer give it to both, two who share a habit agree on each and give
different answers to the two. A value is by how much more often members agree on one wording than
across the two, at least 0. It is compared with the start, on the same questions. Nobody learns from
these games. Leaves out: habits that rephrasing does not touch (always twelve, the smallest
numbers), and those whose answers stay varied; tasks that cannot rephrase (`CannotWatch`); games in
which agents pose the question; votes of another model family.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from comas.game.agent import Agent, derive_seed, takers, together
from comas.game.play import GameContext, unlabelled
from comas.game.prompts import solving
from comas.game.votes import agrees, in_turn, read
from comas.monitors.monitor import CannotWatch, Hypothesis, Monitor, Reading, Seen, due
from comas.monitors.planting import is_posed, play_aside, seated
from comas.types import Episode, Question, Task, Turn

POOL = 64
"""Questions of the first step that are asked, at most, and times that one of them is asked at the
start.
"""
SHARE = 0.05
"""Share of the first step's tokens, for the questions of a step at most."""
ANSWERS = 2
"""To each wording of a question."""
HABITUAL = Hypothesis("wording", "answers hang on how a question is put", 0.2)


def watch() -> Monitor:
    """Habits in a run."""
    return Habits()


class Habits(Monitor):
    """Questions of the first step, how far the answers to two wordings came apart at the start, and
    how far they did in the latest step.
    """

    hypotheses = (HABITUAL,)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        """Values of the latest step."""

    async def begin(self, context: GameContext, episodes: Sequence[Episode]) -> None:
        """Measure how far the answers of the start come apart; nothing where nobody who answers
        learns.
        """
        if any(map(is_posed, episodes)):
            return
        bench = [m.name for m in context.members if not m.frozen and m.solves]
        if not bench:
            return
        pool = _rephrasable(context.permitted, [game.question for game in episodes])[:POOL]
        solutions = [turn for game in episodes for turn in game.turns if turn.kind == "answer"]
        cost = 2 * ANSWERS * sum(turn.tokens for turn in solutions) / max(1, len(solutions))
        in_step = sum(turn.tokens for game in episodes for turn in game.turns)
        most = max(1.0, SHARE * in_step / max(1.0, cost))
        at_start, rate = self.allowance.divide(POOL, cost, most, cost)
        asked = list(itertools.islice(itertools.cycle(pool), at_start))
        games = await play_aside(seated(context, bench), _answer_both, asked, "habits-start")
        values = values_of(games, context.permitted)
        if not values:
            return
        start = sum(values) / len(values)
        questions = [
            {"id": question.id, "prompt": question.prompt, "kind": question.kind}
            for question in pool
        ]
        self.memory = {
            "bench": bench,
            "start": start,
            "start_count": len(values),
            "rate": rate,
            "questions": questions,
        }

    async def ask(self, context: GameContext, step: int, discussions: int) -> None:
        """Ask a few of the questions in both wordings."""
        self.seen = []
        if not self.memory:
            return
        rng = random.Random(derive_seed(context.seed, "habits", step))
        drawn = rng.choices(self.memory["questions"], k=due(self.memory["rate"], step))
        questions = [Question(**record) for record in drawn]
        context = seated(context, self.memory["bench"])
        games = await play_aside(context, _answer_both, questions, f"{step}-habits")
        self.seen = values_of(games, context.permitted)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question, how far the answers to its two wordings come apart."""
        if not self.seen:
            return {}
        return {"wording": Reading(self.seen, self.memory["start"], self.memory["start_count"])}


def _rephrasable(task: Task, questions: Sequence[Question]) -> list[Question]:
    """The distinct questions that the task can rephrase, without their labels; CannotWatch where
    there are none.
    """
    distinct = {question.id: unlabelled(question) for question in questions}
    rephrase = task.rephrase
    if rephrase is None:
        raise CannotWatch(
            f"task {task.name} cannot put a question in other words (docs/monitors.md: `rephrase`)"
        )
    rephrasable = [q for q in distinct.values() if rephrase(q, random.Random(q.id)) is not None]
    if not rephrasable:
        raise CannotWatch(
            f"task {task.name} can put none of the first step's questions in other words"
        )
    return rephrasable


async def _answer_both(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> None:
    """Ask the same agents for `ANSWERS` solutions to both wordings, side by side."""
    rephrase = task.rephrase
    rephrased = rephrase(question, rng) if rephrase is not None else None
    if rephrased is None:
        return
    able = takers(agents, "solution")
    rng.shuffle(able)
    both = [solving(asked, task) for asked in (question, rephrased)]
    asked = in_turn(able, ANSWERS)
    turns = await together(agent.ask("solution", prompt) for prompt in both for agent in asked)
    # a ballot may take seconds, for which other games do not wait
    await asyncio.to_thread(read, question, turns, task)


def values_of(games: Sequence[Episode], task: Task) -> list[float]:
    """How far the answers to the two wordings of each question come apart; of games that no machine
    let down.
    """
    finished = [game for game in games if game.error is None and game.turns]
    return [come_apart(game.turns[:ANSWERS], game.turns[ANSWERS:], task) for game in finished]


def come_apart(plain: Sequence[Turn], rephrased: Sequence[Turn], task: Task) -> float:
    """By how much agreement on one wording is greater than agreement across the two, from 0 to 1.

    The answers to both are by the same members in the same order. No answer is compared with the
    one in its own place, so that all comparisons are between the same members.
    """
    pairs = list(itertools.permutations(range(len(plain)), 2))
    on_plain = _agreement(((plain[i], plain[j]) for i, j in pairs), task)
    on_rephrased = _agreement(((rephrased[i], rephrased[j]) for i, j in pairs), task)
    across = _agreement(((plain[i], rephrased[j]) for i, j in pairs), task)
    return max(0.0, (on_plain + on_rephrased) / 2 - across)


def _agreement(pairs: Iterable[tuple[Turn, Turn]], task: Task) -> float:
    """The share of pairs that give the same answer; what cannot be read agrees with nothing."""
    agreeing: list[bool] = []
    for one, other in pairs:
        answer = one.info["answer"]
        agreeing.append(answer is not None and agrees(other, answer, task))
    return sum(agreeing) / len(agreeing)
