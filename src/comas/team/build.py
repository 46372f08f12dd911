"""Config -> hosts and members; a trained team for scripts and notebooks.

Leaves out: training (`train`), other kinds of hosts.
"""

from __future__ import annotations

import copy
import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from comas.config.resolve import bases_of, resolve, split_options
from comas.config.roles import check_seats
from comas.config.schema import (
    TOKENS_PER_PASS,
    AgentConfig,
    Config,
    checked,
    parse_pair,
    read,
)
from comas.game.agent import Member
from comas.game.play import Scene, play_all, settle_all
from comas.hosts import api, local
from comas.hosts.api import ApiHost
from comas.hosts.local import LocalHost, resolve_base
from comas.hosts.plan import HostPlan
from comas.models.sources import adapter_base, at_hand, is_adapter, is_seed, team_file
from comas.program import Work, command
from comas.storage.run import Run, run_at
from comas.sync import run_sync
from comas.team.instances import check_instances, close_hosts
from comas.types import Episode, Host, Method, Question, Sampling, Task, UserMistake

Resolved = tuple[Config, Method, Task]


Builder = Callable[[HostPlan], Host]
"""`build` of the module of a kind of host."""
UNTRAINED = {"lr": 1e-6}
"""A base without a recipe can be asked as well."""


@dataclass(repr=False)
class Team:
    """Agents ready to be asked; made by `build_team` or `comas.load`."""

    config: Config
    method: Method
    task: Task
    hosts: Mapping[str, Host]
    members: Sequence[Member]
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """`host/policy` -> the folder or hub name that its weights come from; none of those behind an
    API.
    """
    _played: int = field(default=0, repr=False)

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.members)
        return (
            f"Team({names}: {self.config.method} on {self.config.task}, from"
            f" {', '.join(self.bases())})"
        )

    def scene(self, **changes: Any) -> Scene:
        """The scene of the team's own game; `changes` are fields of `Scene`."""
        options = split_options(self.config.options, self.method.play)
        facts = {
            "seed": self.config.seed,
            "options": options,
            "max_tokens": self.config.room,
            **changes,
        }
        return Scene(self.method, self.task, self.members, **facts)

    def discuss(self, question: str | Question, seed: int | None = None) -> Episode:
        """Let the team discuss one question; the same seed gives the same discussion.

        Its turns are paid as in training, unless the method needs an answer that a text does not
        have.
        """
        payable = not (isinstance(question, str) and self.method.supervised)
        if isinstance(question, str):
            question = Question(id="asked", prompt=question)
        self._played += 1
        occasion = f"discuss-{self._played if seed is None else seed}"
        scene = self.scene()
        episodes = run_sync(play_all(scene, [question], occasion))
        if payable:
            settle_all(scene, episodes, split_options(self.config.options, self.method.settle))
        return episodes[0]

    def bases(self) -> list[str]:
        """The models that its policies started from."""
        return sorted({_told_base(self.config, agent) for agent in self.config.agents.values()})

    def close(self) -> None:
        """Give threads and memory back; the caller's own hosts stay open."""
        close_hosts(self.config, self.hosts)


def _told_base(config: Config, agent: AgentConfig) -> str:
    """What an agent's policy starts from, in words."""
    host = config.hosts[agent.host]
    if host.own:
        return f"host {agent.host}"
    base = agent.base or host.base
    return base if host.api is None else f"{base} at {host.api}"


def api_hosts_of(config: Config, work: Work | None = None) -> dict[str, ApiHost]:
    """The hosts behind an API that a resolved config describes, not yet opened."""
    models = {
        name: bases_at(config, name) for name, host in config.hosts.items() if host.kind == "api"
    }
    return {
        name: api.build(HostPlan(name=name, table=config.hosts[name], policies=named, work=work))
        for name, named in models.items()
        if named
    }


