"""A resolved config -> hosts and members: a team that can be asked.

Hosts behind an API are asked for one token each before anything is loaded. Leaves out: training
(`training.loop`), which checkpoint a name means (`config.systems`), what an ask costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from comas.config.mistakes import nearest
from comas.config.plugins import load_builder
from comas.config.resolve import (
    HostWeights,
    PolicyPlan,
    Resolved,
    check_seats,
    model_below,
    weights_at,
)
from comas.config.schema import Config, checked
from comas.game.agent import Member
from comas.game.memory import at_start
from comas.game.play import Scene, play_all, settle_all
from comas.hosts import api, ray
from comas.hosts.api import ApiHost
from comas.hosts.plan import HostPlan, Lag
from comas.hosts.ray import RayHost
from comas.hosts.table import TOKENS_PER_PASS
from comas.machine import usable_cpus, use_threads
from comas.program import Work
from comas.sync import run_sync
from comas.team import spending
from comas.types import Account, Episode, Host, Method, Question, Sampling, Task, UserMistake

Builder = Callable[[HostPlan[Any]], Host]
"""`build` of the module of a kind of host."""
Note = Callable[[str], None]


@dataclass(repr=False)
class Team:
    """Agents ready to be asked; made by `build_team` or `comas.load`."""

    resolved: Resolved
    hosts: Mapping[str, Host]
    members: Sequence[Member]
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """`host/policy` -> the folder or hub name that its weights come from; none of those behind an
    API.
    """
    _played: int = field(default=0, repr=False)

    @property
    def config(self) -> Config:
        """The team as data."""
        return self.resolved.config

    @property
    def method(self) -> Method:
        """The team's own game."""
        return self.resolved.method

    @property
    def task(self) -> Task:
        """The questions that it is for."""
        return self.resolved.task

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.members)
        return (
            f"Team({names}: {self.config.method} on {self.config.task}, from"
            f" {', '.join(self.bases())})"
        )

    def scene(self, **changes: Any) -> Scene:
        """The scene of the team's own game; `changes` are fields of `Scene`.

        Without `state` among them, the method remembers what it does before the first step.
        """
        config = self.config
        facts = {"seed": config.seed, "options": config.options, "max_tokens": config.room}
        facts |= changes
        scene = Scene(self.method, self.task, self.members, **facts)
        return scene if "state" in changes else at_start(scene)

    def discuss(self, question: str | Question, seed: int | None = None) -> Episode:
        """Let the team discuss one question; the same seed gives the same discussion.

        Its turns are paid as in training, unless the method needs an answer that a text does not
        have.
        """
        has_answer = isinstance(question, Question)
        if isinstance(question, str):
            question = Question(id="asked", prompt=question)
        self._played += 1
        number = self._played if seed is None else seed
        scene = self.scene()
        played = play_all(scene, [question], f"discuss-{number}")
        episodes = run_sync(played)
        if has_answer or not self.method.supervised:
            settle_all(scene, episodes)
        return episodes[0]

    def bases(self) -> list[str]:
        """The models that its policies started from."""
        names = self._elsewhere() | set(self.resolved.base_names())
        return sorted(names)

    def origins(self) -> list[str]:
        """The models at the beginning: through the runs that its policies started from."""
        names = self._elsewhere()
        for source in self.resolved.sources():
            names |= source.origin
        return sorted(names)

    def _elsewhere(self) -> set[str]:
        """Describe what policies without weights here start from."""
        names: set[str] = set()
        for plan in self.resolved.policies:
            api = self.config.hosts[plan.host].api
            if not plan.here:
                names.add(f"host {plan.host}" if api is None else f"{plan.source.name} at {api}")
        return names

    def close(self) -> None:
        """Give threads and memory back; the caller's own hosts stay open."""
        close_hosts(self.config, self.hosts)


