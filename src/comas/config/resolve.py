"""A config with nothing left open: `Resolved`, which everybody else reads. From top to bottom: what
is resolved, defaults written out, policies, where weights lie, and whether it can be trained.

What a base name means is asked in `models.sources` and here only, and so is which policy an agent
has. Leaves out: reading (`config.schema`), finding plug-ins (`config.plugins`), what a machine has
room for (`estimate`), loading and building (`team.build`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from comas.config.mistakes import FORMER_MONITORS, nearest
from comas.config.plugins import (
    check_builder_name,
    check_trackers,
    filled,
    functions_of,
    keywords,
    load_plugin,
    plugin_names,
    with_tools,
)
from comas.config.schema import ONLY_ADAPTERS, Config, anchor_files, checked
from comas.hosts.table import MAX_ROWS, TOKENS_PER_PASS
from comas.models import gguf
from comas.models.sources import (
    Source,
    adapters_among,
    at_hand,
    beneath,
    is_place,
    knows_few_words,
    place_of_model,
    recorded_base,
    source_of,
)
from comas.storage.run import Run
from comas.types import Method, Task, UserMistake

RANK = 16
"""Default rank of new adapters."""


@dataclass(frozen=True)
class Shape:
    """Rank, scale and layers of a new adapter."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | None
    """None is every linear layer but the head."""


@dataclass(frozen=True)
class PolicyPlan:
    """Where a policy starts and how it learns."""

    name: str
    host: str
    source: Source
    adapter: Shape
    """Used where it gets a new adapter; an adapter that is its base keeps its own shape."""
    lr: float | None
    """Its own learning rate; None is that of its host."""
    learns: bool
    """Whether an agent that speaks with it is trained; never behind an API."""
    agents: tuple[str, ...]
    behind: str | None = None
    """The policy of which this is an earlier self."""
    lag: int = 0
    """Its weights are those of the last multiple of so many steps."""

    @property
    def first(self) -> str:
        """The policy whose weights it starts with."""
        return self.name if self.behind is None else self.behind

    @property
    def address(self) -> str:
        """`host/policy`."""
        return f"{self.host}/{self.name}"

    @property
    def here(self) -> bool:
        """Whether its weights are ours; behind an API, and at a host of the caller's own, they are
        somebody else's.
        """
        return self.source.kind != "api"

    @property
    def few_words(self) -> bool:
        """Whether it knows the words of its task only."""
        return knows_few_words(self.source)


@dataclass(frozen=True, eq=False)
class Resolved:
    """A config with nothing left open, and what its names stand for."""

    config: Config
    method: Method
    task: Task
    policies: tuple[PolicyPlan, ...]
    """In the order of the agents that name them first."""

    def at(self, host: str) -> list[PolicyPlan]:
        """The policies of one host."""
        return [plan for plan in self.policies if plan.host == host]

    def with_config(self, config: Config) -> Resolved:
        """Replace settings that change nothing about the policies."""
        return replace(self, config=config)

    def sources(self) -> list[Source]:
        """List what the policies with weights here start from, each once, sorted by name."""
        by_name = {plan.source.name: plan.source for plan in self.policies if plan.here}
        return [by_name[name] for name in sorted(by_name)]

    def base_names(self) -> list[str]:
        """List the names of `sources`."""
        return [source.name for source in self.sources()]

    def checkpoints(self) -> Iterator[tuple[Run, int]]:
        """List the checkpoints of runs among `sources`."""
        for source in self.sources():
            if source.kind == "run" and source.step is not None:
                yield source.run(), source.step


# --- defaults written out


SEED_LR = 5e-4
SEED_RECIPE = {"betas": (0.9, 0.95), "weight_decay": 0.0, "grad_norm": 1.0}
"""The embedded recipe: for the shipped seed models only."""


SEED_ADAPTER_LR = 3e-3
"""For adapters on the seed models: found there, where 5e-3 was too much (docs/method.md)."""
ADAPTER_RATE = 10
"""So many times the learning rate of the whole model is what adapters on other bases take: a rule
of thumb, not measured here.
"""


