"""What an evaluation asks of whom: systems, tasks, setups by name, and what they mean.

Leaves out: asking (`evaluation.runner`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.config.options import filled, keywords, split_options
from comas.config.plugins import load_plugin, plugin_names
from comas.config.policies import Resolved
from comas.config.rehearsal import roles_asked
from comas.config.schema import lifted, parse_pair
from comas.config.systems import (
    checkpoint_of,
    fixed_place,
    hosts_of,
    independent,
    system_config,
    table_of,
    training_of,
)
from comas.evaluation.contamination import Overlap, overlap
from comas.evaluation.systems import asked
from comas.game.agent import Member
from comas.program import command
from comas.questions.checked import can_judge, loaded
from comas.storage import files as disk
from comas.team import spending
from comas.team.build import Team
from comas.types import Host, Method, Question, Setup, Task, UserMistake

OPTIONS = r":(?=\w+=)"
"""What stands between a setup and each of its options."""
LIMIT = 500
"""Questions per task, where it has more: the first ones of an order drawn by the seed."""

INSTEAD = {
    "base": "a system, named by itself",
    "out": "--out",
    "seed": "--seed",
    "data": "--data",
    "task": "--tasks",
    "temperature": "eval_temperature",
    "questions": "--limit",
    "eval_questions": "--limit",
    "samples": "--setups vote:votes=N",
}
UNUSED = (
    "steps",
    "tokens",
    "epochs",
    "minibatches",
    "lr",
    "betas",
    "weight_decay",
    "grad_norm",
    "checkpoint_every",
    "metrics",
    "eval_every",
    "credit",
    "loss",
    "kl",
)
"""Keys of the config that say nothing of an evaluation."""


@dataclass(frozen=True)
class Plan:
    """What is asked of whom."""

    systems: Sequence[str]
    """Runs (`RUN`, `RUN@best`, `RUN@40`), base models, teams (`TEAM.toml`, or a folder with
    `team.toml`), or several runs of one system divided by commas.
    """
    tasks: Sequence[str] = ()
    """Empty: the first system's own task, `pick` for a base model."""
    setups: Sequence[str] = ("single",)
    """Setups or methods by name or file, `game` for the run's own, with options: `vote:votes=16`.
    """
    limit: int | None = LIMIT
    """Questions per task; None is all."""
    seed: int = 0
    pairs: Sequence[str] = ()
    """`key=value` of the config, for all systems."""
    data: str | None = None
    """A file or folder of questions, for tasks that read one."""
    equal_tokens: bool = False
    """Also let the cheaper side of each comparison vote, as often as the dearer side's tokens
    allow.
    """
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    """Run or model as named -> where it is found from anywhere, at the step that was meant when the
    evaluation began.
    """
    teams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Config file as named -> the team that it described when the evaluation began."""
    changes: Sequence[Mapping[str, Any]] = ()
    """What was changed since, in order: `when`, and `pairs` of keys in `spending.CHANGEABLE`."""
    digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """`questions of TASK`, `weights of RUN`, `contents of FILE` -> what they were when they were
    first asked (`fingerprints`).
    """
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """File of a setup or a task as named -> where it is found from anywhere."""
    rooms: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Run or model as named -> `key=value` of its hosts' bounds that followed from the memory that
    there was in the beginning.
    """

    def resolved(self, run: str) -> Resolved:
        """Config, method and task of what stands under this name."""
        return system_config(*self._system(run))

    def team(self, run: str, resolved: Resolved, hosts: Mapping[str, Host] | None = None) -> Team:
        """What stands under this name, and was `resolved`, ready to be asked; `hosts` are those
        that are made already.
        """
        described = run in self.teams
        weights = None if described else checkpoint_of(self.places.get(run, run))
        return asked(resolved, weights, hosts)

    def _system(self, run: str) -> tuple[str, Sequence[str], Mapping[str, Any] | None]:
        name = self.places.get(run, run)
        table = self.teams.get(run)
        pairs = self._concerning(name, table)
        changed = [pair for change in self.changes for pair in change["pairs"]]
        if changed:
            changed = spending.concerning(changed, system_config(name, pairs, table)[0])
        return name, [*pairs, *self.rooms.get(run, ()), *changed], table

    def _concerning(self, name: str, table: Mapping[str, Any] | None) -> list[str]:
        """The pairs without those for hosts that other systems have and this one has not."""
        hosts = hosts_of(name) if table is None else set(table["hosts"])
        if hosts is None:
            named = [
                v for k, v in map(parse_pair, self.pairs) if re.fullmatch(r"agents\..+\.host", k)
            ]
            hosts = {"home", *map(str, named)}
        return [
            pair
            for pair in self.pairs
            if not pair.startswith("hosts.") or pair.split(".")[1] in hosts
        ]


