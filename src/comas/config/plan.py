"""A config -> a `Plan`, once: what a run or an evaluation is, with nothing left open but the bounds
of its memory. From top to bottom: the plan, its layers of defaults, hosts, learning rates.

A key has the value of the first layer that says something of it: the user, the preset (how large a
run is follows from the task's recipe first, where no preset is named), the method, the task's
recipe, the recipe of the tiny models, and what is ours. Leaves out: reading (`config.schema`),
finding plug-ins (`config.plugins`), policies (`config.policies`), what fits into memory
(`comas.memory`), loading and building (`team.build`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from comas.config.mistakes import current_name
from comas.config.plugins import (
    check_plugin_name,
    filled,
    functions_of,
    keywords,
    load_plugin,
    with_current_names,
    with_tools,
)
from comas.config.policies import PolicyPlan, policies_of, sources_of
from comas.config.schema import Config, HostConfig, anchor_files, checked, own_keys_of
from comas.game.play import room_of
from comas.hosts.keys import TOKENS_PER_PASS
from comas.hosts.plan import HostPlan, Lag
from comas.learners.recipe import Recipe
from comas.machine import usable_cpus
from comas.models.sources import Source, at_hand, check_place
from comas.storage import files
from comas.storage.run import Run
from comas.types import Method, Task, UserMistake


@dataclass(frozen=True, eq=False)
class Plan:
    """Plan of a run or an evaluation, and what its names stand for."""

    config: Config
    """Every default written out; bounds of memory as far as they are known (`comas.memory`)."""
    method: Method
    """With its options, credit and loss as the config sets them."""
    task: Task
    """With its tools."""
    policies: tuple[PolicyPlan, ...]
    """In the order of the agents that name them first."""
    learns: bool = True
    """Whether the team is trained; otherwise it is asked alone."""
    checkpoint: Path | None = None
    """Where weights lie; None: where the policies' bases do."""

    @property
    def room(self) -> dict[str, int]:
        """Role -> tokens of a reply, where the task or the config sets them for it."""
        return room_of(self.task, self.config.room)

    def at(self, host: str) -> list[PolicyPlan]:
        """The policies of one host."""
        return [policy for policy in self.policies if policy.host == host]

    def host(self, name: str) -> HostPlan[Any]:
        """Return the plan from which a kind of host builds the host `name`; weights are not found
        yet.
        """
        config = self.config
        table = config.hosts[name]
        policies = self.at(name)
        here = table.here
        elsewhere = sum(other.elsewhere for other in config.hosts.values())
        return HostPlan(
            name=name,
            table=table,
            policies={policy.name: policy.source.name for policy in policies},
            method=self.method if self.learns else None,
            recipe=self._recipe(name) if self.learns and here else None,
            engine=load_plugin("engine", table.engine, f"hosts.{name}.engine") if here else None,
            lags={
                policy.name: Lag(policy.behind, policy.lag) for policy in policies if policy.behind
            },
            seed=config.seed,
            cpus=config.threads or max(1, usable_cpus() // max(1, elsewhere)),
            secrets=key_variables(config),
        )

    def _recipe(self, name: str) -> Recipe:
        """How the policies of a host with weights here are trained."""
        config = self.config
        table = config.hosts[name]
        policies = self.at(name)
        rate = table.lr or config.lr or 0.0
        rates = {policy.name: policy.lr for policy in policies if policy.lr not in (None, rate)}
        tiny = all(policy.source.tiny for policy in policies)
        return Recipe(
            rate,
            config.betas or Recipe.betas,
            Recipe.weight_decay if config.weight_decay is None else config.weight_decay,
            config.grad_norm or Recipe.grad_norm,
            table.tokens_per_pass or TOKENS_PER_PASS,
            table.checkpointing or False,
            rates=rates,
            **tiny_recipe()["learning"] if tiny else LEARNING,
        )

    def sources(self) -> list[Source]:
        """List what the policies with weights here start from, each once, sorted by name."""
        by_name = {policy.source.name: policy.source for policy in self.policies if policy.here}
        return [by_name[name] for name in sorted(by_name)]

    def base_names(self) -> list[str]:
        """List the names of `sources`."""
        return [source.name for source in self.sources()]

    def checkpoints(self) -> Iterator[tuple[Run, int]]:
        """List the checkpoints of runs among `sources`."""
        for source in self.sources():
            if source.kind == "run" and source.step is not None:
                yield source.run(), source.step


OURS = {
    "questions": 128,
    "test_questions": 128,
    "monitors": ["probes", "rejections", "unreadable", "late_fall"],
    "betas": Recipe.betas,
    "weight_decay": Recipe.weight_decay,
    "grad_norm": Recipe.grad_norm,
}
"""Values of a run of which nobody says anything else. Pretrained bases answer questions in hours
that tiny models answer in a minute: so few of them are held out by default.
"""
LEARNING: dict[str, Any] = {"share_prompts": True, "old_logprobs": "first_pass"}
"""How policies learn whose bases are not tiny models: settings of a `Recipe` that have no key."""
OPTIMIZER = ("betas", "weight_decay", "grad_norm")
"""Keys of a task's recipe that are for what learns; the others but `lr` say how large a run is."""
ADAPTER_RATE = 10
"""So many times the learning rate of the whole model is what adapters on pretrained bases take: a
rule of thumb, not measured here.
"""


def plan(config: Config, *, learn: bool = True, checkpoint: Path | None = None) -> Plan:
    """Decide what a config means: method, task, policies, and a value for every key; UserMistake
    for what cannot be.

    Without `learn` the team is asked, not trained; policies come from `checkpoint` where one is
    given.
    """
    method = load_plugin("method", config.method)
    config = with_own_team(method, config)
    task = with_tools(load_plugin("task", config.task), config.tools, config.tool_options)
    for part in method.needs:
        if not getattr(task, part):
            raise UserMistake(
                f"method {config.method} needs a task with `{part}`, and task {config.task} has"
                " none: take another task, or give the task's file one (docs/extending.md)"
            )
    sources = sources_of(config)
    policies = policies_of(config, sources)
    layers = layers_of(config, method, task, policies)
    settings = laid_over(layers)
    settings["options"] = filled("options", settings["options"], *functions_of(method))
    settings["credit"] = filled("credit", settings["credit"], method.credit)
    settings["loss"] = filled("loss", settings["loss"], method.loss)
    settings["task_options"] = filled("task_options", settings["task_options"], task.load)
    for name, host in config.hosts.items():
        settings["hosts"][name] = host_settings(name, host, policies)
    settings |= rates_of(settings, policies, task)
    _name_from_anywhere(settings, config, sources)
    config = checked(settings)
    return Plan(config, _with_settings(method, config), task, policies, learn, checkpoint)


def _name_from_anywhere(
    settings: dict[str, Any], config: Config, sources: Mapping[str, Source]
) -> None:
    """Write files and bases so that they are found when a run goes on from another folder."""
    anchor_files(settings, Path.cwd())
    here = {name for name, host in config.hosts.items() if host.here}
    tables = [settings["hosts"][name] for name in here]
    tables += [agent for agent in settings["agents"].values() if agent["host"] in here]
    for table in tables:
        if table["base"] is not None:
            table["base"] = sources[table["base"]].name


def _with_settings(method: Method, config: Config) -> Method:
    """The method as a config sets it."""
    # a credit that is held by the policy at the start of the run has to have it
    starts = config.credit.get("reference") == "start" and not method.reference
    return replace(
        method,
        reference=method.rewarded if starts else method.reference,
        credit=partial(method.credit, **config.credit),
        loss=partial(method.loss, **config.loss),
        kl=config.kl or {},
        epochs=config.epochs or method.epochs,
        minibatches=config.minibatches or method.minibatches,
    )


# --- layers of defaults


def laid_over(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge layers of settings, the first before all others; tables key by key."""
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        for key, value in layer.items():
            below = merged.get(key)
            if isinstance(value, Mapping) and isinstance(below, Mapping) and key not in WHOLE:
                merged[key] = {**below, **value}
            else:
                merged[key] = value
    return merged


WHOLE = ("kl", "hosts", "agents")
"""Tables of which a layer has all or nothing."""


def layers_of(
    config: Config, method: Method, task: Task, policies: Sequence[PolicyPlan]
) -> list[Mapping[str, Any]]:
    """Everything that says something of a key, the first before all others."""
    values = config.model_dump()
    written = {key: values[key] for key in config.model_fields_set & values.keys()}
    written = {key: value for key, value in written.items() if value is not None}
    functions = functions_of(method)
    written["options"] = with_current_names(written.get("options", {}), functions)
    del values["options"]  # `written` has all of them, by the names of now
    tiny = all(policy.source.tiny for policy in policies)
    preset: dict[str, Any] = {}
    if config.preset or method.presets:
        all_here = all(policy.here for policy in policies)
        name = preset_of(config, method, pretrained=all_here and not tiny)
        preset = {**preset_keys(method, name, config.task), "preset": name}
        preset["options"] = with_current_names(preset.get("options", {}), functions)
        written.pop("preset", None)
    if config.kl:  # an empty table is no KL at all
        written["kl"] = {**preset.get("kl", method.kl), **config.kl}
    of_method = {key: getattr(method, key) for key in ("kl", "epochs", "minibatches", "samples")}
    recipe = {key: value for key, value in task.recipe.items() if key != "lr"}
    optimizer = {key: recipe.pop(key) for key in OPTIMIZER if key in recipe}
    size = {} if tiny else recipe
    learns_foreign = any(p.learns and p.here and not p.source.tiny for p in policies)
    # how large a run is: a preset that is named comes before the recipe, the method's first after
    sized = [preset, size] if config.preset else [size, preset]
    layers: list[Mapping[str, Any]] = [written, *sized, of_method]
    if learns_foreign:
        layers.append(optimizer)
    if tiny:
        layers.append(tiny_recipe()["run"])
        # where every role has a limit of its own, max_tokens says nothing: it is as elsewhere
        if not set(method.rewarded) - {*task.max_tokens, *config.room}:
            layers.insert(-1, {"max_tokens": values["max_tokens"]})
    return [*layers, OURS, values]


def with_own_team(method: Method, config: Config) -> Config:
    """The config with the method's own task, team and base, where it names none."""
    if method.task is None and method.base is None and not method.team:
        return config
    data = config.model_dump(exclude_unset=True)
    if method.task is not None and "task" not in config.model_fields_set:
        data["task"] = method.task
    if method.task is not None and data["task"] == method.task:
        data["task_options"] = {**method.task_options, **config.task_options}
    bases = [table.base for table in config.hosts.values() if "base" in table.model_fields_set]
    based = any(base != method.base for base in bases)
    if method.base is not None and not based:
        hosts: dict[str, dict[str, Any]] = data.get("hosts", {"home": {}})
        here = [name for name in hosts if config.hosts[name].here]
        data["hosts"] = hosts | {name: {"base": method.base, **hosts[name]} for name in here}
    if method.team and config.dealt:
        # where a base is named, an agent's own is that of the host, and its learning rate, which
        # was found on the method's base, is the config's
        data["agents"] = {
            name: {k: v for k, v in keys.items() if k not in ("base", "lr") or not based}
            for name, keys in method.team.items()
        }
    return checked(data)


def preset_of(config: Config, method: Method, pretrained: bool) -> str:
    """Name the preset of a config: its own, or the one that the method has for such bases."""
    if config.preset:
        name = current_name("preset", config.preset, method.presets)
        if name not in method.presets:
            names = ", ".join(method.presets) or "none"
            raise UserMistake(f"preset {config.preset!r}: method {config.method} has {names}")
        _check_preset(name, config.method, method)
        return name
    # a method that replaces presets or functions of another one may have kept the name alone
    own = method.pretrained if pretrained else None
    if own is not None and own in method.presets and _not_taken(own, method) is None:
        return own
    first = next(iter(method.presets))
    _check_preset(first, config.method, method)
    return first


def preset_keys(method: Method, name: str, task: str) -> Mapping[str, Any]:
    """The keys of a preset; options of the method's own task are for that one."""
    preset = method.presets[name]
    if method.task in (None, task):
        return preset
    return {key: value for key, value in preset.items() if key != "task_options"}


def _check_preset(name: str, method_name: str, method: Method) -> None:
    """Refuse a preset that sets what the method's functions do not take: a method that replaces
    functions of another one keeps its presets.
    """
    if (key := _not_taken(name, method)) is not None:
        raise UserMistake(
            f"preset {name!r} of method {method_name} sets {key}, which the method"
            " does not take: leave it out of its presets, or replace(..., presets={})"
        )


def _not_taken(preset: str, method: Method) -> str | None:
    """The first key of a preset that none of the method's functions takes, such as `loss.clip`."""
    takers = {"options": functions_of(method), "credit": [method.credit], "loss": [method.loss]}
    for table, functions in takers.items():
        accepted = {key for function in functions for key in keywords(function)}
        for key in method.presets[preset].get(table, {}):
            if current_name("option", key, accepted) not in accepted:
                return f"{table}.{key}"
    return None


@cache
def tiny_recipe() -> dict[str, Any]:
    """Read the recipe of the tiny models: `run`, `host` and `learning` are layers of settings,
    `lr` has the rates of whole models and of adapters.
    """
    return files.read_toml(Path(__file__).parents[1] / "models" / "tiny" / "recipe.toml")


# --- hosts


def key_variables(config: Config) -> frozenset[str]:
    """The environment variables that hold keys of hosts behind an API."""
    hosts = config.hosts.values()
    variables = [variable for host in hosts for variable in (host.header_env or {}).values()]
    return frozenset([*variables, *(host.key_env for host in hosts if host.key_env)])


def host_settings(name: str, host: HostConfig, policies: Sequence[PolicyPlan]) -> dict[str, Any]:
    """`[hosts.<name>]` with its learner; where tiny models are, with the bounds of its memory."""
    if "engine" not in own_keys_of(host):
        check_plugin_name("engine", host.engine, f"hosts.{name}.engine")
    sources = [policy.source for policy in policies if policy.host == name]
    table = host.model_dump()
    if not host.here:
        return {**table, "learner": None}
    # whole models are taught to be trained whole, and runs that did so give whole models; any other
    # base gets adapters
    adapters = any(source.kind == "adapter" for source in sources)
    whole = any(source.whole for source in sources) and not adapters
    layers = [host.model_dump(exclude_none=True), {"learner": "full" if whole else "adapters"}]
    if all(source.tiny for source in sources):
        layers.append(tiny_recipe()["host"])
        if sys.platform == "darwin" and host.device == "auto":
            layers.insert(0, {"device": "cpu"})  # nobody has run them on an Apple GPU
    return laid_over([*layers, table])


# --- learning rates


def rates_of(
    settings: Mapping[str, Any], policies: Sequence[PolicyPlan], task: Task
) -> dict[str, Any]:
    """`lr` from recipes that were made for these bases, for all hosts or for each in its table; an
    error where there is none.
    """
    rates: dict[str, float] = {}
    for name, host in settings["hosts"].items():
        trained = [p.source for p in policies if p.host == name and p.learns and p.here]
        if trained and host["lr"] is None and settings["lr"] is None:
            rates[name] = _rate(name, host["learner"], trained, task)
    if len(set(rates.values())) == 1:
        return {"lr": next(iter(rates.values()))}
    for name, rate in rates.items():
        settings["hosts"][name]["lr"] = rate
    return {}


def _rate(name: str, learner: str, sources: Sequence[Source], task: Task) -> float:
    """The learning rate of a host whose policies start from these."""
    foreign = sorted({base for source in sources if not source.tiny for base in source.origin})
    if not foreign:
        return float(tiny_recipe()["lr"][learner])
    rate: float | None = task.recipe.get("lr")
    if rate is None:
        check_place(foreign[0])
        if not Path(foreign[0]).exists():
            at_hand(foreign[0])  # a name that no model has wants another name, not a rate
        raise UserMistake(
            f"base {foreign[0]!r} has no recipe for task {task.name}: set lr, or hosts.{name}.lr"
            " (adapters: 1e-4 was measured at half a billion parameters; whole models: about 1e-6)"
        )
    # 1e-05, not 9.999999999999999e-06
    return float(f"{rate * ADAPTER_RATE:.12g}") if learner == "adapters" else rate
