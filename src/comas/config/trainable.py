"""Whether a config can be trained: what is known before a model is loaded.

Leaves out: what a machine has room for (`comas.estimate`), and where a run is
written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from comas.config.mistakes import nearest
from comas.config.plugins import check_builder_name
from comas.config.policies import Resolved
from comas.config.schema import AgentConfig, Config
from comas.game.roles import KINDS
from comas.types import Method, Task, UserMistake


def check_training(resolved: Resolved) -> None:
    """Raise UserMistake for what training refuses, in a dry run and in a study too."""
    config = resolved.config
    method = resolved.method
    task = resolved.task
    for role in config.kl or {}:
        if method.paid and role not in method.paid:
            raise UserMistake(
                f"kl.{role}: method {config.method} never trains on that role:"
                f" {nearest(role, method.paid)}{_own_paid(config)}"
            )
    check_roles(config, [method], task)
    check_seats(config, method, learn=True)
    for name in config.monitors or ():
        check_builder_name("monitors", name, "monitors")
    own = config.method.endswith(".py")
    if task.rules is not None and "rules" not in method.needs and not own:
        raise UserMistake(
            f"task {task.name} is a game, and method {config.method} plays none: take method=mars,"
            " method=spiral or one of your own (docs/extending.md)"
        )
    if config.tools and "tools" not in method.needs and not own:
        raise UserMistake(
            f"tools = {', '.join(config.tools)}: nobody can call one in method {config.method}:"
            " leave it out, or take a method that needs them, such as agent0_vl (docs/tools.md)"
        )


def check_room(resolved: Resolved, asked: Iterable[str], note: Callable[[str], None]) -> None:
    """Raise UserMistake where the room of a reply leaves none for its prompt, as far as known
    before a model is loaded; a note where `max_tokens` is set and reaches none of the roles that
    are `asked`, since each has room of its own.
    """
    config = resolved.config
    room = {**resolved.task.max_tokens, **config.room}
    roles = dict.fromkeys((*resolved.method.paid, *asked))
    default = type(config).model_fields["max_tokens"].default
    if config.max_tokens != default and all(role in room for role in roles):
        own = ", ".join(f"room.{role}={room[role]}" for role in roles)
        note(
            f"max_tokens={config.max_tokens} has no effect: every role has room of its own ({own});"
            " set room.<role> instead"
        )
    for plan in resolved.policies:
        if plan.source.kind != "seed":
            continue
        context = config.hosts[plan.host].context
        if context is None:
            described = Path(plan.source.where) / "config.json"
            context = json.loads(described.read_text("utf-8"))["max_position_embeddings"]
        for role in resolved.method.paid:
            tokens = room.get(role, config.max_tokens)
            if tokens >= context:
                where = f"room.{role}" if role in room else "max_tokens"
                raise UserMistake(
                    f"{where} is {tokens} tokens: with a prompt they do not fit the context of"
                    f" {plan.address} ({context} tokens, base {plan.source.name}): lower"
                    f" {where}, or raise hosts.{plan.host}.context where the base has room"
                )


def check_seats(config: Config, method: Method, learn: bool) -> None:
    """Raise UserMistake where nobody takes a role that the method needs, or nobody could learn."""
    agents = config.agents.values()
    for role in method.paid:
        if not any(a.roles is None or role in a.roles for a in agents):
            raise UserMistake(
                f"no agent takes role {role!r}, which method {config.method} needs: see"
                f" agents.<name>.roles{_own_paid(config)}"
            )
    if learn and not any(not a.frozen and _is_paid(a, method) for a in agents):
        paid = ", ".join(method.paid)
        raise UserMistake(
            f"no agent can learn: method {config.method} pays {paid}, and no learning agent takes"
            f" those{_own_paid(config)}"
        )


def _own_paid(config: Config) -> str:
    """Hint at `Method.paid` where the method is the user's own file."""
    if not config.method.endswith(".py"):
        return ""
    return " (a method that pays other roles lists them: Method(paid=(...)))"


def _is_paid(agent: AgentConfig, method: Method) -> bool:
    """Whether an agent takes a role that can be paid."""
    if agent.roles is None or not method.paid:
        return True
    return not set(agent.roles).isdisjoint(method.paid)


def check_roles(config: Config, methods: Sequence[Method], task: Task) -> None:
    """Refuse a role that none of these games has, and name the nearest."""
    known = {*KINDS, *task.max_tokens}
    for method in methods:
        known |= {*method.paid, *method.roles}
    named = {f"room.{role}": [role] for role in config.room}
    for name, agent in config.agents.items():
        named[f"agents.{name}.roles"] = agent.roles or []
    for key, roles in named.items():
        for role in roles:
            if role not in known:
                where = f"in role {role!r}" if key.endswith(".roles") else "in that role"
                raise UserMistake(
                    f"{key}: nobody is ever asked {where}: {nearest(role, known)} (a game of your"
                    " own lists its roles in Method(roles=...))"
                )
