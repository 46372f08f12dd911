"""A config with nothing left open: preset, recipes, learners and every default written out,
plug-ins found by name.

Tables that belong to functions (`options credit loss task_options`) are checked against their
keywords. Leaves out: reading (`config.schema`), building anything (`team.build`).
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from comas.config.builders import check_builder_name
from comas.config.mistakes import nearest
from comas.config.plugin_file import import_file
from comas.config.policies import PolicyPlan, Resolved, policies_of, trained_whole
from comas.config.schema import Config, checked
from comas.game.prompts import check_holes
from comas.hosts.local import MAX_ROWS, TOKENS_PER_PASS
from comas.models.sources import pinned
from comas.types import Method, Row, Setup, Task, UserMistake

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


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters of a function and their defaults; through `partial`.

    `state` is none of them: it is what a method remembers.
    """
    parameters = inspect.signature(_plain(function)).parameters.items()
    return {
        name: parameter.default
        for name, parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and name != "state"
    }


METRICS = ("rewards", "kl", "lengths", "cost", "counts", "replies", "signal", "facts")
"""Metrics of a step that need no label (`training/metrics`)."""
PLUGINS = {"method": Method, "task": Task, "setup": Setup}


def load_plugin(kind: str, name: str) -> Any:
    """`method`, `task` or `setup` by name: `ttrl` is `comas.methods.ttrl`, `./mine.py` that file;
    its attribute of that kind.
    """
    if name.endswith(".py"):
        module: Any = import_file(name, kind)
    else:
        known = plugin_names(kind)
        if name not in known:
            raise UserMistake(f"{kind} {name!r}: {nearest(name, known)} (or ./file.py)")
        module = importlib.import_module(f"comas.{kind}s.{name}")
    found = getattr(module, kind, None)
    if not isinstance(found, PLUGINS[kind]):
        raise UserMistake(f"{kind} {name!r}: the file defines no `{kind} = {kind.title()}(...)`")
    if isinstance(found, Method | Setup) and not inspect.iscoroutinefunction(_plain(found.play)):
        raise UserMistake(f"{kind} {name!r}: play has to be `async def`, and to await what it asks")
    if isinstance(found, Method):
        _check_functions(found, name)
        _check_order(found, name)
    if name.endswith(".py"):
        wording = found.wording if isinstance(found, Task) else getattr(module, "WORDING", None)
        check_holes(wording, f"{kind} {name!r}", Path(name).read_text(encoding="utf-8-sig"))
    return found


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, partial) else function


def _check_functions(method: Method, name: str) -> None:
    """An error where the functions of a method cannot be called as they will be, for instance
    because two were swapped.
    """
    wanted = {
        "play": "question, agents, rng, task",
        "settle": "episodes, task",
        "start": "questions, task",
        "draw": "state, questions, count, rng, task",
        "update": "state, episodes, task",
        "advantage": "rows, kl",
        "loss": "logprobs, batch",
    }
    for part, arguments in wanted.items():
        if getattr(method, part) is None:
            continue
        function = _plain(getattr(method, part))
        awaited = part != "play" and inspect.iscoroutinefunction(function)
        if awaited or not _takes(function, arguments.split(", ")):
            raise UserMistake(
                f"method {name!r}: {part} is called as {part}({arguments}), and {function.__name__}"
                " does not take that; the order is Method(play, settle, advantage, loss)"
            )


