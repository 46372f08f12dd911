"""Begin a training run, or go on with one: everything that can be known to be wrong is reported
before models are loaded.

Leaves out: the loop (`training.loop`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comas import memory
from comas.config.checks import check_room, check_training, unused_max_tokens
from comas.config.plan import Plan, plan
from comas.config.plugins import check_trackers, load_plugin
from comas.config.rehearsal import rehearse
from comas.config.schema import CHANGES, Config, checked, read, values_of, with_host_keys
from comas.game.weighing import is_sampled
from comas.hooks import Hook, Hooks, Progress, hooks_of
from comas.program import Work, command
from comas.questions.checked import RunQuestions, of_run
from comas.storage import files
from comas.storage.out_folder import check_free
from comas.storage.rewind import rewind
from comas.storage.run import Run
from comas.team import spending
from comas.team.build import assemble, check_places, team_without_models
from comas.trackers.sink import Tracker
from comas.training.learning import at_host
from comas.training.loop import Session
from comas.training.result import Result, nothing_left, result_of
from comas.types import Account, Question, Turn, UserMistake


@dataclass(frozen=True)
class Prepared:
    """A run of which everything is known that can be before models are loaded."""

    plan: Plan
    memory: memory.MemoryPlan
    asked: RunQuestions
    replies: int
    """Replies of one discussion, as far as it can be rehearsed."""


def prepare(config: Config, note: Callable[[str], None]) -> Prepared:
    """Plan a config, read its questions and look whether it fits: an error for all that can be
    known to be wrong, before what takes long and before there is a folder.
    """
    planned = plan(config)
    check_training(planned)
    check_places(planned)
    if planned.config.out is not None:
        check_free(planned.config.out)
    asked = of_run(planned.config, planned.task, note)
    turns = rehearsed(planned, asked.train[0])
    check_room(planned, [turn.role for turn in turns if is_sampled(turn)])
    hints = [_unasked(planned), _unread(planned, asked.train), _without_its_team(planned)]
    hints.append(_unfallen(planned.config))
    if "max_tokens" in config.model_fields_set:
        hints.append(unused_max_tokens(planned, [turn.role for turn in turns]))
    for hint in filter(None, hints):
        note(hint)
    return Prepared(*memory.bounds_of_new(planned, note), asked, len(turns))


def _unfallen(config: Config) -> str | None:
    """Say where a falling rate may not come to its end."""
    if config.tokens is None or config.schedule == "constant":
        return None
    return (
        f"the rate falls over steps={config.steps}, and tokens={config.tokens} may end the run"
        " before: set steps to as many as there will be"
    )


def rehearsed(planned: Plan, question: Question) -> Sequence[Turn]:
    """Play a question with the agents of a plan at a host of no model."""
    team = team_without_models(planned)
    return rehearse(team.method, team.task, team.members, question, team.config.options)


async def train_async(config: Config, *hooks: Hook) -> Result:
    """Train a team from a config, inside an event loop."""
    hook = tracked(hooks_of(hooks), config.track)
    hook.working(Progress("estimating"))
    ready = prepare(config, hook.note)
    config = ready.plan.config
    hook.working(Progress("loading"))
    work = Work()
    asks = config.steps > 0
    team = await assemble(ready.plan, hook.note, work=work, asks=asks)
    run = None
    try:
        session = Session(team, hook, ready.asked, ready.replies)
        run = Run.create(config.model_dump(), config.out)
        work.folder = run.path
        return await session.go(run, 0)
    finally:
        team.close()
        if run is not None:
            run.unlock()


def tracked(hooks: Hooks, names: Sequence[str]) -> Hooks:
    """Return these hooks and one for each tracker; an error for a tracker that cannot be had."""
    check_trackers(names)
    trackers: list[Hook] = []
    for name in dict.fromkeys(names):
        tracker = Tracker(name, load_plugin("tracker", name, "track").open)
        tracker.tell = hooks.note
        trackers.append(tracker)
    # first: what they tell at the end is told while the others still listen
    return Hooks([*trackers, hooks]) if trackers else hooks


def _unasked(planned: Plan) -> str | None:
    """A pointer to `comas preflight` where a pretrained base is to learn without labels; None for
    shipped models and for what was trained before.
    """
    config = planned.config
    bases = {
        policy.source.name: None
        for policy in planned.policies
        if policy.learns and not policy.source.tiny and policy.source.kind not in ("run", "adapter")
    }
    if not bases or planned.method.supervised:
        return None
    settings: dict[str, Any] = {"task": config.task}
    settings |= {"data": config.data} if config.data is not None else {}
    settings |= {f"task_options.{name}": value for name, value in config.task_options.items()}
    settings |= {f"room.{role}": tokens for role, tokens in config.room.items()}
    if config.temperature != Config.model_fields["temperature"].default:
        settings["temperature"] = config.temperature
    words = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
        if value is not None  # which no key=value can say
    ]
    return (
        "whether this can teach anything is known in minutes, before training:"
        f" {command()} preflight {shlex.join([*bases, *words])}"
    )


SAMPLED = 8
"""Questions whose words are looked up."""


def _unread(planned: Plan, questions: Sequence[Question]) -> str | None:
    """Return a hint where a shipped model is to learn from questions of which it cannot read most
    words: it has one token per word of its puzzles.
    """
    words = [word for question in questions[:SAMPLED] for word in question.prompt.split()]
    for source in {p.source for p in planned.policies if p.learns and p.source.kind == "tiny"}:
        tokenizer = (Path(source.where) / "tokenizer.json").read_text(encoding="utf-8")
        vocabulary = json.loads(tokenizer)["model"]["vocab"]
        unknown = [word for word in words if word not in vocabulary]
        if 2 * len(unknown) > len(words):
            return (
                f"{source.name} knows the {len(vocabulary)} words of its own puzzles and cannot"
                f" read {len(unknown)} of {len(words)} words of these questions, such as"
                f" {unknown[0]!r}: take a pretrained model, such as base=smollm2"
            )
    return None


def _without_its_team(planned: Plan) -> str | None:
    """A hint where a config changes one of the agents that a method brings, and loses the others:
    a table of agents stands for a team.
    """
    team = planned.method.team
    agents = planned.config.agents
    missing = [name for name in team if name not in agents]
    if not missing or len(missing) == len(team):
        return None
    return (
        f"method {planned.config.method} brings the agents {', '.join(team)}, and `agents` has"
        f" {', '.join(agents)}: {', '.join(missing)} will not be there; list all of them, with"
        " their roles, to change one"
    )


def as_recorded(config: Config) -> Plan:
    """Plan the config of a run; its KL is what it was begun with, also where an older comas left
    out the defaults of roles that the table does not name.
    """
    planned = plan(config)
    if config.kl is None:
        return planned
    return replace(
        planned,
        config=planned.config.model_copy(update={"kl": config.kl}),
        method=replace(planned.method, kl=config.kl),
    )


def replies_of(run: Run) -> float:
    """Replies of a discussion in a run's last step; 0 where it has none."""
    last = next(iter(list(run.metrics())[-1:]), None)
    if last is None:
        return 0
    config = run.config()
    turns = last.get("counts", {}).get("turns", 0)
    return turns / (config["questions"] * config["samples"])