def file_of(setup: str) -> str | None:
    """`./mine.py` of `./mine.py:votes=3`, and of itself; None for what is no file."""
    name = re.split(OPTIONS, setup)[0]
    return name if name.endswith(".py") else None


def files(plan: Plan) -> dict[str, str]:
    """Where the files of setups and tasks are found from anywhere."""
    named = [name for said in (*plan.setups, *plan.tasks) if (name := file_of(said)) is not None]
    return {name: str(Path(name).resolve()) for name in named}


def contents(plan: Plan, teams: Sequence[Team]) -> dict[str, str]:
    """`contents of FILE` -> digest of the files whose code answers or judges: those that were
    named, and the systems' own.
    """
    own = [teams[0].config.task] if not plan.tasks or teams[0].config.task in plan.tasks else []
    own += [
        team.config.method
        for team in teams
        if any(re.split(OPTIONS, said)[0] == "game" for said in plan.setups)
    ]
    found = {**plan.files, **{name: name for name in own if name.endswith(".py")}}
    return {
        f"contents of {name}": disk.digest(Path(place))
        for name, place in found.items()
        if Path(place).is_file()
    }


def with_rooms(plan: Plan, run: str, resolved: Resolved, team: Team) -> Plan:
    """The plan with the bounds of memory that a system, which was `resolved`, was given when it was
    first loaded: another sitting takes the same.
    """
    if run in plan.rooms:
        return plan
    before = resolved.config.hosts
    chosen = [
        f"hosts.{name}.{key}={value}"
        for name, host in team.config.hosts.items()
        for key in ("max_rows", "tokens_per_pass")
        if getattr(before[name], key) is None and (value := getattr(host, key)) is not None
    ]
    return replace(plan, rooms={**plan.rooms, run: chosen})


def changed(plan: Plan, pairs: Sequence[str]) -> Plan:
    """The plan with changes that are of use to one of its systems."""
    runs = [run for system in plan.systems for run in system.split(",")]
    configs = [plan.resolved(run)[0] for run in runs]
    pairs = lifted(pairs, list(dict.fromkeys(host for config in configs for host in config.hosts)))
    spending.check_changes(pairs)
    spending.check_hosts(pairs, configs)
    plan = replace(
        plan,
        changes=[*plan.changes, {"when": time.strftime("%Y-%m-%d %H:%M:%S"), "pairs": list(pairs)}],
    )
    for run in runs:  # a wrong value is an error before anything is written
        plan.resolved(run)
    return plan


def limit_of(limit: int | None, pairs: Sequence[str], key: str) -> int | None:
    """Questions per task, None for all of them: `limit` (the value of `key`), or without one what
    `test_questions` says.
    """
    named: dict[str, Any] = dict(map(parse_pair, pairs))
    if limit is not None and "test_questions" in named:
        raise UserMistake(
            f"{key}={limit} and test_questions={named['test_questions']} say the same: give one of"
            " them"
        )
    asked = named.get("test_questions", LIMIT) if limit is None else limit
    if type(asked) is not int or asked < 0:
        raise UserMistake(
            f"{key if limit is not None else 'test_questions'}={asked!r}: a number of questions per"
            " task; 0 is all"
        )
    return asked or None


@dataclass(frozen=True)
class Way:
    """How answers are given: a setup or a method's game, with its options."""

    name: str
    method: Method
    alone: bool
    options: Mapping[str, Any]