SEED_TEST_QUESTIONS = 512
TEST_QUESTIONS = 128
"""Held-out questions by default: seed models answer thousands per minute, others take hours for
them (docs/config.md).
"""


MONITORS = ("probes", "rejections", "unreadable", "late_fall")
"""Default monitors of a run (`monitors`)."""


def resolve(config: Config) -> Resolved:
    """The config with preset, recipe and every default written out, and what it names: method,
    task, policies. What a base means is decided here, once.
    """
    method = load_plugin("method", config.method)
    config = _with_defaults_of(method, config)
    task = with_tools(load_plugin("task", config.task), config.tools, config.tool_options)
    for part in method.needs:
        if not getattr(task, part):
            raise UserMistake(
                f"method {config.method} needs a task with `{part}`, and task {config.task} has"
                " none: take another task, or give the task's file one (docs/extending.md)"
            )
    sources = sources_of(config)
    plans = policies_of(config, sources)
    seeded = all(plan.source.seeded for plan in plans)
    data = config.model_dump()
    if config.preset or method.presets:
        all_here = all(plan.here for plan in plans)
        data["preset"] = _preset_of(config, method, pretrained=all_here and not seeded)
        _apply_preset(data, config, method)
    if not seeded:  # how large a run is with other bases than seed models
        named: list[str] = list(method.presets[config.preset]) if config.preset else []
        settled: set[str] = {*OPTIMIZER, *config.model_fields_set, *named}
        data.update((key, value) for key, value in task.recipe.items() if key not in settled)
    for key in ("kl", "epochs", "minibatches", "samples"):
        if data[key] is None:
            data[key] = getattr(method, key)
    data["kl"] = dict(data["kl"])
    data["questions"] = data["questions"] or 128
    data["options"] = filled("options", data["options"], *functions_of(method))
    data["credit"] = filled("credit", data["credit"], method.credit)
    data["loss"] = filled("loss", data["loss"], method.loss)
    data["task_options"] = filled("task_options", data["task_options"], task.load)
    for name, table in data["hosts"].items():
        sources_here = [plan.source for plan in plans if plan.host == name]
        _fill_host(name, table, sources_here, config.hosts[name].here)
    if data["test_questions"] is None:
        data["test_questions"] = SEED_TEST_QUESTIONS if seeded else TEST_QUESTIONS
    _recipe(data, plans, task)
    open_roles = set(method.rewarded) - {*task.max_tokens, *config.room}
    if (
        open_roles
        and "max_tokens" not in config.model_fields_set
        and all(plan.source.kind in ("api", "seed") for plan in plans)
    ):
        data["max_tokens"] = 256  # half of their context: prompt and reply share it
    if data["monitors"] is None:
        data["monitors"] = [*MONITORS]
    for name in data["monitors"]:
        if name not in FORMER_MONITORS:
            check_builder_name("monitors", name, "monitors")
    # what is found by its place is found as well when a run goes on from another folder
    anchor_files(data, Path.cwd())
    here = {name for name, host in config.hosts.items() if host.here}
    tables = [data["hosts"][name] for name in here]
    tables += [agent for agent in data["agents"].values() if agent["host"] in here]
    for table in tables:
        if table["base"] is not None:
            table["base"] = sources[table["base"]].name
    # a credit that is held by the policy at the start of the run has to have it
    starts = data["credit"].get("reference") == "start" and not method.reference
    method = replace(
        method,
        reference=method.rewarded if starts else method.reference,
        credit=partial(method.credit, **data["credit"]),
        loss=partial(method.loss, **data["loss"]),
        kl=data["kl"],
        epochs=data["epochs"],
        minibatches=data["minibatches"],
    )
    return Resolved(checked(data), method, task, plans)


def _with_defaults_of(method: Method, config: Config) -> Config:
    """The config with the method's own task, team and base, where it names none."""
    if method.task is None and method.base is None and not method.team:
        return config
    data = config.model_dump(exclude_unset=True)
    if method.task is not None and "task" not in config.model_fields_set:
        data["task"] = method.task
        data["task_options"] = {**method.task_options, **config.task_options}
    based = any("base" in table.model_fields_set for table in config.hosts.values())
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