def _kept_in(checkpoint: Path | None, config: Config) -> dict[str, Account]:
    """The accounts as they were saved with a checkpoint: older than those in `spent.json`, for
    where that is lost.
    """
    if checkpoint is None:
        return {}
    names = [name for name, host in config.hosts.items() if host.built_by == "api"]
    kept = {name: files.read_object(checkpoint / f"{name}.json") for name in names}
    return {name: account for name, account in kept.items() if account is not None}


async def resume_async(
    path: str | Path,
    *hooks: Hook,
    changes: Mapping[str, Any] | None = None,
) -> Result:
    """Go on from a run's last good checkpoint.

    `changes` are values of keys in `CHANGES` and in `spending.CHANGEABLE`: they are written into
    the run's config.
    """
    hook = hooks_of(hooks)
    run = Run.open(path)
    changed = with_host_keys(changes or {}, list(run.config()["hosts"]))
    of_hosts = {key: value for key, value in changed.items() if key not in CHANGES}
    spending.check_changes(of_hosts, [checked(run.config())], sorted(CHANGES))
    run.lock()
    team = None
    try:
        run_steps = run.config()["steps"]
        start, notes = rewind(run)
        for note in notes:
            hook.note(note)
        if not changed and (left := nothing_left(run, start)):
            hook.note(left)
            return result_of(run)
        hook.working(Progress("estimating", start))
        planned = as_recorded(read(None, {**run.config(), **changed}))
        config = planned.config
        hook = tracked(hook, config.track)
        check_places(planned)
        if "steps" in changed and config.steps < start:
            raise UserMistake(
                f"steps={config.steps}: {run.path} has {start} steps already; take more, or begin"
                " anew"
            )
        if "steps" in changed and config.schedule != "constant" and config.steps != run_steps:
            raise UserMistake(
                f"steps={config.steps}: learning rates of this run fall over {run_steps} steps"
                f" (schedule={config.schedule}); begin anew with the longer schedule"
            )
        asked = of_run(config, planned.task, hook.note)
        planned = memory.bounds(planned)
        hook.working(Progress("loading", start))
        checkpoint = run.checkpoint_of(start) if run.marker() is not None else None
        accounts = {**_kept_in(checkpoint, config), **run.spent()}
        asks = start < config.steps
        team = await assemble(
            planned,
            hook.note,
            accounts=accounts,
            work=Work(run.path),
            asks=asks,
        )
        for name, host in team.hosts.items():
            if checkpoint is not None and host.learns:
                await at_host(name, f"loading step {start}", host.load(checkpoint))
        session = Session(team, hook, asked, replies_of(run))
        return await session.go(run, start, run.change(values_of(config, changed)))
    finally:
        if team is not None:
            team.close()
        run.unlock()
