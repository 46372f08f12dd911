"""The models of an endpoint: the setups that a team can play, under the names by which clients ask.

Which there are is decided when the server starts: a request names one of them, never a file.
Leaves out: what setups mean (`evaluation.ways`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comas.config.plugins import plugin_names
from comas.config.rehearsal import roles_asked
from comas.config.roles import check_roles
from comas.evaluation import ways
from comas.evaluation.ways import Way
from comas.game.agent import Member
from comas.game.play import brief
from comas.team.build import Team
from comas.types import Question, UserMistake

FIRST = "single"
"""Stands first in the list: several clients take the first."""


@dataclass(frozen=True)
class Model:
    """A way of answering, played by the team or by one of its agents."""

    name: str
    way: Way
    players: Mapping[str, Sequence[Member]]
    """`team`, or each agent that answers alone: one of them is drawn for an answer."""
    answerers: str
    """Who answers, in words."""


def models_of(team: Team, setups: Sequence[str] | None = None) -> dict[str, Model]:
    """Name -> model, of these setups, or of all shipped ones that the team can play.

    Where agents of different policies answer alone, each is a model as well: `single/a0`. Raises
    UserMistake where a setup that is named cannot be played, or where the task is a game.
    """
    if team.task.rules is not None:
        raise UserMistake(
            f"task {team.task.name} is a game, and what clients ask is a question: name another"
            " task, such as task=gsm8k"
        )
    chosen = _playable(team) if setups is None else [_checked(team, name) for name in setups]
    games = [way.method for way in chosen]
    check_roles(team.config, team.method, team.task, games)
    models = [model for way in chosen for model in _models(team, way)]
    if not models:
        raise UserMistake(
            f"no setup can be played on task {team.task.name} by this team: name one with --setups"
        )
    return {model.name: model for model in models}


def _playable(team: Team) -> list[Way]:
    """The shipped setups that fit the team and its task, and the team's own game."""
    names = sorted(plugin_names("setup"), key=lambda name: (name != FIRST, name))
    found: list[Way] = []
    for name in [*names, "game"]:
        try:
            way = _checked(team, name)
        except UserMistake:
            continue
        asked = roles_asked(way.method, team.task, len(team.members), way.options)
        if asked or name == "game":  # an own game may be one that nobody can rehearse
            found.append(way)
    return found


def _checked(team: Team, name: str) -> Way:
    way = ways.way(name, team)
    ways.check_playable(way, team.task)
    ways.check_roles_taken(way, team.task, team.members)
    return way


def _models(team: Team, way: Way) -> list[Model]:
    """The model of a setup, and where agents of different policies answer alone one for each."""
    players = ways.players(team, way)
    model = Model(way.name, way, players, ways.described(team, way))
    if len(players) == 1:
        return [model]
    each = [
        Model(f"{way.name}/{who}", way, {who: members}, "1 agent")
        for who, members in players.items()
    ]
    return [model, *each]


def check_kind(team: Team, kind: str) -> None:
    """An error where the team's task cannot read answers to questions of this kind."""
    question = Question(id="kind", prompt="?", kind=kind)
    try:
        team.task.extract(question, "")
        team.task.shown(question, "")
    except Exception as error:
        raise UserMistake(
            f"--kind {brief(kind)}: task {team.task.name} cannot read an answer to a question of"
            f" this kind ({type(error).__name__}: {error}): name one of its kinds"
        ) from error