def _preset_of(config: Config, method: Method, pretrained: bool) -> str:
    """Name the preset of a config: its own, or the one that the method has for such bases."""
    if config.preset:
        if config.preset not in method.presets:
            known = ", ".join(method.presets) or "none"
            raise UserMistake(f"preset {config.preset!r}: method {config.method} has {known}")
        _check_preset(config.preset, config.method, method)
        return config.preset
    # a method that replaces presets or functions of another one may have kept the name alone
    own = method.pretrained if pretrained else None
    if own is not None and own in method.presets and _not_taken(own, method) is None:
        return own
    first = next(iter(method.presets))
    _check_preset(first, config.method, method)
    return first


def _apply_preset(data: dict[str, Any], config: Config, method: Method) -> None:
    """Write the keys of the preset that `data` names, where the config does not set them itself."""
    for key, value in method.presets[data["preset"]].items():
        if key == "task_options" and method.task not in (None, config.task):
            continue  # those of the method's own task
        if isinstance(value, Mapping) and key != "kl":
            data[key] = {**value, **data[key]}
        elif key not in config.model_fields_set or data[key] is None:
            data[key] = value


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
        known = {key for function in functions for key in keywords(function)}
        for key in method.presets[preset].get(table, {}):
            if key not in known:
                return f"{table}.{key}"
    return None


OPTIMIZER = ("lr", *SEED_RECIPE)
"""Keys of a task's recipe that are for what learns; the others say how large a run is."""


def _fill_host(name: str, table: dict[str, Any], sources: Sequence[Source], here: bool) -> None:
    """Write out the learner of a host, and the bounds of its memory where seed models need none."""
    check_builder_name("engines", table["engine"], f"hosts.{name}.engine")
    if not here:
        table["learner"] = None
    elif table["learner"] is None:
        # seed models were taught to be trained whole, and runs that did so give whole models; any
        # other base gets adapters
        adapters = any(source.kind == "adapter" for source in sources)
        any_whole = any(source.whole for source in sources)
        table["learner"] = "full" if any_whole and not adapters else "adapters"
    # as ever: the embedded recipe gives the same bits on every machine
    seeded = not here or all(source.seeded for source in sources)
    if seeded:
        table["checkpointing"] = table["checkpointing"] or False
        table["tokens_per_pass"] = table["tokens_per_pass"] or TOKENS_PER_PASS
        table["max_rows"] = table["max_rows"] or MAX_ROWS


def _recipe(data: dict[str, Any], plans: Sequence[PolicyPlan], task: Task) -> None:
    """Learning rates and optimizer settings from recipes that were made for these bases, or an
    error.
    """
    rates: dict[str, Any] = {}
    recipe = dict(SEED_RECIPE)
    for name, host in data["hosts"].items():
        trained = [plan for plan in plans if plan.host == name and plan.learns and plan.here]
        unseeded = [plan.source for plan in trained if not plan.source.seeded]
        foreign = sorted(base for source in unseeded for base in source.origin)
        if foreign:
            recipe |= {k: v for k, v in task.recipe.items() if k in recipe}
        if trained and host["lr"] is None and data["lr"] is None:
            adapters = host["learner"] == "adapters"
            rates[name] = _rate(name, adapters, foreign, task)
    if len(set(rates.values())) == 1:
        data["lr"] = next(iter(rates.values()))
    for name, rate in rates.items():
        data["hosts"][name]["lr"] = None if data["lr"] else rate
    for key, value in recipe.items():
        if data[key] is None:
            data[key] = value


def _rate(name: str, adapters: bool, foreign: Sequence[str], task: Task) -> float:
    """The learning rate of a host's policies; `foreign` are their bases that are not shipped."""
    if not foreign:
        return SEED_ADAPTER_LR if adapters else SEED_LR
    rate: float | None = task.recipe.get("lr")
    if rate is None:
        check_place(foreign[0])
        if not Path(foreign[0]).exists():
            at_hand(foreign[0])  # a name that no model has wants another name, not a rate
        raise UserMistake(
            f"base {foreign[0]!r} has no recipe for task {task.name}: set lr, or hosts.{name}.lr"
            " (a few billion parameters: about 1e-5 for adapters, 1e-6 for whole models)"
        )
    # 1e-05, not 9.999999999999999e-06
    return float(f"{rate * ADAPTER_RATE:.12g}") if adapters else rate