async def assemble(
    resolved: Resolved,
    note: Note,
    *,
    accounts: Mapping[str, Account] | None = None,
    work: Work | None = None,
    hosts: Mapping[str, Host] | None = None,
    asks: bool = True,
    learn: bool = True,
    weights: Path | None = None,
) -> Team:
    """The team of `build_team`, whose hosts behind an API have answered first, unless `asks` says
    that they will not be asked.

    `accounts` are what they have cost in earlier processes on the run of `work`; `hosts` are the
    caller's own.
    """
    check_seats(resolved.config, resolved.method, learn)
    apis = api_hosts_of(resolved, work)
    spending.restore(apis, accounts or {})
    if asks or learn:
        await greet(apis, Sampling(resolved.config.temperature) if asks else None, note)
    all_hosts = {**apis, **(hosts or {})}
    return build_team(resolved, learn=learn, weights=weights, hosts=all_hosts)


async def greet(
    apis: Mapping[str, ApiHost],
    sampling: Sampling | None,
    note: Note,
    known: set[tuple[str, ...]] | None = None,
) -> None:
    """Find the keys and check the addresses of all hosts, which needs no request, then greet each;
    where something is wrong all of them are closed.

    Without `sampling` none is greeted. `known` is that of `ApiHost.greet`.
    """
    try:
        for host in apis.values():
            host.open()
        if sampling is not None:
            for host in apis.values():
                await host.greet(sampling, note, known)
    except BaseException:
        for host in apis.values():
            host.close()
        raise


def api_hosts_of(resolved: Resolved, work: Work | None = None) -> dict[str, ApiHost]:
    """The hosts behind an API that a resolved config describes, not yet opened."""
    hosts: dict[str, ApiHost] = {}
    for name, table in resolved.config.hosts.items():
        models = {plan.name: plan.source.name for plan in resolved.at(name)}
        if table.built_by == "api" and models:
            plan = HostPlan[api.Table](name=name, table=table, policies=models, work=work)
            hosts[name] = api.build(plan)
    return hosts


def build_team(
    resolved: Resolved,
    *,
    learn: bool = True,
    weights: Path | None = None,
    hosts: Mapping[str, Host] | None = None,
) -> Team:
    """The team that a resolved config describes; with `weights`, policies come from that checkpoint
    instead of bases. Where `max_rows` or `tokens_per_pass` is open, the host takes its own default.

    `hosts` are those that somebody has made already: they are the team's from here on.
    """
    from comas.sandbox import jail

    config = resolved.config
    built: dict[str, Host] = dict(hosts or {})
    sources: dict[str, str] = {}
    try:
        check_instances(config, built)
        check_seats(config, resolved.method, learn)
        _check_places(resolved, built)
        # what is wrong with hosts elsewhere is told before models are loaded
        for name, table in config.hosts.items():
            if name not in built and not table.here and resolved.at(name):
                built[name] = _build_host(resolved, name, None, learn)
        use_threads(config.threads)
        jail.choose(config.sandbox)
        to_build = [name for name in config.hosts if name not in built and resolved.at(name)]
        host_weights = {name: weights_at(resolved.at(name), weights) for name in to_build}
        elsewhere: list[RayHost] = []
        for name in to_build:
            if config.hosts[name].elsewhere:
                elsewhere.append(ray.build(plan_of(resolved, name, host_weights[name], learn)))
                built[name] = elsewhere[-1]
        # those elsewhere load while those here do
        for name in to_build:
            if name not in built:
                built[name] = _build_host(resolved, name, host_weights[name], learn)
        for host in elsewhere:
            host.ready()
        for name, at_host in host_weights.items():
            sources |= {f"{name}/{policy}": place for policy, place in at_host.places.items()}
        if learn:
            _check_learners(config, built)
    except BaseException:
        close_hosts(config, built)
        raise
    in_order = {name: built[name] for name in config.hosts if name in built}
    members = members_of(resolved, in_order)
    return Team(resolved, in_order, members, sources)


