"""A config with nothing left open: preset, recipes, learners and every default written out.

Leaves out: reading (`config.schema`), finding plug-ins (`config.plugins`), building anything
(`team.build`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from comas.config.mistakes import FORMER_METRICS, FORMER_MONITORS
from comas.config.options import filled, functions_of
from comas.config.plugins import check_builder_name, load_plugin, with_tools
from comas.config.policies import PolicyPlan, Resolved, policies_of, sources_of
from comas.config.schema import Config, anchor_files, checked
from comas.hosts.local_table import MAX_ROWS, TOKENS_PER_PASS
from comas.models.sources import Source, is_place
from comas.types import Method, Task, UserMistake

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


METRICS = (
    *("rewards", "kl", "lengths", "cost", "counts", "replies", "signal", "facts"),
    *("acceptance", "coverage", "posed", "tools"),
)
"""Metrics of every step (`training.metrics`)."""
MONITORS = ("probes", "rejections", "unreadable", "late_fall")
"""Default monitors of a run (`monitors`)."""
LABELLED = ("pay", "judges")
"""Metrics that ask the task's verifier about every piece of work."""


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
        _apply_preset(data, config, method)
    if not seeded:
        _apply_sizes(data, config, method, task)
    for key in ("kl", "epochs", "minibatches", "samples"):
        if data[key] is None:
            data[key] = getattr(method, key)
    data["kl"] = dict(data["kl"])
    data["questions"] = data["questions"] or 128
    data["options"] = filled("options", data["options"], *functions_of(method))
    data["credit"] = filled("credit", data["credit"], method.advantage)
    data["loss"] = filled("loss", data["loss"], method.loss)
    data["task_options"] = filled("task_options", data["task_options"], task.load)
    for name, table in data["hosts"].items():
        sources_here = [plan.source for plan in plans if plan.host == name]
        _fill_host(name, table, sources_here, config.hosts[name].here)
    if data["test_questions"] is None:
        data["test_questions"] = SEED_TEST_QUESTIONS if seeded else TEST_QUESTIONS
    _recipe(data, plans, task)
    open_roles = set(method.paid) - {*task.max_tokens, *config.room}
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
    if data["metrics"] is None:
        data["metrics"] = [*METRICS, *LABELLED] if task.quick else [*METRICS]
    data["metrics"] = [name for name in data["metrics"] if name not in FORMER_METRICS]
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
        reference=method.paid if starts else method.reference,
        advantage=partial(method.advantage, **data["credit"]),
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


def _apply_preset(data: dict[str, Any], config: Config, method: Method) -> None:
    """Write the keys of a preset into `data`, where the config does not set them itself."""
    name = config.preset or next(iter(method.presets))
    if name not in method.presets:
        known = ", ".join(method.presets) or "none"
        raise UserMistake(f"preset {name!r}: method {config.method} has {known}")
    data["preset"] = name
    for key, value in method.presets[name].items():
        if key == "task_options" and method.task not in (None, config.task):
            continue  # those of the method's own task
        if isinstance(value, Mapping) and key != "kl":
            data[key] = {**value, **data[key]}
        elif key not in config.model_fields_set or data[key] is None:
            data[key] = value


OPTIMIZER = ("lr", *SEED_RECIPE)
"""Keys of a task's recipe that are for what learns; the others say how large a run is."""


def _apply_sizes(data: dict[str, Any], config: Config, method: Method, task: Task) -> None:
    """Write what a task's recipe says of a run with other bases than seed models (`steps questions
    temperature ...`) into `data`: after the config's own keys and those of a preset that it names.
    """
    named: list[str] = list(method.presets[config.preset]) if config.preset else []
    settled: set[str] = {*OPTIMIZER, *config.model_fields_set, *named}
    data.update((key, value) for key, value in task.recipe.items() if key not in settled)


def _fill_host(name: str, table: dict[str, Any], sources: Sequence[Source], here: bool) -> None:
    """Write out the learner of a host, what it calls the old policy, and the bounds of its memory
    where seed models need none.
    """
    check_builder_name("engines", table["engine"], f"hosts.{name}.engine")
    if table["where"] != "here":
        check_builder_name("transports", table["where"], f"hosts.{name}.where")
    if not here:
        table["learner"] = None
    elif table["learner"] is None:
        # seed models were taught to be trained whole, and runs that did so give whole models; any
        # other base gets adapters
        adapters = any(source.kind == "adapter" for source in sources)
        whole = any(source.whole for source in sources)
        table["learner"] = "full" if whole and not adapters else "adapters"
    # as ever: the embedded recipe gives the same bits on every machine
    seeded = not here or all(source.seeded for source in sources)
    if table["share_prompts"] is None:
        table["share_prompts"] = not seeded
    table["old_logprobs"] = table["old_logprobs"] or ("recomputed" if seeded else "first_pass")
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
        if is_place(foreign[0]) and not Path(foreign[0]).exists():
            raise UserMistake(f"base {foreign[0]!r}: no such folder")
        raise UserMistake(
            f"base {foreign[0]!r} has no recipe for task {task.name}: set lr, or hosts.{name}.lr"
            " (a few billion parameters: about 1e-5 for adapters, 1e-6 for whole models)"
        )
    # 1e-05, not 9.999999999999999e-06
    return float(f"{rate * ADAPTER_RATE:.12g}") if adapters else rate