# --- policies


def sources_of(config: Config) -> dict[str, Source]:
    """Decide what each base of a config means: name as written -> source; bases behind an API, and
    of a host of the caller's own, are left out.
    """
    here = {name for name, host in config.hosts.items() if host.here}
    bases = [config.hosts[name].base for name in here]
    bases += [a.base for a in config.agents.values() if a.base is not None and a.host in here]
    return {base: source_of(base) for base in bases}


def policies_of(
    config: Config, sources: Mapping[str, Source] | None = None
) -> tuple[PolicyPlan, ...]:
    """The policies of a config, in the order of the agents that name them first; `sources` are
    those of `sources_of`.

    What one agent of a policy says of it holds for all of them; `Config` has checked that they
    agree.
    """
    sources = sources_of(config) if sources is None else sources
    speakers: dict[str, list[str]] = {}
    for name, agent in config.agents.items():
        speakers.setdefault(agent.policy_name(name), []).append(name)
    plans: dict[str, PolicyPlan] = {}
    for policy, names in speakers.items():
        agents = [config.agents[name] for name in names]
        host = config.hosts[agents[0].host]
        own_keys = {
            key: next((v for a in agents if (v := getattr(a, key)) is not None), None)
            for key in ("base", "lr", *ONLY_ADAPTERS)
        }
        base = own_keys["base"] or host.base
        rank = own_keys["rank"] or host.rank or RANK
        targets = own_keys["targets"] or host.targets
        plans[policy] = PolicyPlan(
            name=policy,
            host=agents[0].host,
            source=sources[base] if host.here else source_of(base, api=True),
            adapter=Shape(
                rank,
                2.0 * rank,
                tuple(targets) if targets else None,
            ),
            lr=own_keys["lr"],
            learns=host.api is None and not all(agent.frozen for agent in agents),
            agents=tuple(names),
        )
    for name, agent in config.agents.items():
        if agent.lag is not None and agent.policy is not None:
            # an earlier self has all that its policy has
            plans[name] = replace(
                plans[agent.policy],
                name=name,
                agents=plans[name].agents,
                learns=False,
                behind=agent.policy,
                lag=agent.lag,
            )
    return tuple(plans.values())


def with_copies(resolved: Resolved) -> Config:
    """The config in which agents that start from the same base at the same host share a policy;
    the policies of a run differ, and one that earlier selves lag behind stays by itself.
    """
    agents = dict(resolved.config.agents)
    followed = {agent.policy for agent in agents.values() if agent.lag is not None}
    first: dict[tuple[str, str], str] = {}
    for plan in resolved.policies:
        unshared = [name for name in plan.agents if agents[name].policy is None]
        if plan.source.kind == "run" or not unshared:
            continue
        if plan.name in followed:
            policy = plan.name
        else:
            policy = first.setdefault((plan.host, plan.source.name), unshared[0])
        # what of a policy is trained, and how fast, is the same for all who speak with it
        learner = agents[policy].model_dump(include={"lr", *ONLY_ADAPTERS})
        copied = {**learner, "policy": policy}
        agents |= {name: agents[name].model_copy(update=copied) for name in unshared}
    return resolved.config.model_copy(update={"agents": agents})


# --- where weights lie


@dataclass(frozen=True)
class HostWeights:
    """Weights that a host loads."""

    places: Mapping[str, str]
    """Policy -> folder, GGUF file or hub name."""
    adapters: frozenset[str]
    """Policies that are adapters already."""

    def adapting(self, learner: str | None) -> bool:
        """Whether its policies are adapters on one model, or become such."""
        return bool(self.adapters) or learner == "adapters"

    def models(self) -> list[str]:
        """Find the whole model of each policy; of an adapter the model below it."""
        return [beneath(place) for place in self.places.values()]


