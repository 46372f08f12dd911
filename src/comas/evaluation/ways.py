"""Ways to answer: a setup or a method's game, with its options, and who plays it.

Leaves out: which of them an evaluation takes (`evaluation.spec`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from comas.config.options import filled, split_options
from comas.config.plugins import load_plugin, plugin_names
from comas.config.rehearsal import mistake_in, roles_asked
from comas.config.schema import parse_pair
from comas.game.agent import Member
from comas.team.build import Team
from comas.team.equal_policies import measurable
from comas.types import Method, Question, Setup, Task, UserMistake

OPTIONS = r":(?=\w+=)"
"""What stands between a setup and each of its options."""


@dataclass(frozen=True)
class Way:
    """How answers are given: a setup or a method's game, with its options."""

    name: str
    method: Method
    alone: bool
    options: Mapping[str, Any]


def way(name: str, team: Team, files: Mapping[str, str] | None = None) -> Way:
    """`vote`, `vote:votes=16`, `./mine.py`, a method's name, or `game` for the team's own; `files`
    are those of the plan.
    """
    plugin, *pairs = parts_of(name)
    plugin = (files or {}).get(plugin, plugin)
    options = dict(map(parse_pair, pairs))
    if plugin == "game":
        found = team.method
        options = {**split_options(team.config.options, found.play), **options}
    else:
        found = load_plugin(_kind_of(plugin), plugin)
    options = filled(plugin, options, found.play)
    if isinstance(found, Setup):
        return Way(name, _game(found), found.alone, options)
    return Way(name, replace(found, supervised=False), False, options)  # labels are for training


def parts_of(name: str) -> list[str]:
    """The name or file of a setup, and its options."""
    return re.split(OPTIONS, name)


def _kind_of(plugin: str) -> Literal["method", "setup"]:
    """Whether a name or a file is one of a method or of a setup."""
    if not plugin.endswith(".py"):
        return "method" if plugin in plugin_names("method") else "setup"
    file = Path(plugin)
    text = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    return "method" if re.search(r"^method\s*=", text, re.MULTILINE) else "setup"


def _game(setup: Setup) -> Method:
    never = _unsettled
    return Method(setup.play, never, never, never, needs=setup.needs, roles=setup.roles)


def _unsettled(*args: object) -> Any:
    raise AssertionError("evaluation never settles")


def players(team: Team, chosen: Way) -> dict[str, list[Member]]:
    """Who plays: every policy by itself, of those that solve where any does; or the team."""
    if not chosen.alone:
        return {"team": list(team.members)}
    # copies of one policy answer once, by the first of them; another persona makes another answer
    first: dict[tuple[str, str | None], Member] = {}
    for member in measurable(team.members):
        first.setdefault((member.address, member.system), member)
    return {member.name: [member] for member in first.values()}


def asked_roles(chosen: Sequence[tuple[Team, Way]]) -> set[str]:
    """The roles that these games ask for, as far as a rehearsal of each shows them."""
    roles: set[str] = set()
    for team, how in chosen:
        asked = roles_asked(how.method, team.task, len(team.members), how.options)
        roles |= {*asked, *how.method.roles}
    return roles


def check_playable(chosen: Way, task: Task) -> None:
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


def check_tools(pairs: Sequence[str], chosen: Sequence[Way], crosses: bool) -> None:
    """An error for keys about tools where no setup lets anybody call one; what a method does where
    it `crosses` nobody knows.
    """
    keys = [parse_pair(pair)[0] for pair in pairs]
    named = [key for key in keys if key == "tools" or key.startswith("tool_options.")]
    if named and not crosses and not any(map(_calls_tools, chosen)):
        raise UserMistake(
            f"{named[0]}: nobody can call a tool in setups {', '.join(way.name for way in chosen)}:"
            " leave it out, or take --setups tools"
        )


def _calls_tools(chosen: Way) -> bool:
    """Whether tools are of use; of files of the user's own nobody knows."""
    plugin = parts_of(chosen.name)[0]
    own = getattr(chosen.method.play, "__module__", "").startswith("comas_user_")
    return own or plugin == "tools" or "tools" in chosen.method.needs


def check_roles_taken(chosen: Way, task: Task, members: Sequence[Member]) -> None:
    """An error where the game asks for a role that no agent takes."""
    if chosen.alone or any(member.roles is None for member in members):
        return
    taken = {role for member in members for role in member.roles or ()}
    asked = roles_asked(chosen.method, task, len(members), chosen.options)
    for role in chosen.method.paid:
        if role in asked and role not in taken:
            raise UserMistake(
                f"setup {chosen.name}: no agent takes role {role!r}: nobody can answer; see"
                " agents.<name>.roles"
            )


def check_team(chosen: Way, team: Team, asked: Sequence[tuple[Task, Sequence[Question]]]) -> None:
    """An error where a role is asked that no agent takes, and for what a shipped setup would refuse
    when it is played: an opponent that a task does not know, a team of the wrong size.
    """
    check_roles_taken(chosen, team.task, team.members)
    if not chosen.method.play.__module__.startswith("comas.setups."):
        return
    for task, questions in asked:
        for members in players(team, chosen).values():
            mistake = mistake_in(chosen.method, task, members, questions[0], chosen.options)
            if mistake is not None:
                raise mistake


def described(team: Team, chosen: Way) -> str:
    """Who answers, in words."""
    alone = measurable(team.members) if chosen.alone else team.members
    policies = len({member.address for member in alone})
    agents = len(team.members)
    if chosen.alone and policies > 1:
        return f"{policies} agents, each alone"
    if chosen.alone or agents == 1:
        return "1 agent"
    return f"{agents} copies of one model" if policies == 1 else f"team of {agents}"
