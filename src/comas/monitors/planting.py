"""Games in which some turns are given: agents judge work that a monitor has put there.

The method's own game is played, so that judges see planted work as they see any other. Leaves out:
what is planted (`probes`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from comas.game.agent import Agent, TeamMember, Write, round_of
from comas.game.judgements import acceptance, work_judged
from comas.game.play import GameContext, play_all
from comas.types import WORK, Episode, Question, Task, Turn

PLANTED = "planted"
"""`info[PLANTED]` of a turn that was given."""


@dataclass(frozen=True)
class Plant:
    """A question, and the replies in its game, whoever is asked."""

    question: Question
    said: Mapping[str, str]
    """Role -> text."""


@dataclass(frozen=True)
class GivenAgent(Agent):
    """An agent that says what it is given in some roles, and is asked in all others."""

    said: Mapping[str, str] = field(default_factory=dict[str, str])

    def ask(self, role: str, prompt: str | Write, **more: Any) -> Coroutine[Any, Any, Turn]:
        """Ask for one reply, or give the one that is there."""
        if role not in self.said:
            return super().ask(role, prompt, **more)
        about: Turn | None = more.get("about")
        turn_id = self._name(role, about)
        return self._give(turn_id, role, about, round_of(about, more.get("round")))

    async def _give(self, turn_id: str, role: str, about: Turn | None, round: int) -> Turn:
        """Put a given turn into the episode."""
        address = self.member.address
        text = self.said[role]
        turn = Turn(turn_id, self.name, address, role, "", text, finished=True, version=0)
        turn.about = about.id if about else None
        turn.round = round
        turn.kind = self.kind_of(role)
        turn.info[PLANTED] = True
        return self._record(turn)


def is_posed(game: Episode) -> bool:
    """Whether an agent wrote the question."""
    return any("posed" in turn.info for turn in game.turns)


def bench_of(context: GameContext, games: Sequence[Episode]) -> list[str]:
    """Name the members who are to judge plants: where they take all roles of these games, those
    who learn, since frozen ones cannot change and may cost money; empty where no judge learns.
    """
    learning = [member for member in context.members if not member.frozen]
    names = [member.name for member in learning]
    turns = [turn for game in games for turn in game.turns]
    if not any(turn.agent in names for turn in turns if turn.kind == "judge"):
        return []
    roles = {turn.role for turn in turns}
    if all(any(_takes(member, role) for member in learning) for role in roles):
        return names
    return [member.name for member in context.members]


def _takes(member: TeamMember, role: str) -> bool:
    return member.roles is None or role in member.roles


def cost_of(games: Sequence[Episode]) -> float:
    """Tokens that a game takes whose work is planted, on average of these games; 0 of none."""
    tokens = sum(t.tokens for game in games for t in game.turns if t.kind not in WORK)
    return tokens / max(1, len(games))


def seated(context: GameContext, names: Sequence[str]) -> GameContext:
    """The context with these members alone."""
    members = [member for member in context.members if member.name in names]
    return replace(context, members=members)


async def play_planted(
    context: GameContext, plants: Sequence[Plant], occasion: str
) -> list[Episode]:
    """Play a game per plant, side by side; episodes in the order of the plants."""
    sayings = {
        f"{occasion}/{plant.question.id}#{index}/0": plant.said
        for index, plant in enumerate(plants)
    }
    play = context.method.play

    @functools.wraps(play)
    async def play_given(
        question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, **options: Any
    ) -> str | None:
        words = sayings[agents[0].record.episode.id]
        players = [GivenAgent(agent.member, agent.record, words) for agent in agents]
        return await play(question, players, rng, task, **options)

    return await play_aside(context, play_given, [plant.question for plant in plants], occasion)


async def play_aside(
    context: GameContext, play: Callable[..., Any], questions: Sequence[Question], occasion: str
) -> list[Episode]:
    """Play a game per question by these rules, side by side; episodes in the order of the
    questions, which have names of their own, since one may be asked several times.
    """
    named = [replace(q, id=f"{q.id}#{index}") for index, q in enumerate(questions)]
    quiet = replace(context, method=replace(context.method, play=play), keep=False)
    return await play_all(quiet, named, occasion)


def acceptances(episode: Episode, *, planted: bool) -> list[float]:
    """How far judges accept the work of a game, from 0 to 1: each verdict that can be read, on work
    that was planted or on work that was not.
    """
    turns = {turn.id: turn for turn in episode.turns}
    accepted: list[float] = []
    for turn in episode.turns:
        if turn.kind != "judge" or PLANTED in turn.info:
            continue
        share = acceptance(turn)
        work = work_judged(turn, turns)
        if share is not None and work is not None and (PLANTED in work.info) is planted:
            accepted.append(share)
    return accepted


def as_record(plant: Plant) -> dict[str, Any]:
    """A plant as JSON."""
    return {"question": asdict(plant.question), "said": dict(plant.said)}


def as_plant(record: Mapping[str, Any]) -> Plant:
    """The inverse."""
    return Plant(Question(**record["question"]), record["said"])
