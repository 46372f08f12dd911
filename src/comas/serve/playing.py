"""The models of an endpoint, which are the setups that a team can play, and the discussions of a
request, played side by side.

Which models there are is decided when the server starts: a request names one of them, never a file.
Every draw follows from (seed of the run, model, seed of the request, question, number of the
choice): what else is asked at the time changes no text. Leaves out: what setups mean
(`evaluation.setups`), how requests are written (`protocol`), how long they may take (`endpoint`).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from comas.config.checks import check_roles
from comas.config.plugins import plugin_names
from comas.config.rehearsal import rehearse
from comas.evaluation.games import cut_off
from comas.evaluation.setups import (
    Asking,
    ChosenSetup,
    check_playable,
    check_roles_taken,
    chosen_setup,
    described,
    players,
)
from comas.game.agent import TeamMember, derive_seed, together
from comas.game.play import first, play_one
from comas.team.build import Team
from comas.types import Episode, HostFailure, NoRoom, Question, Refused, Task, Turn, UserMistake

FIRST = "single"
"""Stands first in the list: several clients take the first."""


class TooLong(UserMistake):
    """A question that leaves no tokens for a reply."""


@dataclass(frozen=True)
class Model:
    """A setup, played by the team or by one of its agents."""

    name: str
    setup: ChosenSetup
    players: Mapping[str, Sequence[TeamMember]]
    """`team`, or each agent that answers alone: one of them is drawn for an answer."""
    answerers: str
    """Who answers, in words."""


def models_of(team: Team, setups: Sequence[str] | None = None) -> dict[str, Model]:
    """Name -> model, of these setups, or of all shipped ones that the team can play and its own
    game.

    Where agents of different policies answer alone, each is a model as well: `single/a0`. Raises
    UserMistake where a setup that is named cannot be played, or where answers to the task cannot be
    read from texts alone.
    """
    check_task(team.task)
    if setups is None:
        shipped = sorted(plugin_names("setup"), key=lambda name: (name != FIRST, name))
        chosen = [setup for name in (*shipped, "game") if (setup := _playable(team, name))]
    else:
        chosen = [_checked(team, name) for name in setups]
    check_roles(team.config, [team.method, *(setup.method for setup in chosen)], team.task)
    models: dict[str, Model] = {}
    for setup in chosen:
        by_player = players(team, setup)
        models[setup.name] = Model(setup.name, setup, by_player, described(team, setup))
        if len(by_player) > 1:
            for who, members in by_player.items():
                name = f"{setup.name}/{who}"
                models[name] = Model(name, setup, {who: members}, "1 agent")
    if not models:
        raise UserMistake(
            f"no setup can be played on task {team.task.name} by this team: name one with --setups"
        )
    return models


def check_task(task: Task) -> None:
    """An error where a text is not all that a question of the task has."""
    if task.rules is not None:
        raise UserMistake(
            f"task {task.name} is a game, and what clients ask is a question: name another"
            " task, such as task=gsm8k"
        )
    question = Question(id="asked", prompt="?")
    try:
        task.extract(question, "")
        task.shown(question, "")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):
            reason = "it needs a `kind`, or another fact, of each question"
        raise UserMistake(
            f"task {task.name} cannot read an answer to a question that is a text alone"
            f" ({reason}): name the task that clients ask, such as task=gsm8k"
        ) from error


def _playable(team: Team, name: str) -> ChosenSetup | None:
    """A shipped setup or the team's own game, where it fits the team and its task."""
    question = Question(id="rehearsal", prompt="?")
    try:
        setup = _checked(team, name)
        if name == "game":
            return setup
        turns = rehearse(setup.method, team.task, team.members, question, setup.options)
    except UserMistake:
        return None
    return setup if turns else None


def _checked(team: Team, name: str) -> ChosenSetup:
    setup = chosen_setup(name, team)
    check_playable(setup, team.task)
    check_roles_taken(setup, team.members)
    return setup


# --- what is asked of them