def build_team(
    config: Config,
    method: Method,
    task: Task,
    *,
    learn: bool = True,
    weights: Path | None = None,
    hosts: Mapping[str, Host] | None = None,
) -> Team:
    """The team that a resolved config describes; with `weights`, policies come from that checkpoint
    instead of bases.

    `hosts` are those that somebody has made already: they are the team's from here on.
    """
    from comas.engines.hf.engine import use_threads
    from comas.forecast.fitting import filled
    from comas.sandbox import jail

    built: dict[str, Host] = dict(hosts or {})
    sources: dict[str, str] = {}
    try:
        check_instances(config, built)
        check_seats(config, method, learn)
        # what is wrong with hosts elsewhere is told before models are loaded
        for name, host in config.hosts.items():
            if name not in built and not host.here and (policies := bases_at(config, name)):
                built[name] = _host_of(config, name, policies, method if learn else None)
        use_threads(config.threads)
        jail.choose(config.sandbox)
        config = filled(config, method, task, learn)
        for name in config.hosts:
            if name not in built and (policies := bases_at(config, name, weights)):
                sources |= {f"{name}/{policy}": base for policy, base in policies.items()}
                built[name] = _host_of(config, name, policies, method if learn else None)
    except BaseException:
        close_hosts(config, built)
        raise
    in_order = {name: built[name] for name in config.hosts if name in built}
    return Team(config, method, task, in_order, members_of(config, in_order), sources)


def _host_of(config: Config, name: str, policies: Mapping[str, str], method: Method | None) -> Host:
    """A host that the module of its kind builds."""
    module: Any = importlib.import_module(f"comas.hosts.{config.hosts[name].kind}")
    build: Builder = module.build
    return build(plan_of(config, name, policies, method))


def plan_of(
    config: Config, name: str, policies: Mapping[str, str], method: Method | None
) -> HostPlan:
    """All that a kind of host has to know to build the host `name`, whose policies start from
    `policies`; with `method` it can learn.
    """
    table = config.hosts[name]
    learns = method is not None and table.here
    under = under_of(config, name, policies, learns) if table.here else None
    return HostPlan(
        name=name,
        table=table,
        policies=policies,
        method=method,
        recipe=_recipe(config, name) if learns else None,
        under=under,
        shapes=shapes_of(config, name) if under else None,
        seed=config.seed,
    )


def local_host(
    config: Config, name: str, bases: Mapping[str, str], method: Method | None
) -> LocalHost:
    """The host with weights here that a resolved config describes."""
    return local.build(plan_of(config, name, bases, method))


def bases_at(config: Config, name: str, weights: Path | None = None) -> dict[str, str]:
    """Policy -> what it starts from, of one host; behind an API the model's name."""
    bases: dict[str, str] = {}
    host = config.hosts[name]
    for agent, a in config.agents.items():
        if a.host == name:
            policy = a.policy or agent
            base = a.base or host.base
            if host.here:
                base = str(weights / policy) if weights else weights_of(base, policy)
            if bases.setdefault(policy, base) != base:
                raise UserMistake(
                    f"agents.{agent}.base is {base!r}, but policy {policy} has base"
                    f" {bases[policy]!r} already"
                )
    return bases


def weights_of(base: str, policy: str) -> str:
    """The folder of a policy where `base` is a run, as it was after some step; otherwise the base
    itself.
    """
    if is_seed(base) or (found := run_at(base)) is None:
        return at_hand(base)
    checkpoint = found[0].intact(found[1])
    if not (checkpoint / policy).is_dir():
        known = ", ".join(sorted(p.name for p in checkpoint.iterdir() if p.is_dir()))
        raise UserMistake(
            f"base {base!r} has no policy {policy!r}: it has {known}; name agents so, or give them"
            " a `policy` of it"
        )
    return str(checkpoint / policy)


def under_of(config: Config, name: str, sources: Mapping[str, str], learn: bool) -> str | None:
    """The one model below all adapters of a host; None where each policy has a model of its own."""
    adapters = sorted(s for s in sources.values() if is_adapter(s))
    if adapters and learn and config.hosts[name].learner == "full":
        raise UserMistake(
            f"base {adapters[0]!r} is an adapter: set hosts.{name}.learner=adapters, or give a"
            " whole model"
        )
    if not adapters and not (learn and config.hosts[name].learner == "adapters"):
        return None
    found: dict[str, str] = {}
    for agent, a in config.agents.items():
        if a.host == name:
            policy = a.policy or agent
            base = a.base or config.hosts[name].base
            if is_adapter(sources[policy]):
                _agree(config, agent, sources[policy])
                place = resolve_base(at_hand(below := _below(base, policy)))
                if place.startswith((".", "/", "~")) and not Path(place).is_dir():
                    raise UserMistake(
                        f"base {base!r} is an adapter for {below!r}, and there is no such folder:"
                        " name where that lies as base_model_name_or_path in its"
                        " adapter_config.json"
                    )
            else:
                place = resolve_base(sources[policy])
                if place.startswith((".", "/", "~")) and not Path(place).is_dir():
                    raise UserMistake(f"base {base!r}: no such folder")
            found[str(Path(place).resolve()) if Path(place).is_dir() else place] = agent
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise UserMistake(
            f"agents {first} and {second} of host {name} start from {one!r} and {other!r}: adapters"
            " share one base; give them hosts of their own"
            + ("" if adapters else f", or set hosts.{name}.learner=full")
        )
    return next(iter(found))