def _check_order(method: Method, name: str) -> None:
    """An error where what stands as the loss makes advantages: both take two arguments, and would
    fail in the first step only.

    Certain, not likely: a loss is given tensors, and nothing but an advantage makes one array per
    row out of rows.
    """
    rows = [
        Row(
            f"t{n}",
            role,
            1.0,
            np.arange(3),
            np.array([False, True, True]),
            np.zeros(3, np.float32),
            f"g{n // 2}",
            float(n % 2),
        )
        for role in method.paid
        for n in range(4)
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = method.loss(rows, {})
    except Exception:  # noqa: BLE001 - as losses fail that are given no tensors, which is how they should
        return
    if isinstance(made, Sequence) and [np.shape(part) for part in cast("Sequence[Any]", made)] == [
        (3,)
    ] * len(rows):
        function = _plain(method.loss)
        raise UserMistake(
            f"method {name!r}: {function.__name__} makes advantages and stands where the loss is"
            " wanted; the order is Method(play, settle, advantage, loss)"
        )


def _takes(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Whether a function can be called with so many positional arguments and no more."""
    try:
        signature = inspect.signature(function)
        signature.bind_partial(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin tells nothing of its arguments
        return True
    by_place = [
        p
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return all(p.default is not p.empty for p in by_place[len(arguments) :])


def plugin_names(kind: str) -> list[str]:
    """The methods, tasks or setups that are shipped."""
    return sorted(
        p.stem
        for p in (Path(__file__).parents[1] / f"{kind}s").glob("*.py")
        if p.stem != "__init__"
    )


def resolve(config: Config) -> Resolved:
    """The config with preset, recipe and every default written out, and what it names: method,
    task, policies.
    """
    method = load_plugin("method", config.method)
    task = load_plugin("task", config.task)
    _check_needs(config, method, task)
    config = _with_team(config, method)
    data = config.model_dump()
    if config.preset or method.presets:
        _apply_preset(data, config, method)
    for key in ("kl", "epochs", "minibatches", "samples"):
        if data[key] is None:
            data[key] = getattr(method, key)
    data["kl"] = dict(data["kl"])
    data["questions"] = data["questions"] or 128
    data["options"] = filled("options", data["options"], *functions_of(method))
    data["credit"] = filled("credit", data["credit"], method.advantage)
    data["loss"] = filled("loss", data["loss"], method.loss)
    data["task_options"] = filled("task_options", data["task_options"], task.load)
    plans = policies_of(config)
    for name, table in data["hosts"].items():
        own = [plan for plan in plans if plan.host == name]
        _fill_host(name, table, own, config.hosts[name].here)
    if data["test_questions"] is None:
        seeds = all(plan.source.seeded for plan in plans)
        data["test_questions"] = SEED_TEST_QUESTIONS if seeds else TEST_QUESTIONS
    _recipe(data, plans, task)
    open_roles = set(method.paid) - {*task.max_tokens, *config.room}
    if (
        open_roles
        and "max_tokens" not in config.model_fields_set
        and all(plan.source.kind in ("api", "seed") for plan in plans)
    ):
        data["max_tokens"] = 256  # half of their context: prompt and reply share it
    if data["metrics"] is None:
        data["metrics"] = [*METRICS, "pay"] if task.quick else [*METRICS]
    _absolute(data, [name for name, host in config.hosts.items() if host.here])
    method = replace(
        method,
        advantage=partial(method.advantage, **data["credit"]),
        loss=partial(method.loss, **data["loss"]),
        kl=data["kl"],
        epochs=data["epochs"],
        minibatches=data["minibatches"],
    )
    config = checked(data)
    return Resolved(config, method, task, policies_of(config))


def _check_needs(config: Config, method: Method, task: Task) -> None:
    """An error where the task lacks what the method cannot be played without."""
    for part in method.needs:
        if getattr(task, part) is None:
            raise UserMistake(
                f"method {config.method} needs a task with `{part}`, and task {config.task} has"
                " none: take another task, or give the task's file one (docs/extending.md)"
            )


def _with_team(config: Config, method: Method) -> Config:
    """The config with the method's own team and base, where it names no agents or no base."""
    data = config.model_dump(exclude_unset=True)
    based = any("base" in table.model_fields_set for table in config.hosts.values())
    changed = False
    if method.base is not None and not based:
        hosts: dict[str, dict[str, Any]] = data.get("hosts", {"home": {}})
        here = [name for name in hosts if config.hosts[name].here]
        data["hosts"] = hosts | {name: {"base": method.base, **hosts[name]} for name in here}
        changed = True
    if method.team and config.dealt:
        data["agents"] = {name: _at_own_base(keys, based) for name, keys in method.team.items()}
        changed = True
    return checked(data) if changed else config


def _at_own_base(keys: Mapping[str, Any], based: bool) -> dict[str, Any]:
    """An agent of a method's team; its base is the host's where that is named (`based`)."""
    return {key: value for key, value in keys.items() if key != "base" or not based}


def _apply_preset(data: dict[str, Any], config: Config, method: Method) -> None:
    """Write the keys of a preset into `data`, where the config does not set them itself."""
    name = config.preset or next(iter(method.presets))
    if name not in method.presets:
        known = ", ".join(method.presets) or "none"
        raise UserMistake(f"preset {name!r}: method {config.method} has {known}")
    data["preset"] = name
    for key, value in method.presets[name].items():
        if isinstance(value, Mapping) and key != "kl":
            data[key] = {**value, **data[key]}
        elif key not in config.model_fields_set or data[key] is None:
            data[key] = value


def _fill_host(name: str, table: dict[str, Any], plans: Sequence[PolicyPlan], here: bool) -> None:
    """Write out the learner of a host, and its bounds of memory where seed models need none."""
    check_builder_name("engines", table["engine"], f"hosts.{name}.engine")
    table["learner"] = (table["learner"] or _learner(plans)) if here else None
    # as ever: the embedded recipe gives the same bits on every machine
    if not here or all(plan.source.seeded for plan in plans):
        table["tokens_per_pass"] = table["tokens_per_pass"] or TOKENS_PER_PASS
        table["max_rows"] = table["max_rows"] or MAX_ROWS


def filled(table: str, given: Mapping[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """What is given, checked against the annotations of these functions' keywords, and their
    defaults for the rest.
    """
    known = {key: value for function in functions for key, value in keywords(function).items()}
    hints = {key: value for function in functions for key, value in _hints(function).items()}
    found = dict(known)
    for key, value in given.items():
        if key not in known:
            raise UserMistake(f"unknown key {table}.{key}: {nearest(key, known)}")
        # as JSON: a list from TOML is a tuple where one is asked for, but text is never a number
        try:
            found[key] = TypeAdapter(hints.get(key, Any)).validate_json(
                to_json(value, inf_nan_mode="strings"), strict=True
            )
        except ValidationError as error:
            raise UserMistake(f"{table}.{key} = {value!r}: {error.errors()[0]['msg']}") from error
    if missing := [key for key, value in found.items() if value is inspect.Parameter.empty]:
        raise UserMistake(f"{table}.{missing[0]} has no default: set it")
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = _plain(function)
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:  # imported for the type checker only
        raise UserMistake(
            f"{function.__name__}: the annotation of an option cannot be read, {error}"
        ) from error


def functions_of(method: Method) -> list[Callable[..., Any]]:
    """The functions of a method that take its options."""
    functions = (method.settle, method.play, method.start, method.draw, method.update)
    return [function for function in functions if function is not None]


def _learner(plans: Sequence[PolicyPlan]) -> str:
    """Seed models were taught to be trained whole, and runs that did so give whole models; any
    other base gets adapters.
    """
    adapters = any(plan.source.kind == "adapter" for plan in plans)
    whole = any(trained_whole(plan.source) for plan in plans)
    return "full" if whole and not adapters else "adapters"


def _recipe(data: dict[str, Any], plans: Sequence[PolicyPlan], task: Task) -> None:
    """Learning rates and optimizer settings from recipes that were made for these bases, or an
    error.
    """
    rates: dict[str, Any] = {}
    recipe = dict(SEED_RECIPE)
    for name, host in data["hosts"].items():
        sources = [plan.source for plan in plans if plan.host == name and plan.learns and plan.here]
        foreign = sorted(o for source in sources if not source.seeded for o in source.origin)
        if foreign:
            recipe |= {k: v for k, v in task.recipe.items() if k != "lr"}
        if sources and host["lr"] is None and data["lr"] is None:
            rates[name] = _rate(name, host["learner"] == "adapters", foreign, task)
    if len(set(rates.values())) == 1:
        data["lr"] = next(iter(rates.values()))
    for name, rate in rates.items():
        data["hosts"][name]["lr"] = None if data["lr"] else rate
    for key in ("betas", "weight_decay", "grad_norm"):
        data[key] = data[key] if data[key] is not None else recipe[key]


def _rate(name: str, adapters: bool, foreign: Sequence[str], task: Task) -> float:
    """The learning rate of a host's policies; `foreign` are their bases that are not shipped."""
    if not foreign:
        return SEED_ADAPTER_LR if adapters else SEED_LR
    rate: float | None = task.recipe.get("lr")
    if rate is None:
        raise UserMistake(
            f"base {foreign[0]!r} has no recipe for task {task.name}: set lr, or hosts.{name}.lr"
            " (a few billion parameters: about 1e-5 for adapters, 1e-6 for whole models)"
        )
    # 1e-05, not 9.999999999999999e-06
    return float(f"{rate * ADAPTER_RATE:.12g}") if adapters else rate


def _absolute(data: dict[str, Any], here: Collection[str]) -> None:
    """Have what is found by its place be found when a run goes on from another folder; `here` are
    the hosts with weights in this process.
    """
    for key in ("method", "task"):
        if data[key].endswith(".py"):
            data[key] = str(Path(data[key]).resolve())
    data["metrics"] = [
        str(Path(name).resolve()) if name.endswith(".py") else name for name in data["metrics"]
    ]
    # a task may take something else than a path
    if data["data"] is not None and Path(data["data"]).exists():
        data["data"] = str(Path(data["data"]).resolve())
    for host in data["hosts"].values():
        for key in ("engine", "kind"):
            if host[key] is not None and host[key].endswith(".py"):
                host[key] = str(Path(host[key]).resolve())
    # elsewhere a base is a name only
    tables = [data["hosts"][name] for name in here]
    tables += [agent for agent in data["agents"].values() if agent["host"] in here]
    for table in tables:
        if table["base"] is not None:
            table["base"] = pinned(table["base"])


def split_options(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The options that this function takes."""
    return {k: v for k, v in options.items() if k in keywords(function)}
