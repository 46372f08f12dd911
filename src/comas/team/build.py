"""A resolved config -> hosts and members: a team that can be asked.

Leaves out: training (`training.loop`), which checkpoint a name means (`config.systems`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from comas.config.policies import PolicyPlan, Resolved, policy_of
from comas.config.resolve import split_options
from comas.config.roles import check_seats
from comas.config.schema import MAX_ROWS, TOKENS_PER_PASS, Config
from comas.config.weights import HostWeights, model_below, weights_at
from comas.game.agent import Member
from comas.game.play import Scene, play_all, settle_all
from comas.hosts.api import ApiHost
from comas.hosts.local import LocalHost, make_local_host
from comas.hosts.out_of_memory import in_memory
from comas.sync import run_sync
from comas.types import Episode, Host, Method, Question, Sampling, Task


@dataclass(repr=False)
class Team:
    """Agents ready to be asked; made by `build_team` or `comas.load`."""

    resolved: Resolved
    hosts: Mapping[str, LocalHost | ApiHost]
    members: Sequence[Member]
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """`host/policy` -> the folder or hub name that its weights come from; none of those behind an
    API.
    """
    _played: int = field(default=0, repr=False)

    @property
    def config(self) -> Config:
        """What the team is, as data."""
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
        hosts = self.config.hosts
        away = {
            f"{plan.source.name} at {hosts[plan.host].api}"
            for plan in self.resolved.policies
            if not plan.here
        }
        return sorted(away.union(self.resolved.base_names()))

    def origins(self) -> list[str]:
        """The models at the beginning: through the runs that its policies started from."""
        away = {base for base in self.bases() if " at " in base}
        return sorted(away.union(*(source.origin for source in self.resolved.sources())))

    def close(self) -> None:
        """Give threads and memory back."""
        for host in self.hosts.values():
            host.close()


def api_hosts_of(resolved: Resolved) -> dict[str, ApiHost]:
    """The hosts behind an API that a resolved config describes, not yet opened."""
    found: dict[str, ApiHost] = {}
    for name, host in resolved.config.hosts.items():
        models = {plan.name: plan.source.name for plan in resolved.at(name)}
        if host.api and models:
            found[name] = ApiHost(name, models, host)
    return found


def build_team(
    resolved: Resolved,
    *,
    learn: bool = True,
    weights: Path | None = None,
    apis: Mapping[str, ApiHost] | None = None,
) -> Team:
    """The team that a resolved config describes; with `weights`, policies come from that checkpoint
    instead of bases. Where `max_rows` or `tokens_per_pass` is open, the host takes its own default.

    `apis` are its hosts behind an API where somebody has made them already (`greeting.assemble`):
    they are the team's from here on.
    """
    from comas.engines.hf.engine import use_threads
    from comas.sandbox import jail

    config = resolved.config
    hosts: dict[str, Any] = {}
    sources: dict[str, str] = {}
    away = api_hosts_of(resolved) if apis is None else apis
    try:
        check_seats(config, resolved.method, learn)
        for host in away.values() if learn else ():
            host.open()  # what is wrong with them is told before models are loaded
        use_threads(config.threads)
        jail.choose(config.sandbox)
        for name in config.hosts:
            found = weights_at(resolved.at(name), weights)
            if name in away:
                hosts[name] = away[name]
            elif found.places:
                sources |= {f"{name}/{policy}": place for policy, place in found.places.items()}
                hosts[name] = local_host(resolved, name, found, learn)
    except BaseException:
        for host in {**away, **hosts}.values():
            host.close()
        raise
    return Team(resolved, hosts, members_of(config, hosts), sources)


def local_host(resolved: Resolved, name: str, weights: HostWeights, learn: bool) -> LocalHost:
    """The host of a resolved config whose policies start from `weights`; with `learn` it can."""
    config = resolved.config
    host = config.hosts[name]
    plans = resolved.at(name)
    under = model_below(resolved, name, weights, learn)
    with in_memory(
        name, "loading", "have fewer agents, set {host}.learner=adapters, or take a smaller base"
    ):
        return make_local_host(
            name,
            weights.places,
            method=resolved.method if learn else None,
            recipe=_recipe(config, name, plans) if learn else None,
            device=host.device,
            dtype=host.dtype,
            context=host.context,
            thinking=host.thinking,
            max_rows=host.max_rows or MAX_ROWS,
            compiled=host.compile,
            trust_remote_code=host.trust_remote_code,
            under=under,
            shapes=shapes_of(plans) if under else None,
            seed=config.seed,
        )


def shapes_of(plans: Sequence[PolicyPlan]) -> dict[str, Any]:
    """Policy -> shape of a new adapter, as learners want it."""
    from comas.learners.lora.population import Spec

    shapes = {plan.name: plan.adapter for plan in plans}
    return {policy: Spec(s.rank, s.alpha, s.targets) for policy, s in shapes.items()}


def members_of(config: Config, hosts: Mapping[str, Host]) -> list[Member]:
    """The agents of a config at these hosts."""
    return [
        Member(
            name,
            hosts[a.host],
            policy_of(name, a),
            tuple(a.roles) if a.roles is not None else None,
            Sampling(a.temperature or config.temperature, 1.0, config.max_tokens),
            a.frozen,
        )
        for name, a in config.agents.items()
    ]


def _recipe(config: Config, host: str, plans: Sequence[PolicyPlan]) -> Any:
    from comas.learners.step import Recipe

    assert config.betas is not None, "resolve fills in the recipe"
    assert config.weight_decay is not None
    assert config.grad_norm is not None
    h = config.hosts[host]
    rate = h.lr or config.lr or 0.0
    return Recipe(
        rate,
        config.betas,
        config.weight_decay,
        config.grad_norm,
        h.tokens_per_pass or TOKENS_PER_PASS,
        h.checkpointing,
        rates={plan.name: plan.lr for plan in plans if plan.lr not in (None, rate)},
        old_logprobs=h.old_logprobs,
    )


def outline(resolved: Resolved) -> Team:
    """The same team without its models: who would be asked, before anything is loaded."""
    for plan in resolved.policies:
        if plan.here and plan.source.kind != "run":
            plan.source.weights_of(plan.name)
    hosts: Any = {name: SimpleNamespace(name=name) for name in resolved.config.hosts}
    return Team(resolved, {}, members_of(resolved.config, hosts))
