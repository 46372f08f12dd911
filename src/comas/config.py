"""What a run is, as data: TOML + key=value -> a checked config in which every default is written out.

Unknown keys are errors that name the nearest key; method, options, credit and loss tables are checked against the
functions that use them. Leaves out: building anything (`train`).
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import to_json

from comas.bases import adapter_base, is_adapter, is_seed
from comas.store import run_at
from comas.types import Method, Setup, Task, UserMistake

SEED_RECIPE = {"lr": 5e-4, "betas": (0.9, 0.95), "weight_decay": 0.0, "grad_norm": 1.0}
"""The embedded recipe: for the shipped seed models only."""


Price = Annotated[float, Field(ge=0)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class HostConfig(_Table):
    """`[hosts.<name>]`: one owner of weights, or an endpoint where somebody else's models answer."""

    base: str = "seed"
    """Of its policies: a shipped seed model, a folder, or a hub name; with `api` the model's name there."""
    learner: Literal["full", "adapters"] | None = None
    """What of a policy is trained: all of it, or an adapter on a base that the host's policies share; None is full for seed
    models (and runs that trained them so), otherwise adapters."""
    rank: int | None = Field(None, ge=1)
    """Of adapters; None is 16, or what an adapter has that is the base."""
    alpha: float | None = Field(None, gt=0)
    """An adapter counts alpha / rank times; None is twice the rank, or what an adapter has that is the base."""
    targets: list[str] | None = Field(None, min_length=1)
    """Names of linear layers (or ends of names) that adapters change; None is all but the head."""
    engine: Literal["torch"] = "torch"
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; auto takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of sampling and of the learner's passes; auto is float32 on CPU, bfloat16 on a GPU. Trained weights are float32 always."""
    context: int | None = Field(None, ge=16)
    """Tokens that prompt and reply share; None is what the base has room for."""
    thinking: bool | None = None
    """Whether models that can think before they answer do so; None is what their template says."""
    max_rows: int = Field(512, ge=1)
    """Rows decoded at once."""
    tokens_per_pass: int = Field(8192, ge=64)
    """Padded tokens in one forward and backward pass: bounds memory, changes nothing else."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: slower, smaller."""
    lr: float | None = Field(None, gt=0)
    """Overrides the shared one."""
    trust_remote_code: bool = False
    api: str | None = Field(None, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$")
    """Base URL of an OpenAI-compatible endpoint: no weights here, and its agents are frozen."""
    key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable that holds the key; never the key."""
    concurrency: int = Field(16, ge=1)
    """Requests at once."""
    timeout: float = Field(120.0, gt=0)
    """Seconds for one request."""
    retries: int = Field(5, ge=0)
    logprobs: bool = False
    """Whether the endpoint is asked for them."""
    price: tuple[Price, Price] | None = None
    """Of a million prompt tokens, and of a million generated ones."""
    budget_tokens: int | None = Field(None, ge=1)
    """Prompt and generated tokens, over all processes of a run; when they are spent the run stops."""
    budget_money: float | None = Field(None, gt=0)
    """The same in the unit of `price`."""


class AgentConfig(_Table):
    """`[agents.<name>]`: one member of the team; it has a policy of its own unless it names another's."""

    host: str = "home"
    base: str | None = None
    """Overrides the host's."""
    policy: str | None = None
    """Share this policy (self-play); None is one of its own."""
    roles: list[str] | None = None
    frozen: bool = False
    """Always true at a host with `api`, whatever is written."""
    temperature: float | None = Field(None, gt=0)
    lr: float | None = Field(None, gt=0)
    """Overrides the host's; so do the next three."""
    rank: int | None = Field(None, ge=1)
    alpha: float | None = Field(None, gt=0)
    targets: list[str] | None = Field(None, min_length=1)


class Config(_Table):
    """A run. Tables that belong to functions (`options credit loss kl task_options`) are checked by `resolve`."""

    method: str = "comas"
    preset: str | None = None
    task: str = "pick"
    data: str | None = None
    """A file of questions, where the task reads one."""
    steps: int = Field(180, ge=0)
    tokens: int | None = Field(None, ge=1)
    """Stop after the step in which this many tokens have been generated, if that comes before `steps`."""
    seed: int = Field(0, ge=0)
    out: str | None = None
    questions: int | None = Field(None, ge=1)
    """Per step; None is the preset's number, or 128."""
    samples: int | None = Field(None, ge=1)
    """Discussions per question; None is the method's own number."""
    temperature: float = Field(1.0, gt=0)
    max_tokens: int = Field(512, ge=1)
    """Room per reply, where neither `room` nor the task says otherwise."""
    room: dict[str, int] = {}
    """Room per reply and role."""
    epochs: int | None = Field(None, ge=1)
    minibatches: int | None = Field(None, ge=1)
    lr: float | None = Field(None, gt=0)
    """None is the recipe's: the embedded one for seed models, or one that the task ships."""
    betas: tuple[float, float] | None = None
    weight_decay: float | None = Field(None, ge=0)
    grad_norm: float | None = Field(None, gt=0)
    checkpoint_every: int = Field(20, ge=1)
    eval_every: int = Field(20, ge=0)
    """Steps between measurements on the validation split; 0 is never."""
    eval_questions: int = Field(128, ge=1)
    """For those; the measurements before and after the run take `test_questions` of the held-out split."""
    test_questions: int = Field(512, ge=0)
    """0 leaves the measurements before and after out."""
    eval_temperature: float = Field(0.7, ge=0)
    eval_top_p: float = Field(1.0, gt=0, le=1)
    sandbox: Literal["auto", "none"] = "auto"
    """Of programs that models write; none runs them without walls."""
    threads: int | None = Field(None, ge=1)
    """Of torch; None is one per CPU that this process may use."""
    options: dict[str, Any] = {}
    credit: dict[str, Any] = {}
    loss: dict[str, Any] = {}
    kl: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Role -> beta; None is the method's own."""
    task_options: dict[str, Any] = {}
    hosts: dict[str, HostConfig] = {"home": HostConfig.model_validate({})}
    agents: dict[str, AgentConfig] = {}
    """Empty: four agents, dealt over the hosts in turn."""

    @model_validator(mode="before")
    @classmethod
    def _deal(cls, data: Any) -> Any:
        """A number of agents (or none) becomes that many tables, dealt over the hosts."""
        agents = data.get("agents")
        if type(agents) is int and agents < 1:
            raise ValueError(f"agents = {agents}: a team has at least one")
        if not agents or type(agents) is int:
            hosts: Any = data.get("hosts")
            names = list(cast("Mapping[str, Any]", hosts)) if hosts and isinstance(hosts, Mapping) else ["home"]
            data = {**data, "agents": {f"a{i}": {"host": names[i % len(names)]} for i in range(agents or 4)}}
        return data

    @model_validator(mode="after")
    def _known_hosts(self) -> Config:
        for name, agent in self.agents.items():
            if agent.host not in self.hosts:
                raise ValueError(f"agents.{name}.host is {agent.host!r}: {_nearest(agent.host, self.hosts)}")
            agent.frozen = agent.frozen or self.hosts[agent.host].api is not None
        homes: dict[str, str] = {}
        for name, agent in self.agents.items():
            policy = agent.policy or name
            if homes.setdefault(policy, agent.host) != agent.host:
                raise ValueError(f"policy {policy!r} is at hosts {homes[policy]} and {agent.host}: give it two names")
        folders: dict[str, str] = {}
        for policy in homes:  # macOS and Windows
            if (other := folders.setdefault(policy.casefold(), policy)) != policy:
                raise ValueError(f"policies {other!r} and {policy!r} would share a folder where capitals do not count: rename one")
        for name, host in self.hosts.items():
            for key in ("rank", "alpha", "targets") if host.learner == "full" or host.api else ():
                tables = {f"hosts.{name}": host} | {f"agents.{n}": a for n, a in self.agents.items() if a.host == name}
                if given := [n for n, table in tables.items() if getattr(table, key) is not None]:
                    raise ValueError(f"{given[0]}.{key} is for hosts.{name}.learner=adapters: set that, or leave it out")
            for key in ("key_env", "price", "budget_tokens", "budget_money"):
                if getattr(host, key) is not None and host.api is None:
                    raise ValueError(f"hosts.{name}.{key} is for a host behind an API: set hosts.{name}.api, or leave it out")
            if host.budget_money is not None and host.price is None:
                raise ValueError(f"hosts.{name}.budget_money needs a price: set hosts.{name}.price = [prompt, generated]")
        return self


def read(path: str | Path | None, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Config:
    """A config from a TOML file and `key=value` pairs (dotted keys; values as in TOML, otherwise text)."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserMistake(f"config {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserMistake(f"config {path} is not TOML: {error}") from error
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parse_pair, overrides)
    for key, value in pairs:
        _put(data, key, value)
    return checked(data)


def checked(data: Mapping[str, Any]) -> Config:
    """A config from plain tables; a mistake in them is one line."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise UserMistake(_explain(error)) from error


def parse_pair(text: str) -> tuple[str, Any]:
    """`key=value`, the value as in TOML, otherwise text."""
    key, found, value = text.partition("=")
    if not found or not key:
        raise UserMistake(f"{text!r} is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        found: Any = data.setdefault(part, {})
        if not isinstance(found, dict):
            raise UserMistake(f"{key}: {part} is {found!r}, not a table")
        data = cast("dict[str, Any]", found)
    data[last] = value


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(p) for p in first["loc"])
    if first["type"] == "extra_forbidden":
        *_, last = first["loc"]
        table = {"hosts": HostConfig, "agents": AgentConfig}.get(str(first["loc"][0]), Config) if len(first["loc"]) > 1 else Config
        return f"unknown key {place}: {_nearest(str(last), table.model_fields)}"
    if first["loc"] and first["loc"][-1] in SECRETIVE:
        return f"{place}: {SECRETIVE[str(first['loc'][-1])]}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{place} = {first['input']!r}: {said}" if place else said


SECRETIVE = {
    "key_env": "the name of an environment variable is wanted, never the key itself (letters, digits and _)",
    "api": "wanted is http(s)://host[:port]/path without a user, a password, ? or #: a key belongs into the variable of key_env",
}
"""Keys whose value may be a secret in the wrong place: what is said of a mistake does not repeat it."""


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {close[0]}?" if close else f"one of {', '.join(sorted(known)) or '(none)'}"


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters of a function and their defaults; through `partial`."""
    function = function.func if isinstance(function, partial) else function
    return {n: p.default for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


PLUGINS = {"method": Method, "task": Task, "setup": Setup}


def load_plugin(kind: str, name: str) -> Any:
    """`method`, `task` or `setup` by name: `ttrl` is `comas.methods.ttrl`, `./mine.py` that file; its attribute of that kind."""
    if name.endswith(".py"):
        path = Path(name).resolve()
        spec = importlib.util.spec_from_file_location(f"comas_user_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UserMistake(f"{kind} {name!r}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (SyntaxError, ImportError) as error:
            raise UserMistake(f"{kind} {name!r} cannot be imported: {error}") from error
    else:
        known = plugin_names(kind)
        if name not in known:
            raise UserMistake(f"{kind} {name!r}: {_nearest(name, known)} (or ./file.py)")
        module = importlib.import_module(f"comas.{kind}s.{name}")
    if not isinstance(getattr(module, kind, None), PLUGINS[kind]):
        raise UserMistake(f"{kind} {name!r}: the file defines no `{kind} = {kind.title()}(...)`")
    return getattr(module, kind)


def plugin_names(kind: str) -> list[str]:
    """The methods, tasks or setups that are shipped."""
    return sorted(p.stem for p in (Path(__file__).parent / f"{kind}s").glob("*.py") if p.stem != "__init__")


def resolve(config: Config) -> tuple[Config, Method, Task]:
    """The config with preset, recipe and every default written out, and the method and task that it names."""
    method, task = load_plugin("method", config.method), load_plugin("task", config.task)
    data = config.model_dump()
    if config.preset or method.presets:
        name = config.preset or next(iter(method.presets))
        if name not in method.presets:
            raise UserMistake(f"preset {name!r}: method {config.method} has {', '.join(method.presets) or 'none'}")
        data["preset"] = name
        for key, value in method.presets[name].items():
            if isinstance(value, Mapping) and key != "kl":
                data[key] = {**value, **data[key]}
            elif key not in config.model_fields_set or data[key] is None:
                data[key] = value
    for key, attribute in (("kl", "kl"), ("epochs", "epochs"), ("minibatches", "minibatches"), ("samples", "samples")):
        data[key] = data[key] if data[key] is not None else getattr(method, attribute)
    data["kl"], data["questions"] = dict(data["kl"]), data["questions"] or 128
    data["options"] = filled("options", data["options"], method.settle, method.play)
    data["credit"] = filled("credit", data["credit"], method.advantage)
    data["loss"] = filled("loss", data["loss"], method.loss)
    data["task_options"] = filled("task_options", data["task_options"], task.load)
    for name, host in data["hosts"].items():
        host["learner"] = None if host["api"] else host["learner"] or _learner(config, name)
    _recipe(data, config, task)
    _absolute(data)
    method = replace(
        method, advantage=partial(method.advantage, **data["credit"]), loss=partial(method.loss, **data["loss"]), kl=data["kl"],
        epochs=data["epochs"], minibatches=data["minibatches"],
    )
    return Config.model_validate(data), method, task


def filled(table: str, given: Mapping[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """What is given, checked against the annotations of these functions' keywords, and their defaults for the rest."""
    known = {key: value for function in functions for key, value in keywords(function).items()}
    hints = {key: value for function in functions for key, value in _hints(function).items()}
    found = dict(known)
    for key, value in given.items():
        if key not in known:
            raise UserMistake(f"unknown key {table}.{key}: {_nearest(key, known)}")
        try:  # as JSON: a list from TOML is a tuple where one is asked for, but text is never a number
            found[key] = TypeAdapter(hints.get(key, Any)).validate_json(to_json(value, inf_nan_mode="strings"), strict=True)
        except ValidationError as error:
            raise UserMistake(f"{table}.{key} = {value!r}: {error.errors()[0]['msg']}") from error
    if missing := [key for key, value in found.items() if value is inspect.Parameter.empty]:
        raise UserMistake(f"{table}.{missing[0]} has no default: set it")
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = function.func if isinstance(function, partial) else function
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:  # imported for the type checker only
        raise UserMistake(f"{function.__name__}: the annotation of an option cannot be read, {error}") from error


def _learner(config: Config, name: str) -> str:
    """Seed models were taught to be trained whole, and runs that did so give whole models; any other base gets adapters."""
    bases = {a.base or config.hosts[name].base for a in config.agents.values() if a.host == name}
    return "full" if any(map(_whole, bases)) and not any(map(is_adapter, bases)) else "adapters"


def _whole(base: str) -> bool:
    if is_seed(base):
        return True
    found = run_at(base)
    return found is not None and all(h.get("learner", "full") == "full" for h in found[0].config()["hosts"].values())


def _recipe(data: dict[str, Any], config: Config, task: Task) -> None:
    """Learning rates and optimizer settings from recipes that were made for these bases, or an error."""
    rates: dict[str, Any] = {}
    recipe = dict(SEED_RECIPE)
    for name, host in data["hosts"].items():
        bases = {a.base or host["base"] for a in config.agents.values() if a.host == name and not a.frozen}
        if foreign := sorted(o for b in bases for o in origins(b) if not is_seed(o)):
            recipe |= {k: v for k, v in task.recipe.items() if k != "lr"}
        rate = task.recipe.get("lr") if foreign else SEED_RECIPE["lr"]
        if bases and host["lr"] is None and data["lr"] is None:
            if rate is None:
                raise UserMistake(
                    f"base {foreign[0]!r} has no recipe for task {task.name}: set lr, or hosts.{name}.lr (full models of a few "
                    "billion parameters: about 1e-6)"
                )
            rates[name] = rate
    if len(set(rates.values())) == 1:
        data["lr"] = next(iter(rates.values()))
    for name, rate in rates.items():
        data["hosts"][name]["lr"] = None if data["lr"] else rate
    for key in ("betas", "weight_decay", "grad_norm"):
        data[key] = data[key] if data[key] is not None else recipe[key]


def _absolute(data: dict[str, Any]) -> None:
    """What is found by its place is still found when a run goes on from another folder."""
    for key in ("method", "task"):
        if data[key].endswith(".py"):
            data[key] = str(Path(data[key]).resolve())
    if data["data"] is not None and Path(data["data"]).exists():  # a task may take something else than a path
        data["data"] = str(Path(data["data"]).resolve())
    own = {name: host for name, host in data["hosts"].items() if host["api"] is None}  # elsewhere a base is a name only
    for table in (*own.values(), *(a for a in data["agents"].values() if a["host"] in own)):
        if (base := table["base"]) is None or is_seed(base):
            continue
        if (found := run_at(base)) is not None:
            step = "@" + base.rpartition("@")[2] if found[1] is not None else ""
            table["base"] = str(found[0].path.resolve()) + step
        elif Path(base).is_dir():
            table["base"] = str(Path(base).resolve())


def bases_of(config: Config) -> set[str]:
    """The models that the policies of a run start from; those behind an API are not ours."""
    return {a.base or config.hosts[a.host].base for a in config.agents.values() if config.hosts[a.host].api is None}


def origins(base: str, depth: int = 100) -> set[str]:
    """The bases that a run started from, where `base` is a run (through runs of runs); otherwise itself."""
    if is_seed(base):
        return {base}
    if is_adapter(base):
        return {adapter_base(base)}
    if (found := run_at(base)) is None:
        return {base}
    if depth == 0:
        raise UserMistake(f"base {base!r}: runs that start from each other")
    below = bases_of(Config.model_validate(found[0].config()))
    return {o for b in below for o in origins(b, depth - 1)}


def split_options(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The options that this function takes."""
    return {k: v for k, v in options.items() if k in keywords(function)}