def _agree(config: Config, agent: str, folder: str) -> None:
    """An adapter stays what it is: an error where this agent, or the host whose base it is, is
    given another shape.
    """
    from comas.learners.lora.peft_folder import spec_of

    a = config.agents[agent]
    there = spec_of(folder)
    for key in ("rank", "alpha", "targets"):
        given = getattr(a, key)
        where = f"agents.{agent}"
        if given is None and a.base is None:
            given = getattr(config.hosts[a.host], key)
            where = f"hosts.{a.host}"
        found: Any = getattr(there, key)
        if key == "targets":
            found = sorted({name.rpartition(".")[2] for name in found})
            same = given is None or {t.rpartition(".")[2] for t in given} == set(found)
        else:
            same = given is None or math.isclose(given, found)
        if not same:
            raise UserMistake(
                f"{where}.{key} is {given}, but the adapter in {folder} has {found}: leave"
                f" {where}.{key} out"
            )


def _below(base: str, policy: str) -> str:
    """The whole model below an adapter that `base` is; through runs of runs, each of which knows
    where it began.
    """
    if is_seed(base):
        return base
    if is_adapter(base):
        return adapter_base(base)
    if (found := run_at(base)) is None:
        return base
    # at whatever step: what it is does not change
    if not is_adapter(weights_of(str(found[0].path), policy)):
        return weights_of(base, policy)
    began = checked(found[0].config())
    first = next(a for n, a in began.agents.items() if (a.policy or n) == policy)
    return _below(first.base or began.hosts[first.host].base, policy)


def shapes_of(config: Config, name: str) -> dict[str, Any]:
    """Policy -> shape of a new adapter."""
    from comas.learners.lora.population import Spec

    shapes: dict[str, Any] = {}
    for agent, a in config.agents.items():
        if a.host == name:
            given = {
                k: getattr(a, k) or getattr(config.hosts[name], k)
                for k in ("rank", "alpha", "targets")
            }
            rank = given["rank"] or 16
            shape = Spec(
                rank,
                given["alpha"] or 2.0 * rank,
                tuple(given["targets"]) if given["targets"] else None,
            )
            if shapes.setdefault(a.policy or agent, shape) != shape:
                raise UserMistake(
                    f"agents.{agent} has another rank, alpha or targets than others of policy"
                    f" {a.policy}"
                )
    return shapes


def members_of(config: Config, hosts: Mapping[str, Host]) -> list[Member]:
    """The agents of a config at these hosts."""
    return [
        Member(
            name,
            hosts[a.host],
            a.policy or name,
            tuple(a.roles) if a.roles is not None else None,
            Sampling(a.temperature or config.temperature, 1.0, config.max_tokens),
            a.frozen,
        )
        for name, a in config.agents.items()
    ]


def _recipe(config: Config, host: str) -> Any:
    from comas.learners.step import Recipe

    assert config.betas is not None, "resolve fills in the recipe"
    assert config.weight_decay is not None
    assert config.grad_norm is not None
    h = config.hosts[host]
    rates = {
        a.policy or n: a.lr for n, a in config.agents.items() if a.host == host and a.lr is not None
    }
    return Recipe(
        h.lr or config.lr or 0.0,
        config.betas,
        config.weight_decay,
        config.grad_norm,
        h.tokens_per_pass or TOKENS_PER_PASS,
        h.checkpointing,
        rates=rates,
        old_logprobs=h.old_logprobs,
    )


def load(
    path: str | Path,
    step: int | None = None,
    overrides: Sequence[str] = (),
    hosts: Mapping[str, Host] | None = None,
) -> Team:
    """The team of a run as it was at its last checkpoint (or after `step` steps), without
    optimizer; or of a `team.toml`.

    `path` may also name the step: `RUN@40`, `RUN@best` (on the validation split); or a config file,
    or a folder with `team.toml` such as `comas export` writes. `overrides` are `key=value` pairs,
    as on the command line. `hosts` are instances of the caller's own, where the run had such.
    """
    resolved, weights = found_at(path, step, overrides)
    return build_team(*resolved, learn=False, weights=weights, hosts=hosts)