def way(said: str, team: Team, files: Mapping[str, str] | None = None) -> Way:
    """`vote`, `vote:votes=16`, `./mine.py`, a method's name, or `game` for the team's own; `files`
    are those of the plan.
    """
    name, *pairs = re.split(OPTIONS, said)
    name = (files or {}).get(name, name)
    given = dict(parse_pair(p) for p in pairs)
    if name == "game":
        options = {**split_options(team.config.options, team.method.play), **given}
        return Way(
            said,
            replace(team.method, supervised=False),
            False,
            filled(name, options, team.method.play),
        )
    if name.endswith(".py"):
        text = Path(name).read_text(encoding="utf-8-sig") if Path(name).is_file() else ""
        kind = "method" if re.search(r"^method\s*=", text, re.MULTILINE) else "setup"
    else:
        kind = "method" if name in plugin_names("method") else "setup"
    found = load_plugin(kind, name)
    options = filled(name, given, found.play)
    if isinstance(found, Setup):
        return Way(said, _game(found), found.alone, options)
    return Way(said, replace(found, supervised=False), False, options)  # labels are for training


def _game(setup: Setup) -> Method:
    return Method(setup.play, _unsettled, _unsettled, _unsettled, roles=setup.roles)


def _unsettled(*args: object) -> Any:
    raise AssertionError("evaluation never settles")


def players(team: Team, chosen: Way) -> dict[str, list[Member]]:
    """Who plays: every policy by itself, or the team."""
    if not chosen.alone:
        return {"team": list(team.members)}
    # copies of one policy answer once, by the first of them
    different = {m.address: m for m in reversed(team.members)}
    return {m.name: [m] for m in team.members if different[m.address] is m}


def asked_roles(chosen: Sequence[tuple[Team, Way]]) -> set[str]:
    """The roles that these games ask for, as far as a rehearsal of each shows them."""
    roles: set[str] = set()
    for team, how in chosen:
        agents = len(team.members)
        roles |= {*roles_asked(how.method, team.task, agents, how.options), *how.method.roles}
    return roles


def check_roles_taken(chosen: Way, task: Task, members: Sequence[Member]) -> None:
    """An error where the game asks for a role that no agent takes."""
    if chosen.alone or all(member.roles is None for member in members):
        return
    asked = roles_asked(chosen.method, task, len(members), chosen.options)
    for role in chosen.method.paid:
        if role in asked and not any(m.roles is None or role in m.roles for m in members):
            raise UserMistake(
                f"setup {chosen.name}: no agent takes role {role!r}: nobody can answer; see"
                " agents.<name>.roles"
            )


def described(team: Team, chosen: Way) -> str:
    policies = len({m.address for m in team.members})
    n = len(team.members)
    if chosen.alone:
        return "1 agent" if policies == 1 else f"{policies} agents, each alone"
    return (
        f"{n} copies of one model"
        if policies == 1 and n > 1
        else "1 agent"
        if n == 1
        else f"team of {n}"
    )


def check_hosts(pairs: Sequence[str], teams: Sequence[Team]) -> None:
    """An error where `hosts.<name>.key=value` is about a host at which nobody is."""
    known = {agent.host for team in teams for agent in team.config.agents.values()}
    for pair in pairs:
        table, _, rest = pair.partition("=")[0].partition(".")
        if rest.endswith(".base"):
            raise UserMistake(
                f"{pair}: what is evaluated is named as a system: {command()} eval"
                f" {pair.partition('=')[2]}"
            )
        if table == "hosts" and (name := rest.split(".")[0]) not in known:
            raise UserMistake(
                f"{pair}: no agent of these systems is at a host {name!r}: {nearest(name, known)}"
            )