def weights_at(
    plans: Iterable[PolicyPlan], checkpoint: Path | None = None, ask_hub: bool = True
) -> HostWeights:
    """Find the weights of policies, in `checkpoint` where one is given; behind an API there are
    none.
    """
    places: dict[str, str] = {}
    for plan in plans:
        if not plan.here:
            continue
        if checkpoint is not None:
            places[plan.name] = str(checkpoint / plan.name)
        else:
            places[plan.name] = plan.source.weights_of(plan.first, ask_hub)
    return HostWeights(places, frozenset(adapters_among(places)))


def model_below(resolved: Resolved, name: str, weights: HostWeights, learn: bool) -> str | None:
    """The one model below all adapters of a host; None where each policy has a model of its own."""
    learner = resolved.config.hosts[name].learner
    if weights.adapters and learn and learner == "full":
        first = min(weights.places[policy] for policy in weights.adapters)
        raise UserMistake(
            f"base {first!r} is an adapter: set hosts.{name}.learner=adapters, or give a whole"
            " model"
        )
    if not weights.adapting(learner if learn else None):
        return None
    places: dict[str, str] = {}
    for plan in resolved.at(name):
        model = weights.places[plan.name]
        if plan.name in weights.adapters:
            for agent in plan.agents:
                _agree(resolved.config, agent, model)
            model = at_hand(recorded_base(model))
        model = place_of_model(model)
        if plan.name not in weights.adapters:
            check_place(model)
        elif is_place(model) and not Path(model).exists():
            raise UserMistake(
                f"base {plan.source.name!r} is an adapter for {model!r}, and there is no such"
                " folder: name where that lies as base_model_name_or_path in its"
                " adapter_config.json"
            )
        places[str(Path(model).resolve()) if Path(model).is_dir() else model] = plan.agents[-1]
    if len(places) > 1:
        (one, first), (other, second), *_ = places.items()
        or_whole = "" if weights.adapters else f", or set hosts.{name}.learner=full"
        raise UserMistake(
            f"agents {first} and {second} of host {name} start from {one!r} and {other!r}: adapters"
            f" share one base; give them hosts of their own{or_whole}"
        )
    return next(iter(places))


def check_place(base: str) -> None:
    """Raise UserMistake for a base that can only be a file or folder, where nothing is there."""
    if is_place(base) and not Path(base).exists():
        raise UserMistake(f"base {base!r}: no such folder")


def _agree(config: Config, name: str, folder: str) -> None:
    """Refuse a rank or targets of an agent, or of its host, that are not those of the
    adapter in this folder, which stays what it is.
    """
    from comas.learners.lora.peft_folder import spec_of

    agent = config.agents[name]
    shared = config.hosts[agent.host]
    adapter = spec_of(folder)
    for key in ONLY_ADAPTERS:
        where = f"agents.{name}"
        wanted = getattr(agent, key)
        # a host's shape is for new adapters, unless the adapter is the host's own base
        if wanted is None and agent.base is None:
            where = f"hosts.{agent.host}"
            wanted = getattr(shared, key)
        actual: Any = getattr(adapter, key)
        if key == "targets" and wanted is not None:
            wanted = sorted({layer.rpartition(".")[2] for layer in wanted})
            actual = sorted({layer.rpartition(".")[2] for layer in actual})
        if wanted not in (None, actual):
            raise UserMistake(
                f"{where}.{key} is {wanted}, but the adapter in {folder} has {actual}: leave"
                f" {where}.{key} out"
            )


# --- whether it can be trained, as far as that is known before a model is loaded


def check_training(resolved: Resolved) -> None:
    """Raise UserMistake for what training refuses, in a dry run and in a study too."""
    config = resolved.config
    method = resolved.method
    task = resolved.task
    for source in resolved.sources():
        check_place(source.where)
    for role in config.kl or {}:
        if method.rewarded and role not in method.rewarded:
            raise UserMistake(
                f"kl.{role}: method {config.method} never trains on that role:"
                f" {nearest(role, method.rewarded)}{_own_paid(config)}"
            )
    check_roles(config, [method], task)
    check_seats(config, method, learn=True)
    for name in config.monitors or ():
        check_builder_name("monitors", name, "monitors")
    check_trackers(config.track)
    is_own = config.method.endswith(".py")
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


