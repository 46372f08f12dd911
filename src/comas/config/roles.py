"""Names of roles in `kl`, `room` and `agents.<name>.roles`: one that nobody is ever asked in is a
mistake.

Leaves out: roles whose names an own game puts together while it runs; list those in `Method.paid`
or the task's `max_tokens`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from comas.config.policies import Resolved
from comas.config.schema import Config, nearest
from comas.types import Method, Task, UserMistake

SHIPPED = ("solution", "evaluation", "scoring", "revision", "proxy")
"""Of the shipped methods and setups: room may be set for an evaluation to come."""


def check_training(config: Config, method: Method, task: Task) -> None:
    """`check_roles`, and that every role with a KL can be trained."""
    for role in config.kl or {}:
        if role not in method.paid:
            raise UserMistake(
                f"kl.{role}: method {config.method} never trains on that role:"
                f" {nearest(role, method.paid)}"
            )
    check_roles(config, method, task)


def check_room(resolved: Resolved) -> None:
    """An error where the room of a reply leaves none for its prompt, as far as that is known before
    a model is loaded.
    """
    config = resolved.config
    room = {**resolved.task.max_tokens, **config.room}
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
    """An error where nobody takes a role that the method needs, or where nobody could learn."""
    agents = config.agents.values()
    for role in method.paid:
        if not any(a.roles is None or role in a.roles for a in agents):
            raise UserMistake(
                f"no agent takes role {role!r}, which method {config.method} needs: see"
                " agents.<name>.roles"
            )
    if learn and not any(
        not a.frozen and (a.roles is None or set(a.roles) & set(method.paid)) for a in agents
    ):
        paid = ", ".join(method.paid)
        raise UserMistake(
            f"no agent can learn: method {config.method} pays {paid}, and no learning agent takes"
            " those"
        )


def check_roles(config: Config, method: Method, task: Task, others: Sequence[Method] = ()) -> None:
    """An error that names the nearest role; `others` are further games that will be played."""
    known = {*SHIPPED, *method.paid, *task.max_tokens}
    written = set().union(*(_written(m) for m in (method, *others)))
    for role in config.room:
        if role not in known | written:
            raise UserMistake(
                f"room.{role}: nobody is ever asked in that role: {nearest(role, known)}"
            )
    for name, agent in config.agents.items():
        for role in agent.roles or []:
            if role not in known | written:
                raise UserMistake(
                    f"agents.{name}.roles: nobody is ever asked in role {role!r}:"
                    f" {nearest(role, known)}"
                )


def asks(method: Method, role: str) -> bool:
    """Whether the game's file names this role."""
    return role in _written(method)


def _written(method: Method) -> set[str]:
    """Every word in quotes in the file of a game: its roles are among them."""
    play = method.play.func if isinstance(method.play, partial) else method.play
    file = inspect.getsourcefile(play)
    text = Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""
    return set(re.findall(r"""["'](\w+)["']""", text))