@dataclass(frozen=True)
class TeamRequest:
    """Request to a team: what is asked, and how the reply is to come."""

    model: Model
    prompt: str
    """The question."""
    choices: int
    """Answers to it, each a discussion."""
    seed: int
    asking: Asking
    """Temperature, top_p and tokens of every reply."""
    stop: Sequence[str] = ()
    """Texts before which an answer ends."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage."""
    discussion: bool = False
    """Whether turns are returned as well."""


@dataclass(frozen=True)
class ServedAnswer:
    """Answer of a discussion."""

    text: str
    finish: Literal["stop", "length"]
    """`length`: a reply that ran out of tokens is why there is no answer, or no more of it."""
    answered: bool
    """Whether the team gave an answer; otherwise the text is empty, or the beginning of one."""
    turns: Sequence[Turn]


class Players:
    """Has models answer: what is the same for all requests."""

    def __init__(
        self,
        models: Mapping[str, Model],
        task: Task,
        asking: Asking,
        seed: int,
        at_once: int = 64,
    ) -> None:
        """`asking` is how the team is asked, as far as a request does not say; `seed` the run's;
        `at_once` are discussions that are played side by side: a request with `n` takes so many.
        """
        self.models = models
        self.task = task
        self.asking = asking
        self.at_once = at_once
        self._seed = seed
        self._places = asyncio.Semaphore(at_once)

    async def play(self, request: TeamRequest) -> tuple[list[ServedAnswer], list[Turn]]:
        """Play what is wanted: its answers, in the order of the choices, and all turns, those of
        plays that a machine failed included.

        Raises HostFailure or UserMistake, and then gives up all of it.
        """
        turns: list[Turn] = []

        async def one(index: int) -> ServedAnswer:
            async with self._places:
                return _answer_of(await self._discuss(request, index, turns.append), request.stop)

        try:
            return await together(map(one, range(request.choices))), turns
        except ExceptionGroup as errors:
            raise first(errors) from errors

    async def _discuss(
        self, request: TeamRequest, index: int, on_turn: Callable[[Turn], None]
    ) -> Episode:
        model = request.model
        digest = hashlib.blake2b(request.prompt.encode(), digest_size=8).hexdigest()
        question = Question(id=f"asked-{digest}", prompt=request.prompt)
        occasion = f"serve-{request.seed}-{model.setup.name}"
        able = list(model.players)
        who = able[derive_seed(self._seed, occasion, question.id, index) % len(able)]
        episode = Episode(f"{occasion}/{who}/{question.id}/{index}", question)
        context = request.asking.context(self.task, model.setup, model.players[who], self._seed)
        method = replace(context.method, play=_told_asker(context.method.play))
        await play_one(replace(context, method=method, on_turn=on_turn), episode)
        if episode.error is not None:
            raise HostFailure(episode.error)
        return episode


def _told_asker(play: Callable[..., Awaitable[str | None]]) -> Callable[..., Awaitable[str | None]]:
    """Wrap a game so that what a host refuses, such as a prompt that does not fit, is the asker's
    mistake, who would be refused again.
    """

    @functools.wraps(play)
    async def played(*args: Any, **options: Any) -> str | None:
        try:
            return await play(*args, **options)
        except* Refused as errors:
            error = first(errors)
            kind = TooLong if isinstance(error, NoRoom) else UserMistake
            raise kind(str(error)) from None

    return played


def _answer_of(episode: Episode, stop: Sequence[str]) -> ServedAnswer:
    """The answer of a discussion that no machine let down, up to the first of the texts `stop` that
    is in it.

    Where there is none, its text is the one reply of a game that has no other and was cut, as of
    any model; otherwise nothing.
    """
    turns = episode.turns
    text = episode.answer
    if text is not None:
        is_cut = cut_off(episode)
        is_answered = not is_cut
    else:
        is_cut = any(not turn.finished for turn in turns)
        is_answered = False
        text = turns[0].text if len(turns) == 1 and is_cut else ""
    ends = [start for end in stop if (start := text.find(end)) >= 0]
    if ends:  # a reply that was cut behind it is whole up to there
        text = text[: min(ends)]
        return ServedAnswer(text, "stop", bool(text.strip()), turns)
    is_answered = is_answered and bool(text.strip())
    return ServedAnswer(text, "length" if is_cut else "stop", is_answered, turns)