def _check_places(resolved: Resolved, built: Mapping[str, Host]) -> None:
    """Refuse an engine or a kind that cannot run here, before weights are looked for."""
    for name, table in resolved.config.hosts.items():
        if not table.here or name in built or not resolved.at(name):
            continue
        if table.elsewhere:
            ray.check(f"hosts.{name}")
            continue
        module = load_builder("engines", table.engine, f"hosts.{name}.engine")
        if hasattr(module, "check"):
            module.check(f"hosts.{name}")


def _check_learners(config: Config, hosts: Mapping[str, Host]) -> None:
    """Refuse an agent that is to learn at a host that does not."""
    for name, agent in config.agents.items():
        if not agent.frozen and not hosts[agent.host].learns:
            raise UserMistake(
                f"agents.{name} is to learn, and its host {agent.host} does not: set"
                f" agents.{name}.frozen=true"
            )


def _build_host(resolved: Resolved, name: str, weights: HostWeights | None, learn: bool) -> Host:
    """Have the module of its kind build a host; one elsewhere has no `weights` here."""
    table = resolved.config.hosts[name]
    build: Builder = load_builder("hosts", table.built_by, f"hosts.{name}.kind").build
    return build(plan_of(resolved, name, weights, learn))


def plan_of(
    resolved: Resolved, name: str, weights: HostWeights | None, learn: bool
) -> HostPlan[Any]:
    """Gather what a kind of host has to know to build the host `name`."""
    config = resolved.config
    table = config.hosts[name]
    plans = resolved.at(name)
    method = resolved.method if learn else None
    if weights is None:
        models = {plan.name: plan.source.name for plan in plans}
        return HostPlan(name=name, table=table, policies=models, method=method, seed=config.seed)
    under = model_below(resolved, name, weights, learn)
    shapes: dict[str, Any] | None = None
    if under:
        from comas.learners.lora.population import Spec

        adapters = {plan.name: plan.adapter for plan in plans}
        shapes = {policy: Spec(a.rank, a.alpha, a.targets) for policy, a in adapters.items()}
    elsewhere = [host for host in config.hosts.values() if host.elsewhere]
    return HostPlan(
        name=name,
        table=table,
        policies=weights.places,
        method=method,
        recipe=_recipe(config, name, plans) if learn else None,
        engine=load_builder("engines", table.engine, f"hosts.{name}.engine"),
        under=under,
        shapes=shapes,
        lags={plan.name: Lag(plan.behind, plan.lag) for plan in plans if plan.behind},
        seed=config.seed,
        cpus=config.threads or max(1, usable_cpus() // max(1, len(elsewhere))),
        secrets=key_variables(config),
    )


def key_variables(config: Config) -> frozenset[str]:
    """The environment variables that hold keys of hosts behind an API."""
    hosts = config.hosts.values()
    variables = [variable for host in hosts for variable in (host.header_env or {}).values()]
    return frozenset([*variables, *(host.key_env for host in hosts if host.key_env)])


def members_of(resolved: Resolved, hosts: Mapping[str, Host]) -> list[Member]:
    """The agents of a config at these hosts."""
    config = resolved.config
    few = {plan.address for plan in resolved.policies if plan.few_words}
    members: list[Member] = []
    for name, agent in config.agents.items():
        policy = agent.policy_name(name)
        roles = tuple(agent.roles) if agent.roles is not None else None
        sampling = Sampling(agent.temperature or config.temperature, 1.0, config.max_tokens)
        host = hosts[agent.host]
        member = Member(name, host, policy, roles, sampling, agent.frozen, agent.system)
        members.append(replace(member, few_words=member.address in few))
    return members


def _recipe(config: Config, host: str, plans: Sequence[PolicyPlan]) -> Any:
    from comas.learners.recipe import Recipe

    assert config.betas is not None, "resolve fills in the recipe"
    assert config.weight_decay is not None
    assert config.grad_norm is not None
    table = config.hosts[host]
    rate = table.lr or config.lr or 0.0
    own_rates = {plan.name: plan.lr for plan in plans if plan.lr not in (None, rate)}
    seeded = all(plan.source.seeded for plan in plans)
    return Recipe(
        rate,
        config.betas,
        config.weight_decay,
        config.grad_norm,
        table.tokens_per_pass or TOKENS_PER_PASS,
        table.checkpointing or False,
        rates=own_rates,
        # as ever: the embedded recipe gives the same bits on every machine
        share_prompts=not seeded,
        old_logprobs="recomputed" if seeded else "first_pass",
    )


def outline(resolved: Resolved) -> Team:
    """Build the team without its models: who would be asked, before anything is loaded."""
    for plan in resolved.policies:
        if plan.here and plan.source.kind != "run":
            plan.source.weights_of(plan.first)
    return seats(resolved)


def seats(resolved: Resolved) -> Team:
    """Who sits where, at hosts that have a name alone."""
    hosts: Any = {name: SimpleNamespace(name=name) for name in resolved.config.hosts}
    return Team(resolved, {}, members_of(resolved, hosts))


# --- hosts that are instances of the caller's own: `comas.train(hosts={"mine": MyHost()})`


def check_instances(config: Config, hosts: Mapping[str, Host]) -> None:
    """Refuse an instance without a seat, and a seat without its instance."""
    inhabited = {agent.host for agent in config.agents.values()}
    for name, host in hosts.items():
        if name not in inhabited:
            suggestion = nearest(name, inhabited)
            raise UserMistake(f"hosts={{{name!r}: ...}}: no agent is at such a host: {suggestion}")
        if host.name != name:
            raise UserMistake(
                f"hosts={{{name!r}: ...}}: the instance is called {host.name!r}: give it the same"
                " name"
            )
    for name, table in config.hosts.items():
        if table.own and name not in hosts:
            raise UserMistake(
                f"host {name} was an instance of the caller's own, which no file can hold: give it"
                f" again in Python, as hosts={{{name!r}: ...}}"
            )


def seated(config: Config, hosts: Mapping[str, Host]) -> Config:
    """The config with these instances in the place of hosts that it would have built; agents of
    those that do not learn are frozen.
    """
    check_instances(config, {**hosts})
    if not hosts:
        return config
    data = config.model_dump(exclude_unset=True)
    tables = data.setdefault("hosts", {})
    for name in hosts:
        tables[name] = {"own": True}
    for name, agent in config.agents.items():
        if agent.host in hosts and not hosts[agent.host].learns:
            data["agents"][name]["frozen"] = True
    return checked(data)


def close_hosts(config: Config, hosts: Mapping[str, Host]) -> None:
    """Close those that are not the caller's own."""
    for name, host in hosts.items():
        if not config.hosts[name].own:
            host.close()


# --- whose accuracy is measured
# Policies that start from the same weights are the same model until they have learnt: new adapters
# change nothing (one of their two factors is zero), and copies of one base are copies. Seed models
# that are trained whole are measured each by itself, as ever: they answer in seconds, and the
# embedded run is to give the same bits.


def measurable(learning: Sequence[Member]) -> list[Member]:
    """Choose whose accuracy is measured: members who solve, or all where nobody does. What the
    others would answer alone is no part of the game, and costs.
    """
    solving = [member for member in learning if member.solves]
    return solving or list(learning)


def measured_for(
    resolved: Resolved, sources: Mapping[str, str], members: Sequence[Member]
) -> dict[str, str]:
    """Agent -> the agent that is measured in its place before training: often itself.

    `sources` is host/policy -> the folder or name that the policy's weights come from. Agents are
    equal whose policies are at the same host, come from the same source, have as much room for a
    reply and the same persona.
    """
    first: dict[tuple[object, ...], str] = {}
    measured: dict[str, str] = {}
    for member in members:
        host = member.host.name
        source = sources.get(member.address)
        trained_whole = resolved.config.hosts[host].learner == "full"
        whole_seeds = trained_whole and all(plan.source.seeded for plan in resolved.at(host))
        if source is None or whole_seeds:
            key: tuple[object, ...] = (member.name,)
        else:
            key = (host, source, member.sampling.max_tokens, member.system)
        measured[member.name] = first.setdefault(key, member.name)
    return measured