def check_room(resolved: Resolved, asked: Iterable[str], note: Callable[[str], None]) -> None:
    """Raise UserMistake where the room of a reply leaves none for its prompt, as far as known
    before a model is loaded; a note where `max_tokens` is set and reaches none of the roles that
    are `asked`, since each has room of its own.
    """
    config = resolved.config
    room = {**resolved.task.max_tokens, **config.room}
    roles = dict.fromkeys((*resolved.method.rewarded, *asked))
    default = type(config).model_fields["max_tokens"].default
    if config.max_tokens != default and all(role in room for role in roles):
        room_list = ", ".join(f"room.{role}={room[role]}" for role in roles)
        note(
            f"max_tokens={config.max_tokens} has no effect: every role has room of its own"
            f" ({room_list}); set room.<role> instead"
        )
    for plan in resolved.policies:
        context = config.hosts[plan.host].context or _positions(plan.source)
        if context is None:
            continue
        for role in resolved.method.rewarded:
            tokens = room.get(role, config.max_tokens)
            if tokens >= context:
                where = f"room.{role}" if role in room else "max_tokens"
                raise UserMistake(
                    f"{where} is {tokens} tokens: with a prompt they do not fit the context of"
                    f" {plan.address} ({context} tokens, base {plan.source.name}): lower"
                    f" {where}, or raise hosts.{plan.host}.context where the base has room"
                )


def _positions(source: Source) -> int | None:
    """Tokens of a row that a base on this disk has room for; None where nothing says so without
    loading it.
    """
    folder = Path(source.where)
    if source.kind == "gguf" and folder.is_file() and gguf.has_copy(source.where):
        folder = gguf.copy_folder(source.where)
    described = folder / "config.json"
    if source.kind not in ("seed", "folder", "gguf") or not described.is_file():
        return None
    try:
        model_config: Any = json.loads(described.read_text(encoding="utf-8-sig"))
    except ValueError:
        return None  # loading it says what is wrong
    facts = cast("dict[str, Any]", model_config) if isinstance(model_config, dict) else {}
    positions = facts.get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def check_seats(config: Config, method: Method, learn: bool) -> None:
    """Raise UserMistake where nobody could learn. Roles that nobody takes are found by playing:
    which ones a game asks for depends on its options.
    """
    agents = config.agents.values()
    taken = [agent.roles for agent in agents if not agent.frozen]
    paid_roles = set(method.rewarded)
    if learn and not any(r is None or not paid_roles or paid_roles & {*r} for r in taken):
        paid = ", ".join(method.rewarded)
        raise UserMistake(
            f"no agent can learn: method {config.method} pays {paid}, and no learning agent takes"
            f" those{_own_paid(config)}"
        )


def _own_paid(config: Config) -> str:
    """Hint at `Method.roles` where the method is the user's own file."""
    if not config.method.endswith(".py"):
        return ""
    return (
        " (a method that rewards other roles lists them: Method(roles={name: Role(kind,"
        " reward=...)}))"
    )


def check_roles(config: Config, methods: Sequence[Method], task: Task) -> None:
    """Refuse a role that none of these games has, and name the nearest."""
    own = {*task.max_tokens}.union(*(method.roles for method in methods))
    roles_by_key = {f"room.{role}": [role] for role in config.room}
    for name, agent in config.agents.items():
        roles_by_key[f"agents.{name}.roles"] = agent.roles or []
    for key, roles in roles_by_key.items():
        for role in roles:
            if role not in own and role not in (known := own | shipped_roles()):
                where = f"in role {role!r}" if key.endswith(".roles") else "in that role"
                raise UserMistake(
                    f"{key}: nobody is ever asked {where}: {nearest(role, known)} (a game of your"
                    " own lists its roles in Method(roles={...}))"
                )


def shipped_roles() -> set[str]:
    """Gather the roles of all shipped methods and setups."""
    shipped = [(kind, name) for kind in ("method", "setup") for name in plugin_names(kind)]
    return {role for kind, name in shipped for role in load_plugin(kind, name).roles}
