"""Whether a plan can be trained, as far as that is known before a model is loaded.

Leaves out: what a config's tables say of each other (`config.schema`), what fits into memory
(`comas.memory`), games that refuse their team when they are played (`config.rehearsal`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from comas.config.mistakes import nearest
from comas.config.plan import Plan
from comas.config.plugins import (
    check_plugin_name,
    check_trackers,
    load_plugin,
    names_file,
    plugin_names,
)
from comas.config.schema import Config
from comas.game.play import bare
from comas.models import gguf
from comas.models.sources import Source, check_place, described_by
from comas.objective.preference import WITHOUT_KL
from comas.types import Method, Task, UserMistake


def check_training(plan: Plan) -> None:
    """Raise UserMistake for what training refuses, in a dry run and in a study too."""
    config = plan.config
    method = plan.method
    task = plan.task
    for source in plan.sources():
        check_place(source.where)
    kl = config.kl or {}
    for role in kl:
        if method.rewarded and role not in method.rewarded:
            is_own = names_file(config.method)
            says = "does not say that it rewards" if is_own else "never trains on"
            raise UserMistake(
                f"kl.{role}: method {config.method} {says} that role:"
                f" {nearest(role, method.rewarded)}{_own_rewarded(config)}"
            )
        if kl[role] and bare(method.credit) in WITHOUT_KL:
            raise UserMistake(
                f"kl.{role}: the credit of method {config.method} has no KL beside its own terms:"
                " leave it out, and set credit.beta (dpo, ipo) or credit.eta (sppo)"
            )
    check_roles(config, [method], task)
    check_seats(config, method)
    for name in config.monitors or ():
        check_plugin_name("monitor", name, "monitors")
    check_trackers(config.track)
    is_own = names_file(config.method)
    if task.rules is not None and "rules" not in method.needs and not is_own:
        raise UserMistake(
            f"task {task.name} is a game, and method {config.method} plays none: take method=mars,"
            " method=spiral or one of your own (docs/extending.md)"
        )
    if config.tools and "tools" not in method.needs and not is_own:
        raise UserMistake(
            f"tools = {', '.join(config.tools)}: nobody can call one in method {config.method}:"
            " leave it out, or take a method that needs them, such as agent0_vl (docs/tools.md)"
        )


def unused_max_tokens(plan: Plan, asked: Iterable[str]) -> str | None:
    """Say that `max_tokens` reaches none of the roles that are rewarded or `asked`, where each has
    a limit of its own; None where it reaches one.
    """
    config = plan.config
    room = plan.room
    if config.max_tokens == Config.model_fields["max_tokens"].default:
        return None  # nobody has set it
    roles = dict.fromkeys((*plan.method.rewarded, *asked))
    if not all(role in room for role in roles):
        return None
    room_list = ", ".join(f"room.{role}={room[role]}" for role in roles)
    return (
        f"max_tokens={config.max_tokens} has no effect: every role has a limit of its own"
        f" ({room_list}); set room.<role> instead"
    )


def check_room(plan: Plan, asked: Iterable[str]) -> None:
    """Raise UserMistake where the tokens of a reply leave none for its prompt, as far as known
    before a model is loaded; `asked` are the roles of a discussion, none where it is not known.
    """
    config = plan.config
    room = plan.room
    for policy in plan.policies:
        context = config.hosts[policy.host].context or _positions(policy.source)
        if context is None:
            continue
        for role in dict.fromkeys(asked) or plan.method.rewarded:
            tokens = room.get(role, config.max_tokens)
            if tokens >= context:
                is_set = role in room
                limit = f"room.{role} is" if is_set else f"max_tokens, for replies as {role}, is"
                raise UserMistake(
                    f"{limit} {tokens} tokens: with a prompt they do not fit the context of"
                    f" {policy.address} ({context} tokens, base {policy.source.name}):"
                    f" {'lower' if is_set else 'set'} room.{role}, or raise"
                    f" hosts.{policy.host}.context where the base allows it"
                )


def _positions(source: Source) -> int | None:
    """Tokens of a row that fit a base on this disk; None where that is not known without loading
    it.
    """
    folder = Path(source.where)
    if source.kind == "gguf" and folder.is_file() and gguf.has_copy(source.where):
        folder = gguf.copy_folder(source.where)
    described = folder / "config.json"
    if source.kind not in ("tiny", "folder", "gguf") or not described.is_file():
        return None
    try:
        facts = described_by(described)
    except ValueError:
        return None  # loading it says what is wrong
    positions = facts.get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def check_seats(config: Config, method: Method) -> None:
    """Raise UserMistake where nobody could learn. Roles that nobody takes are found by playing:
    which ones a game asks for depends on its options.
    """
    agents = config.agents.values()
    taken = [agent.roles for agent in agents if not agent.frozen]
    rewarded_roles = set(method.rewarded)
    if not any(r is None or not rewarded_roles or rewarded_roles & {*r} for r in taken):
        rewarded = ", ".join(method.rewarded)
        raise UserMistake(
            f"no agent can learn: method {config.method} rewards {rewarded}, and no learning agent"
            f" takes those{_own_rewarded(config)}"
        )


def _own_rewarded(config: Config) -> str:
    """Hint at `Method.roles` where the method is the user's own file."""
    if not names_file(config.method):
        return ""
    return (
        " (a method that rewards other roles lists them: Method(roles={name: Role(kind,"
        " reward=...)}))"
    )


def check_roles(config: Config, methods: Sequence[Method], task: Task) -> None:
    """Refuse a role that none of these games has, and name the nearest."""
    asked = {role for method in methods for role in method.roles}
    own = asked | {*task.max_tokens}
    roles_by_key = {f"room.{role}": [role] for role in config.room}
    for name, agent in config.agents.items():
        roles_by_key[f"agents.{name}.roles"] = agent.roles or []
    for key, roles in roles_by_key.items():
        for role in roles:
            if role not in own and role not in shipped_roles():
                where = f"in role {role!r}" if key.endswith(".roles") else "in that role"
                raise UserMistake(
                    f"{key}: nobody is ever asked {where}: {nearest(role, asked)} (a game of your"
                    " own lists its roles in Method(roles={...}))"
                )


def shipped_roles() -> set[str]:
    """Gather the roles of all shipped methods and setups."""
    shipped = [(kind, name) for kind in ("method", "setup") for name in plugin_names(kind)]
    return {role for kind, name in shipped for role in load_plugin(kind, name).roles}