def questions(
    plan: Plan, teams: Sequence[Team]
) -> tuple[list[tuple[Task, list[Question]]], list[str]]:
    """Load the questions that all systems are asked; also return notes for the reader.

    They are those of the tasks that were named, or of the first system.
    """
    first = teams[0]
    found = list[tuple[Task, list[Question]]]()
    said = list[str]()
    own = first.config.task
    options = dict(first.config.task_options)
    for c in (team.config for team in teams):
        if c.task == own and c.task_options != options:
            said.append(
                f"{c.out or own}: trained with task_options {c.task_options}, asked with {options}"
            )
    for name in plan.tasks or [own]:
        task = first.task if name == own else load_plugin("task", plan.files.get(name, name))
        place = plan.data or (first.config.data if name == own else None)
        how = dict(options) if name == own else {}
        if (
            "whole" in keywords(task.load)
            and plan.data
            and Path(plan.data).is_file()
            and not how.get("whole")
        ):
            how["whole"] = not (
                learnt := [
                    run for run in plan.places.values() if _trained_among(run, task, plan.data)
                ]
            )
            said += [
                f"{name}: asked are the test questions of {plan.data} only: {run} was trained on"
                " others"
                for run in learnt
            ]
        asked = loaded(task, "test", path=place, limit=plan.limit, seed=plan.seed, **how)
        if not asked:
            raise UserMistake(
                f"task {name} has no test questions" + (f" in {plan.data}" if plan.data else "")
            )
        if not can_judge(task, asked):
            raise UserMistake(
                f"task {name}: none of its test questions has an answer, so none can be judged; add"
                " `answer`"
            )
        found.append((task, asked))
    return found, said


def _trained_among(run: str, task: Task, file: str) -> bool:
    """Whether a run was trained on a question of a file; where that cannot be known, as if it had
    been.
    """
    try:
        trained = {q.id for q in trained_on(run)}
    except UserMistake:
        return True
    return bool(trained) and any(q.id in trained for q in task.load("test", path=file, whole=True))


def overlaps(
    names: Iterable[str], asked: Sequence[tuple[Task, Sequence[Question], str]]
) -> Iterator[tuple[str, Overlap | None]]:
    """Per task what runs and exports among these were trained on; nothing for base models, whose
    past nobody here knows.
    """
    trained: list[Question] | None = []
    try:
        trainings = {independent(name): found for name in names if (found := training_of(name))}
        if not trainings:
            return
        trained = [q for name in sorted(trainings) for q in _trained(*trainings[name])]
    except UserMistake:
        trained = None
    for task, questions in {t.name: (t, qs) for t, qs, _ in asked}.values():
        yield task.name, overlap(trained, questions) if trained is not None else None


def trained_on(name: str) -> list[Question]:
    """The training questions of a run or an export, and of the runs that it started from; by its
    own config, whatever is asked of it now.
    """
    found = training_of(name)
    return _trained(*found) if found else []


def _trained(resolved: Resolved, before: Sequence[str]) -> list[Question]:
    config = resolved.config
    questions = loaded(
        resolved.task, "train", path=config.data, seed=config.seed, **config.task_options
    )
    return questions + [q for base in before for q in trained_on(base)]


def places(systems: Sequence[str]) -> dict[str, str]:
    """Where each run or model is found from anywhere; a run at the step that it has now, which
    training on does not change.
    """
    found: dict[str, str] = {}
    for system in systems:
        for name in system.split(","):
            if not name:
                raise UserMistake(f"{system!r}: nothing stands beside one of its commas")
            found[name] = fixed_place(name)
        mine = [independent(found[name]) for name in system.split(",")]
        if twice := [p for p in mine if mine.count(p) > 1]:
            raise UserMistake(
                f"{twice[0]} stands twice in {system}: several runs of a system have to be"
                " different ones, and two checkpoints of one run are one"
            )
    every = [found[name] for system in systems for name in system.split(",")]
    if twice := [p for p in every if every.count(p) > 1]:
        raise UserMistake(f"{twice[0]} is named twice: what is compared has to differ")
    return found


def teams(found: Mapping[str, str], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The teams that config files among these `places` describe now: what the files say later
    changes nothing.
    """
    return {
        name: table_of(place, pairs)
        for name, place in found.items()
        if place.endswith(".toml") and Path(place).is_file()
    }
