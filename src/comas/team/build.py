"""A plan -> hosts and members: a team that can be asked, and trained where the plan says so.

Hosts behind an API are asked for one token each before anything is loaded. Leaves out: training
(`training.loop`), which checkpoint a name means (`config.systems`), what an ask costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from comas.config.plan import Plan
from comas.config.plugins import load_plugin
from comas.config.schema import Config, HostConfig
from comas.config.weights import HostWeights, model_below, weights_at
from comas.game.agent import TeamMember
from comas.game.memory import at_start
from comas.game.play import GameContext, play_all, settle_all
from comas.hosts import api, ray
from comas.hosts.api import ApiHost
from comas.hosts.plan import HostPlan
from comas.hosts.ray import RayHost
from comas.machine import use_threads
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

    plan: Plan
    hosts: Mapping[str, Host]
    members: Sequence[TeamMember]
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """`host/policy` -> the folder or hub name that its weights come from; none of those behind an
    API.
    """
    _played: int = field(default=0, repr=False)
    _closed: bool = field(default=False, repr=False)

    @property
    def config(self) -> Config:
        """The team as data."""
        return self.plan.config

    @property
    def method(self) -> Method:
        """The team's own game."""
        return self.plan.method

    @property
    def task(self) -> Task:
        """The questions that it is for."""
        return self.plan.task

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.members)
        return (
            f"Team({names}: {self.config.method} on {self.config.task}, from"
            f" {', '.join(self.bases())})"
        )

    def context(self, **changes: Any) -> GameContext:
        """The context of the team's own game; `changes` are fields of `GameContext`.

        Without `state` among them, the method remembers what it does before the first step.
        """
        config = self.config
        facts = {"seed": config.seed, "options": config.options, "max_tokens": config.room}
        facts |= changes
        context = GameContext(self.method, self.task, self.members, **facts)
        return context if "state" in changes else at_start(context)

    def discuss(self, question: str | Question, seed: int | None = None) -> Episode:
        """Let the team discuss one question; the same seed gives the same discussion.

        Its turns are rewarded as in training, unless the method needs an answer that a text does
        not have. Where a machine failed, or the question does not fit the context, `answer` is None
        and `error` says why.

        Raises UserMistake for what is no question, and for a team that is closed.
        """
        has_answer = isinstance(question, Question)
        if not has_answer and not (isinstance(question, str) and question.strip()):
            raise UserMistake(f"discuss: a text or a Question is wanted, not {question!r}")
        if self._closed:
            raise UserMistake("discuss: the team is closed: load it again")
        if isinstance(question, str):
            question = Question(id="asked", prompt=question)
        self._played += 1
        number = self._played if seed is None else seed
        context = self.context()
        played = play_all(context, [question], f"discuss-{number}")
        episodes = run_sync(played)
        if has_answer or not self.method.supervised:
            settle_all(context, episodes)
        return episodes[0]

    def bases(self) -> list[str]:
        """The models that its policies started from."""
        names = self._elsewhere() | set(self.plan.base_names())
        return sorted(names)

    def origins(self) -> list[str]:
        """The models at the beginning: through the runs that its policies started from."""
        names = self._elsewhere()
        for source in self.plan.sources():
            names |= source.origin
        return sorted(names)

    def _elsewhere(self) -> set[str]:
        """Describe what policies without weights here start from."""
        names: set[str] = set()
        for policy in self.plan.policies:
            api = self.config.hosts[policy.host].api
            if not policy.here:
                host = f"host {policy.host}"
                names.add(host if api is None else f"{policy.source.name} at {api}")
        return names

    def close(self) -> None:
        """Give threads and memory back."""
        self._closed = True
        close_hosts(self.hosts)


async def assemble(
    plan: Plan,
    note: Note,
    *,
    accounts: Mapping[str, Account] | None = None,
    work: Work | None = None,
    asks: bool = True,
    sampling: Sampling | None = None,
) -> Team:
    """The team of `build_team`, whose hosts behind an API have answered first, unless `asks` says
    that they will not be asked.

    `accounts` are what they have cost in earlier processes on the run of `work`; `sampling` is how
    all agents are asked, which is as the config says where it is None.
    """
    apis = api_hosts_of(plan)
    spending.restore(apis, accounts or {}, work=work)
    if asks or plan.learns:
        await greet(apis, team_without_models(plan).members if asks else (), note, sampling)
    return build_team(plan, hosts=apis)


async def greet(
    apis: Mapping[str, ApiHost],
    members: Sequence[TeamMember],
    note: Note,
    sampling: Sampling | None = None,
    known: set[tuple[object, ...]] | None = None,
) -> None:
    """Find the keys and check the addresses of all hosts, which needs no request, then send first
    requests as members of theirs are going to be asked: with `sampling`, or each with its own.
    Where something is wrong all hosts are closed.

    `known` is that of `ApiHost.greet`.
    """
    try:
        for host in apis.values():
            host.open()
        for name, host in apis.items():
            own = [(m.policy, sampling or m.sampling) for m in members if m.host.name == name]
            if own:
                await host.greet(own, note, known)
    except BaseException:
        for host in apis.values():
            host.close()
        raise


def api_hosts_of(plan: Plan) -> dict[str, ApiHost]:
    """The hosts behind an API that a plan describes, not yet opened."""
    return {
        name: api.build(plan.host(name))
        for name, table in plan.config.hosts.items()
        if table.built_by == "api" and plan.at(name)
    }