def found_at(
    path: str | Path, step: int | None = None, overrides: Sequence[str] = ()
) -> tuple[Resolved, Path | None]:
    """What `load` would load: config, method and task, and the checkpoint of a run."""
    if isinstance(overrides, str):
        raise UserMistake(f"overrides={overrides!r}: a list of pairs is wanted: [{overrides!r}]")
    path = os.path.expanduser(path)
    if (file := team_file(path)) is not None:
        if step is not None:
            raise UserMistake(
                f"{path} is a team, not a run: it has no checkpoint of step {step} or any other;"
                " leave step out"
            )
        return resolve(_untrained(file, overrides)), None
    found = run_at(str(path))
    run, named = found or (Run.open(path), None)
    step = named if step is None else step
    return _run_config(run, overrides), run.intact(step)


def _run_config(run: Run, overrides: Sequence[str]) -> Resolved:
    if any(key.split("=")[0] == "method" for key in overrides):
        raise UserMistake(
            f"{run.path}: method= is for training; to have a run play another game: {command()}"
            " eval --setups METHOD"
        )
    config, method, task = resolve(read(run.path / "config.toml", overrides))
    for host, table in run.config()["hosts"].items():
        if config.hosts[host].kind == "api" and not table.get("api"):
            raise UserMistake(
                f"{run.path}: hosts.{host}.api would have others answer in the place of what was"
                " trained: leave it out"
            )
    return config, method, task


def system_config(
    name: str, overrides: Sequence[str] = (), table: Mapping[str, Any] | None = None
) -> Resolved:
    """Of the team that a name on the command line means: a run (`RUN`, `RUN@best`, `RUN@40`), the
    team that `table` describes, or copies of one base model, four unless `agents` says otherwise.
    """
    if table is not None:
        return resolve(
            read(None, {**copy.deepcopy(dict(table)), **dict(map(parse_pair, overrides))})
        )
    if found := run_at(name):
        return _run_config(found[0], overrides)
    given = dict(map(parse_pair, overrides))
    count = given.pop("agents", 4)
    if not any(key.startswith("agents.") for key in given):
        if type(count) is not int or count < 1:
            raise UserMistake(f"agents={count!r}: a number of copies, at least 1")
        given["agents"] = {f"a{i}": {"policy": "a0"} for i in range(count)}
    return resolve(
        read(None, {"hosts.home.base": name, **({} if "lr" in given else UNTRAINED), **given})
    )


def table_of(file: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The team that a config file describes, untrained, for `system_config`. Agents that start from
    the same base at the same host are copies of one model, which is not asked once for each.
    """
    hosts = read(file, shared=False).hosts
    here = [
        pair for pair in overrides if not pair.startswith("hosts.") or pair.split(".")[1] in hosts
    ]
    config, _, _ = resolve(_untrained(file, here))
    first: dict[tuple[str, str], str] = {}
    for name, agent in config.agents.items():
        host = config.hosts[agent.host]
        base = agent.base or host.base
        # the policies of a run differ
        if agent.policy is None and (not host.here or is_seed(base) or run_at(base) is None):
            agent.policy = first.setdefault((agent.host, base), name)
    return config.model_dump()


def _untrained(file: str | Path, overrides: Sequence[str]) -> Config:
    """The config of a team that is asked as it is, from a file that may be somebody else's."""
    config = read(file, overrides, shared=True)
    return config if config.lr else read(file, [*overrides, f"lr={UNTRAINED['lr']}"], shared=True)


def system_team(
    name: str,
    overrides: Sequence[str] = (),
    table: Mapping[str, Any] | None = None,
    hosts: Mapping[str, Host] | None = None,
) -> Team:
    """The team of `system_config`; of a run as it was at its last checkpoint, or at the one that is
    named; without a table also that of a config file, or of a folder with `team.toml`.
    """
    if table is None and (run_at(name) is not None or team_file(name) is not None):
        return load(name, overrides=overrides, hosts=hosts)
    return build_team(*system_config(name, overrides, table), learn=False, hosts=hosts)


def outline(config: Config, method: Method, task: Task) -> Team:
    """The same team without its models: who would be asked, before anything is loaded."""
    for base in bases_of(config):
        if run_at(base) is None:
            at_hand(base)
    hosts: Any = {name: SimpleNamespace(name=name) for name in config.hosts}
    return Team(config, method, task, {}, members_of(config, hosts))


def team_of(config: str | Path | None = None, **overrides: Any) -> Team:
    """An untrained team from a config: `team_of(method="ttrl")`."""
    return build_team(
        *resolve(read(config, {k.replace("__", "."): v for k, v in overrides.items()})), learn=False
    )
