"""Whether a config can be trained: what is known before a model is loaded.

Leaves out: what a machine has room for (`comas.estimate`), and where a run is written.
"""

from __future__ import annotations

from comas.config.plugins import check_builder_name
from comas.config.policies import Resolved
from comas.config.rehearsal import check_playable
from comas.config.roles import check_kl, check_roles, check_seats
from comas.types import UserMistake


def check_training(resolved: Resolved) -> None:
    """An error for what training refuses of a config, in a dry run and in a study too."""
    config, method, task, _ = resolved
    check_kl(config, method)
    check_roles(config, method, task)
    check_seats(config, method, learn=True)
    check_playable(resolved)
    for name in config.monitors or ():
        check_builder_name("monitors", name, "monitors")
    _check_game(resolved)
    _check_tools(resolved)


def _check_game(resolved: Resolved) -> None:
    """An error for a game that a shipped method does not play, but would ask as a question."""
    config, method, task, _ = resolved
    own = config.method.endswith(".py")
    if task.rules is not None and "rules" not in method.needs and not own:
        raise UserMistake(
            f"task {task.name} is a game, and method {config.method} plays none: take method=mars,"
            " method=spiral or one of your own (docs/extending.md)"
        )


def _check_tools(resolved: Resolved) -> None:
    """An error for tools that a shipped method lets nobody call."""
    config, method, *_ = resolved
    own = config.method.endswith(".py")
    if config.tools and not own and "tools" not in method.needs:
        raise UserMistake(
            f"tools = {', '.join(config.tools)}: nobody can call one in method {config.method}:"
            " leave it out, or take a method that needs them, such as agent0_vl (docs/tools.md)"
        )