def build_team(plan: Plan, *, hosts: Mapping[str, Host] | None = None) -> Team:
    """The team that a plan describes. Where `max_rows` or `tokens_per_pass` is open, the host takes
    its own default.

    `hosts` are those that somebody has made already: they are the team's from here on.
    """
    from comas.sandbox import jail

    config = plan.config
    built: dict[str, Host] = dict(hosts or {})
    sources: dict[str, str] = {}
    try:
        check_places(plan)
        # what is wrong with hosts elsewhere is told before models are loaded
        for name, table in config.hosts.items():
            if name not in built and not table.here and plan.at(name):
                built[name] = _build_host(table, plan.host(name))
        use_threads(config.threads)
        jail.choose(config.sandbox)
        to_build = [name for name in config.hosts if name not in built and plan.at(name)]
        host_weights = {name: weights_at(plan.at(name), plan.checkpoint) for name in to_build}
        elsewhere: list[RayHost] = []
        for name in to_build:
            if config.hosts[name].elsewhere:
                elsewhere.append(ray.build(with_weights(plan, name, host_weights[name])))
                built[name] = elsewhere[-1]
        # those elsewhere load while those here do
        for name in to_build:
            if name not in built:
                host_plan = with_weights(plan, name, host_weights[name])
                built[name] = _build_host(config.hosts[name], host_plan)
        for host in elsewhere:
            host.ready()
        for name, at_host in host_weights.items():
            sources |= {f"{name}/{policy}": place for policy, place in at_host.places.items()}
        if plan.learns:
            _check_learners(config, built)
    except BaseException:
        close_hosts(built)
        raise
    in_order = {name: built[name] for name in config.hosts if name in built}
    return Team(plan, in_order, members_of(plan, in_order), sources)


def check_places(plan: Plan) -> None:
    """Refuse an engine or a kind that cannot run here, before weights are looked for."""
    for name, table in plan.config.hosts.items():
        if not table.here or not plan.at(name):
            continue
        if table.elsewhere:
            ray.check(f"hosts.{name}")
            continue
        module = load_plugin("engine", table.engine, f"hosts.{name}.engine")
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


def _build_host(table: HostConfig, plan: HostPlan[Any]) -> Host:
    """Have the module of its kind build a host."""
    build: Builder = load_plugin("host", table.built_by, f"hosts.{plan.name}.kind").build
    host = build(plan)
    if host.name != plan.name:
        raise UserMistake(
            f"hosts.{plan.name}.kind = {table.built_by!r}: build(plan) made a host called"
            f" {host.name!r}: call it plan.name"
        )
    return host


def with_weights(plan: Plan, name: str, weights: HostWeights) -> HostPlan[Any]:
    """The plan of a host with its weights, and the one base below its adapters."""
    under = model_below(plan, name, weights)
    shapes = {policy.name: policy.adapter for policy in plan.at(name)} if under else None
    return replace(plan.host(name), policies=weights.places, under=under, shapes=shapes)


def members_of(plan: Plan, hosts: Mapping[str, Host]) -> list[TeamMember]:
    """The agents of a plan at these hosts."""
    config = plan.config
    few = {policy.address for policy in plan.policies if policy.few_words}
    members: list[TeamMember] = []
    for name, agent in config.agents.items():
        policy = agent.policy_name(name)
        roles = tuple(agent.roles) if agent.roles is not None else None
        sampling = Sampling(agent.temperature or config.temperature, 1.0, config.max_tokens)
        host = hosts[agent.host]
        member = TeamMember(name, host, policy, roles, sampling, agent.frozen, agent.system)
        members.append(replace(member, few_words=member.address in few))
    return members


def outline(plan: Plan) -> Team:
    """Build the team without its models: who would be asked, before anything is loaded."""
    for policy in plan.policies:
        if policy.here and policy.source.kind != "run":
            policy.source.weights_of(policy.first)
    return team_without_models(plan)


def team_without_models(plan: Plan) -> Team:
    """The agents of a plan, at hosts that have a name alone."""
    hosts: Any = {name: SimpleNamespace(name=name) for name in plan.config.hosts}
    return Team(plan, {}, members_of(plan, hosts))


def close_hosts(hosts: Mapping[str, Host]) -> None:
    """Close them, all of which are ours."""
    for host in hosts.values():
        host.close()


# --- whose accuracy is measured
# Policies that start from the same weights are the same model until they have learnt: new adapters
# change nothing (one of their two factors is zero), and copies of one base are copies.


def measurable(learning: Sequence[TeamMember]) -> list[TeamMember]:
    """Choose whose accuracy is measured: members who solve, or all where nobody does. What the
    others would answer alone is no part of the game, and costs.
    """
    solving = [member for member in learning if member.solves]
    return solving or list(learning)


def measured_for(
    plan: Plan, sources: Mapping[str, str], members: Sequence[TeamMember]
) -> dict[str, str]:
    """Agent -> the agent that is measured in its place before training: often itself.

    `sources` is host/policy -> the folder or name that the policy's weights come from. Agents are
    equal whose policies are at the same host, come from the same source, have as many tokens for a
    reply and the same persona.
    """
    first: dict[tuple[object, ...], str] = {}
    measured: dict[str, str] = {}
    for member in members:
        host = member.host.name
        source = sources.get(member.address)
        if source is None:
            key: tuple[object, ...] = (member.name,)
        else:
            key = (host, source, member.sampling.max_tokens, member.system)
        measured[member.name] = first.setdefault(key, member.name)
    return measured
