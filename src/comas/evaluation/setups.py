"""Chosen setups: a setup or a method's game, with its options, who plays it, and how all systems
are asked: with one temperature, one top_p and one number of tokens per role.

Systems are compared, not the settings under which each of them was trained. Leaves out: which
setups an evaluation has (`evaluation.spec`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comas.config.plugins import filled, load_plugin, split_options
from comas.config.rehearsal import rehearse
from comas.config.schema import Config, settings_of
from comas.game.agent import TeamMember
from comas.game.memory import at_start
from comas.game.play import GameContext
from comas.setups import duel, single
from comas.team.build import Team, measurable
from comas.types import Method, Question, Sampling, Setup, Task, UserMistake

OPTIONS = r":(?=\w+=)"
"""Separator before each option of a setup."""


@dataclass(frozen=True)
class ChosenSetup:
    """How answers are given: a setup or a method's game, with its options."""

    name: str
    method: Method
    alone: bool
    options: Mapping[str, Any]
    roles: tuple[str, ...] = ()
    """Roles that somebody has to take."""


def chosen_setup(name: str, team: Team, files: Mapping[str, str] | None = None) -> ChosenSetup:
    """`vote`, `vote:votes=16`, `./mine.py`, a method's name, or `game` for the team's own; `files`
    are those of the plan.
    """
    plugin, *pairs = parts_of(name)
    plugin = (files or {}).get(plugin, plugin)
    options = settings_of(pairs)
    if plugin == "game":
        plugin_object = team.method
        options = {**split_options(team.config.options, plugin_object.play), **options}
    else:
        plugin_object = load_plugin("setup", plugin, instead="method")
    options = filled(plugin, options, plugin_object.play)
    if isinstance(plugin_object, Setup):
        roles = plugin_object.roles
        game = only_played(plugin_object.play, needs=plugin_object.needs, roles=roles)
        return ChosenSetup(name, game, plugin_object.alone, options, tuple(roles))
    game = replace(plugin_object, supervised=False)  # labels are for training
    return ChosenSetup(name, game, False, options, game.rewarded)


def by_themselves(task: Task, method: Method | None = None) -> ChosenSetup:
    """How the accuracy of agents is measured while they are trained: as a method says, else by
    `single`, and of a game by `duel`.
    """
    if method is not None and method.measure is not None:
        return ChosenSetup("single", only_played(method.measure, roles=method.roles), True, {})
    setup = single.setup if task.rules is None else duel.setup
    return ChosenSetup("single", only_played(setup.play, roles=setup.roles), True, {})


def only_played(play: Callable[..., Any], **facts: Any) -> Method:
    """A game that nobody is rewarded for; `facts` are fields of `Method`."""
    return Method(play, _never, _never, _never, **facts)


def _never(*args: object) -> Any:
    """Stands where a method settles, weighs and learns."""
    raise AssertionError("evaluation never settles")


def parts_of(name: str) -> list[str]:
    """The name or file of a setup, and its options."""
    return re.split(OPTIONS, name)


def players(team: Team, chosen: ChosenSetup) -> dict[str, list[TeamMember]]:
    """Who plays: every policy by itself, of those that solve where any does; or the team."""
    if not chosen.alone:
        return {"team": list(team.members)}
    # copies of one policy answer once, by the first of them; another persona makes another answer
    first: dict[tuple[str, str | None], TeamMember] = {}
    for member in measurable(team.members):
        first.setdefault((member.address, member.system), member)
    return {member.name: [member] for member in first.values()}


def check_playable(chosen: ChosenSetup, task: Task) -> None:
    """An error where a setup needs what the task has not, or plays no game and the task is one."""
    needs = chosen.method.needs
    for part in needs:
        if not getattr(task, part):
            raise UserMistake(
                f"setup {chosen.name} needs a task with `{part}`, and task {task.name} has none:"
                " take another setup (docs/evaluation.md)"
            )
    if task.rules is not None and "rules" not in needs:
        raise UserMistake(
            f"task {task.name} is a game, and setup {chosen.name} plays none: take --setups duel"
        )


def check_roles_taken(chosen: ChosenSetup, members: Sequence[TeamMember]) -> None:
    """An error where the game asks for a role that no agent takes."""
    if chosen.alone or any(member.roles is None for member in members):
        return
    taken = {role for member in members for role in member.roles or ()}
    for role in chosen.roles:
        if role not in taken:
            raise UserMistake(
                f"setup {chosen.name}: no agent takes role {role!r}: nobody can answer; see"
                " agents.<name>.roles"
            )


def check_team(
    chosen: ChosenSetup, team: Team, asked: Sequence[tuple[Task, Sequence[Question]]]
) -> None:
    """An error where a role is asked that no agent takes, and for what a shipped setup would refuse
    when it is played: an opponent that a task does not know, a team of the wrong size.
    """
    check_roles_taken(chosen, team.members)
    if not chosen.method.play.__module__.startswith("comas.setups."):
        return
    for task, questions in asked:
        for members in players(team, chosen).values():
            rehearse(chosen.method, task, members, questions[0], chosen.options)


def described(team: Team, chosen: ChosenSetup) -> str:
    """Who answers, in words."""
    alone = measurable(team.members) if chosen.alone else team.members
    policies = len({member.address for member in alone})
    agents = len(team.members)
    if chosen.alone and policies > 1:
        return f"{policies} agents, each alone"
    if chosen.alone or agents == 1:
        return "1 agent"
    return f"{agents} copies of one model" if policies == 1 else f"team of {agents}"


# --- how all are asked


@dataclass(frozen=True)
class Asking:
    """The settings of all replies; limits in tokens."""

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 512
    """Per reply, where neither `room` nor the task says otherwise."""
    room: Mapping[str, int] = field(default_factory=dict)
    """Per reply and role, before the task's own."""

    @property
    def sampling(self) -> Sampling:
        """How a reply is drawn, where neither `room` nor the task says its tokens."""
        return Sampling(self.temperature, self.top_p, self.max_tokens)

    def context(
        self, task: Task, setup: ChosenSetup, members: Sequence[TeamMember], seed: int
    ) -> GameContext:
        """A game of these members, played in the chosen setup."""
        speaking = [replace(member, sampling=self.sampling) for member in members]
        if setup.alone:
            speaking = [replace(member, roles=None) for member in speaking]
        context = GameContext(
            setup.method, task, speaking, seed, setup.options, max_tokens=self.room
        )
        return at_start(context)


def asking_of(config: Config) -> Asking:
    """As a config says that its own team is asked."""
    return Asking(config.eval_temperature, 1.0, config.max_tokens, dict(config.room))


def asked_otherwise(systems: Mapping[str, Config], first_name: str) -> Iterator[str]:
    """A note for each system whose own config asks otherwise than that of `first_name`, which
    is how all are asked.
    """
    first = systems[first_name]
    for name, config in systems.items():
        for key in ("eval_temperature", "max_tokens", "room"):
            own, asked = getattr(config, key), getattr(first, key)
            if own != asked:
                yield f"{name}: {key} of its config is {own}; asked with {asked}, as {first_name}"
