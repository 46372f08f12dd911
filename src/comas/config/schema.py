"""Description of a run, as data: TOML + key=value -> a checked config. From top to bottom: the
tables and their keys, whether the tables agree with each other, reading a file and pairs, what
somebody else's file may ask for, where the paths in a file lead.

Unknown keys are errors that name the nearest key. Leaves out: what follows from the method, the
task and the bases (`config.plan`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    create_model,
    model_validator,
)

from comas.config.mistakes import explain, nearest, upgraded
from comas.config.plugins import load_plugin, names_file
from comas.hosts.keys import (
    ApiTable,
    HostTable,
    Key,
    LocalTable,
    Place,
    RayTable,
    keys_that,
    none_as_text,
)
from comas.models.sources import TEAM, has_weights, is_shipped, run_at, team_file
from comas.program import command
from comas.storage import files
from comas.types import UserMistake

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of Adam's moving averages."""
MOST_AGENTS = 10_000
"""Agents of a team, at most: each is a table of the config."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class HostConfig(ApiTable, RayTable):
    """`[hosts.<name>]`: one owner of weights, or an endpoint where somebody else's
    models answer. What runs write holds the keys of all kinds that are shipped.
    """

    kind: Annotated[Place | None, Key.OWN_FILE] = None
    """Kind of the host, which builds it: a file with `build(plan)` and, for keys of its own, a
    `Table`, or the name of a module of `comas.hosts`, such as `ray` for an actor of Ray; None is
    `api` where that is set, otherwise local.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, data: Any) -> Any:
        return upgraded(data, cls.model_fields)

    @property
    def built_by(self) -> str:
        """Return the kind, decided where none is named."""
        if self.kind is not None:
            return self.kind
        return "local" if self.api is None else "api"

    @property
    def here(self) -> bool:
        """Whether its weights are loaded by us, in this process or in an actor."""
        return self.built_by in ("local", "ray")

    @property
    def elsewhere(self) -> bool:
        """Whether that is an actor."""
        return self.built_by == "ray"

    @property
    def on_this_machine(self) -> bool:
        """Whether its weights are in this machine's memory, as far as the config tells."""
        return self.here and not (self.elsewhere and os.environ.get("RAY_ADDRESS"))


def of_its_kind(name: str, table: Any) -> Any:
    """Check the table of a host that names a kind against the keys of that kind; another one is
    left as it is.
    """
    if not isinstance(table, Mapping):
        return table
    keys = cast("Mapping[str, Any]", table)
    kind = keys.get("kind")
    if not isinstance(kind, str):
        return keys
    module = load_plugin("host", os.path.expanduser(kind), f"hosts.{name}.kind")
    own_table: type[HostTable] = getattr(module, "Table", HostTable)
    if kind.endswith(".py"):
        _check_no_foreign_keys(name, kind, keys, own_table)
    if issubclass(HostConfig, own_table):
        return keys
    combined = create_model("HostConfig", __base__=(own_table, HostConfig))
    try:
        return combined.model_validate(keys)
    except ValidationError as error:
        explained = explain(error, lambda _: combined.model_fields, ("hosts", name))
        raise UserMistake(explained) from error


def _check_no_foreign_keys(
    name: str, kind: str, keys: Mapping[str, Any], own_table: type[HostTable]
) -> None:
    """Refuse keys of shipped kinds that a host of the user's own never reads. Their defaults are no
    mistake: what runs write has them.
    """
    for key, field in HostConfig.model_fields.items():
        foreign = key not in own_table.model_fields and key not in ("kind", "lr")
        if foreign and keys.get(key, field.default) not in (field.default, None):
            raise UserMistake(
                f"hosts.{name}.{key} says nothing to {kind}: leave it out, or give the `Table` of"
                " that file a field of this name"
            )


class AgentConfig(_Table):
    """`[agents.<name>]`: one member of the team; it has a policy of its own unless it names
    another's.
    """

    host: str = "home"
    base: Place | None = None
    """Overrides the host's."""
    policy: str | None = None
    """Share this policy (self-play); None is one of its own."""
    lag: int | None = Field(None, ge=1)
    """Speak with the weights that `policy` had after the last multiple of so many steps: a frozen
    earlier self.
    """
    system: str | None = Field(None, min_length=1)
    """A persona: the system message before everything that it is asked."""
    roles: list[str] | None = Field(None, min_length=1)
    frozen: bool = False
    """Always true at a host with `api`, whatever is written."""
    temperature: float | None = Field(None, gt=0)
    lr: float | None = Field(None, gt=0)
    """Overrides the host's; so do the next two."""
    rank: int | None = Field(None, ge=1)
    targets: list[str] | None = Field(None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, data: Any) -> Any:
        return upgraded(data, cls.model_fields)

    def policy_name(self, agent: str) -> str:
        """The policy of the agent of this name: one of its own unless it shares another's; an
        earlier self is kept under the agent's name.
        """
        return agent if self.policy is None or self.lag is not None else self.policy


def learning_policies(agents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Name the policies, `host/policy`, that learn in a run with this table `agents` in its config;
    earlier selves do not. Other keys are not looked at: a later version may have written some.
    """
    learning = [
        f"{table.get('host', 'home')}/{table.get('policy') or name}"
        for name, table in agents.items()
        if not table.get("frozen") and table.get("lag") is None
    ]
    return list(dict.fromkeys(learning))


class Config(_Table):
    """A run.

    Tables that belong to functions (`options credit loss kl task_options`) are checked where a
    run is planned (`config.plan`).
    """

    method: Annotated[Place, Key.OWN_FILE] = "comas"
    preset: str | None = None
    task: Annotated[Place, Key.OWN_FILE] = "pick"
    data: Place | None = None
    """A file of questions, where the task reads one."""
    steps: Annotated[int, Key.CHANGES, Key.TRAINING] = Field(180, ge=0)
    tokens: Annotated[int | None, BeforeValidator(none_as_text), Key.CHANGES, Key.TRAINING] = Field(
        None, ge=1
    )
    """Stop after the step in which this many tokens have been generated, if that comes before
    `steps`; `none` where a run goes on without such a bound.
    """
    seed: int = Field(0, ge=0)
    out: Place | None = None
    questions: int | None = Field(None, ge=1, le=1_000_000)
    """Per step; None is the preset's number, or 128."""
    samples: int | None = Field(None, ge=1, le=1_000_000)
    """Discussions per question; None is the method's own number."""
    temperature: float = Field(1.0, gt=0)
    max_tokens: int = Field(512, ge=1)
    """Tokens per reply, where neither `room` nor the task says otherwise."""
    room: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Tokens per reply, by role."""
    epochs: Annotated[int | None, Key.TRAINING] = Field(None, ge=1)
    minibatches: Annotated[int | None, Key.TRAINING] = Field(None, ge=1)
    lr: Annotated[float | None, Key.TRAINING] = Field(None, gt=0)
    """None is the recipe's: the embedded one for tiny models, or one that the task ships."""
    schedule: Annotated[Literal["constant", "linear", "cosine"], Key.TRAINING] = "constant"
    """How learning rates fall over `steps`, once they have risen over `warmup`."""
    warmup: Annotated[int, Key.TRAINING] = Field(0, ge=0)
    """Steps in which learning rates rise in a line to what they are set to."""
    betas: Annotated[tuple[Beta, Beta] | None, Key.TRAINING] = None
    weight_decay: Annotated[float | None, Key.TRAINING] = Field(None, ge=0)
    grad_norm: Annotated[float | None, Key.TRAINING] = Field(None, gt=0)
    checkpoint_every: Annotated[int, Key.TRAINING] = Field(20, ge=1)
    eval_every: Annotated[int, Key.TRAINING] = Field(20, ge=0)
    """Steps between measurements on the validation split; 0 is never."""
    eval_questions: int = Field(128, ge=1)
    """For those; the measurements before and after the run take `test_questions` of the held-out
    split.
    """
    test_questions: int | None = Field(None, ge=0)
    """0 leaves the measurements before and after out; None is 512 for tiny models, otherwise 128.
    """
    monitors: Annotated[list[str] | None, Key.TRAINING, Key.OWN_FILE] = None
    """Monitors that watch the run for signs of collapse, by name or file; None is those that
    `config.plan` names.
    """
    on_alarm: Annotated[
        Literal["warn", "stop"],
        BeforeValidator(lambda action: "stop" if action == "restore" else action),
        Key.CHANGES,
        Key.TRAINING,
    ] = "warn"
    """Action where a monitor alarms: it warns, or the run stops after the step. Runs of before have
    `restore`, which stopped too.
    """
    track: Annotated[list[str], Key.CHANGES, Key.TRAINING, Key.OWN_FILE] = []
    """Trackers that get each step, by name or file; each needs the extra of its name."""
    eval_temperature: float = Field(0.7, ge=0)
    tools: Annotated[list[str], Key.OWN_FILE] = []
    """Tools that agents may call in dialogues, by name or file, beside those of the task."""
    tool_options: dict[str, dict[str, Any]] = {}
    """Tool -> its options."""
    sandbox: Literal["auto", "none"] = "auto"
    """The sandbox of programs that models write; none runs them without walls."""
    threads: int | None = Field(None, ge=1, le=4096)
    """Threads of torch; None is one per CPU that this process may use."""
    options: dict[str, Any] = {}
    credit: Annotated[dict[str, Any], Key.TRAINING] = {}
    loss: Annotated[dict[str, Any], Key.TRAINING] = {}
    kl: Annotated[dict[str, Annotated[float, Field(ge=0)]] | None, Key.TRAINING] = None
    """Role -> beta, over those of the preset or the method; {} is no KL at all."""
    task_options: dict[str, Any] = {}
    hosts: dict[str, SerializeAsAny[HostConfig]] = {"home": HostConfig.model_validate({})}
    agents: dict[str, AgentConfig] = {}
    """Empty: the method's own team, or four agents, dealt over the hosts in turn."""
    dealt: bool = Field(False, exclude=True, repr=False)
    """Whether `agents` named none: never written, never read from a file."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, data: Any) -> Any:
        return upgraded(data, cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _deal(cls, data: Any) -> Any:
        """A number of agents (or none) becomes that many tables, dealt over the hosts."""
        agents = data.get("agents")
        if "dealt" in data:
            raise ValueError("unknown key dealt")
        if type(agents) is int and not 1 <= agents <= MOST_AGENTS:
            raise ValueError(f"agents = {agents}: a team has 1 to {MOST_AGENTS:,}")
        if not agents or type(agents) is int:
            hosts: Any = data.get("hosts")
            names = (
                list(cast("Mapping[str, Any]", hosts))
                if hosts and isinstance(hosts, Mapping)
                else ["home"]
            )
            data = {
                **data,
                "agents": {f"a{i}": {"host": names[i % len(names)]} for i in range(agents or 4)},
                "dealt": not agents,
            }
        return data

    @model_validator(mode="before")
    @classmethod
    def _of_their_kinds(cls, data: Any) -> Any:
        """Read the tables of hosts whose kind has keys of its own."""
        hosts: Any = data.get("hosts")
        if not isinstance(hosts, Mapping):
            return data
        tables = cast("Mapping[str, Any]", hosts)
        return {**data, "hosts": {name: of_its_kind(name, t) for name, t in tables.items()}}

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        for name, agent in self.agents.items():
            if agent.host not in self.hosts:
                suggestion = nearest(agent.host, self.hosts)
                raise ValueError(
                    f"agents.{name}.host is {agent.host!r}: {suggestion}; or add hosts.{agent.host}"
                )
        for agent in self.agents.values():
            elsewhere = self.hosts[agent.host].built_by == "api"
            agent.frozen = agent.frozen or elsewhere or agent.lag is not None
        check_policies(self.agents)
        check_lags(self.agents, self.hosts)
        if self.schedule != "constant" or self.warmup:
            if self.steps == 0:
                raise ValueError(
                    f"schedule = {self.schedule}, warmup = {self.warmup}: a schedule needs steps,"
                    " and steps = 0"
                )
            if self.warmup >= self.steps:
                raise ValueError(
                    f"warmup = {self.warmup}: learning rates would never arrive in steps ="
                    f" {self.steps}: lower it"
                )
        check_names(self.agents, self.hosts)
        for name, host in self.hosts.items():
            check_keys_of_kind(name, host, self.agents)
        return self


CHANGES = keys_that(Config, Key.CHANGES)
"""Keys of a run that may be changed when it goes on: how long it is (it is then what it would have
been from the start, but for what monitors ask), its trackers, and what becomes of an alarm.
"""
OF_TRAINING = keys_that(Config, Key.TRAINING)
"""Keys that say nothing of an evaluation."""
OWN_FILES = keys_that(Config, Key.OWN_FILE)
OWN_FILES_OF_HOSTS = keys_that(HostConfig, Key.OWN_FILE)
"""Keys that may name a file of the user's own, or a list of them."""


# --- whether the tables agree: `ValueError`s, as pydantic wants them


Agents = Mapping[str, AgentConfig]

ONLY_API = keys_that(ApiTable, Key.OF_API)
ONLY_WEIGHTS = keys_that(LocalTable, Key.OF_WEIGHTS)
ONLY_ADAPTERS = keys_that(LocalTable, Key.OF_ADAPTERS)
"""Keys of agents as well."""
ONLY_RAY = keys_that(RayTable, Key.OF_RAY)

NAME = re.compile(r"\w([\w .+-]*[\w+-])?")
"""Name of a host or policy: what a folder may be called, and no path that leads elsewhere."""
FILES = (".json", ".toml", ".md", ".py")
"""Names of what lies beside the folders of policies end so."""
BESIDE = ("manifest", "state", "monitors")
"""Files of a checkpoint, beside those that are named after hosts."""


def check_policies(agents: Agents) -> None:
    """Refuse agents that share a policy and say different things of it; what only one of them says
    holds for all.
    """
    first: dict[tuple[str, str], str] = {}
    for name, agent in agents.items():
        policy = agent.policy_name(name)
        for key in ("host", "base", "lr", *ONLY_ADAPTERS):
            value = getattr(agent, key)
            other = first.setdefault((policy, key), name) if value is not None else name
            if value != getattr(agents[other], key):
                raise ValueError(
                    f"agents.{name}.{key} is {value!r}, and agents.{other}.{key}, of the same"
                    f" policy {policy}, is {getattr(agents[other], key)!r}: make them equal, or"
                    " give one of them another policy"
                )


def check_lags(agents: Agents, hosts: Mapping[str, HostConfig]) -> None:
    """Refuse an earlier self of nobody, of itself or of another host's policy, and keys of its
    own.
    """
    leaders = {
        agent.policy_name(name): agent for name, agent in agents.items() if agent.lag is None
    }
    for name, agent in agents.items():
        if agent.lag is None:
            continue
        key = f"agents.{name}.lag"
        if agent.policy in (None, name):
            raise ValueError(
                f"{key}: a policy cannot lag behind itself: set agents.{name}.policy to the policy"
                f" of another agent ({', '.join(leaders) or 'name one: none is left here'})"
            )
        leader = leaders.get(agent.policy)
        if name in leaders:
            raise ValueError(
                f"policy {name!r} belongs to an earlier self (agents.{name}.lag): name the other"
                " one differently"
            )
        if leader is None:
            raise ValueError(
                f"agents.{name}.policy is {agent.policy!r}, which nobody without a lag speaks with:"
                f" {nearest(agent.policy, leaders)}"
            )
        if leader.host != agent.host or not hosts[agent.host].here:
            raise ValueError(
                f"{key}: policy {agent.policy!r} is at host {leader.host}, and an earlier self is"
                " kept where its policy learns: a host with weights here, the same for both"
            )
        for inherited in ("base", "lr", *ONLY_ADAPTERS):
            if getattr(agent, inherited) is not None:
                raise ValueError(
                    f"agents.{name}.{inherited}: an earlier self is what its policy was: leave"
                    " it out"
                )


def check_names(agents: Agents, hosts: Iterable[str]) -> None:
    """Refuse a name of a host or policy that no folder, or no key, can be called, and an
    agent that answers of the whole team would be taken for.
    """
    if "team" in agents:
        raise ValueError(
            "agent 'team': answers and figures of the whole team are called so: name it"
            " differently, such as a0"
        )
    policies = {agent.policy_name(name) for name, agent in agents.items()}
    for kind, name in [*(("host", host) for host in hosts), *(("policy", p) for p in policies)]:
        of_host = kind == "host" and ("." in name or name in BESIDE)
        if not NAME.fullmatch(name) or name.endswith(FILES) or of_host:
            raise ValueError(
                f"{kind} {name!r}: files are named after it: take letters, digits, - and _,"
                " such as a0"
            )
    for kind, names in (("hosts", set(hosts)), ("policies", policies)):
        if len({name.casefold() for name in names}) < len(names):  # macOS and Windows
            raise ValueError(
                f"{kind} {', '.join(sorted(names))}: two would share files where capitals do not"
                " count: rename one"
            )


def own_keys_of(host: HostConfig) -> Collection[str]:
    """Keys that a host of the user's own declares in the `Table` of its file."""
    if type(host) is HostConfig:
        return ()
    table: type[BaseModel] = type(host).__bases__[0]
    return table.model_fields.keys()


def check_keys_of_kind(name: str, host: HostConfig, agents: Agents) -> None:
    """Refuse a key that says nothing at this kind of host, or needs another one; those that its
    file declares say what the file makes of them.
    """
    own = own_keys_of(host)
    if host.kind in ("local", "ray", "api") and (host.kind == "api") != (host.api is not None):
        raise ValueError(
            f"hosts.{name}.kind is {host.kind!r}, and a host behind an API is one with"
            f" hosts.{name}.api: leave hosts.{name}.kind out"
        )
    if host.learner == "full" or not host.here:
        tables: dict[str, BaseModel] = {f"hosts.{name}": host}
        tables |= {f"agents.{a}": agent for a, agent in agents.items() if agent.host == name}
        for key in ONLY_ADAPTERS:
            for table_name, table in tables.items():
                if getattr(table, key) is not None and not (table is host and key in own):
                    raise ValueError(
                        f"{table_name}.{key} is for hosts.{name}.learner=adapters: set that, or"
                        " leave it out"
                    )
    for key in ONLY_API:
        if key in own:
            continue
        if getattr(host, key) != type(host).model_fields[key].default and host.api is None:
            raise ValueError(
                f"hosts.{name}.{key} is for a host behind an API: set hosts.{name}.api, or leave it"
                " out"
            )
    for key in ONLY_WEIGHTS if host.built_by == "api" else ():
        if getattr(host, key) != type(host).model_fields[key].default:
            raise ValueError(
                f"hosts.{name}.{key} is for a host with weights of our own, and says nothing to one"
                " behind an API: leave it out"
            )
    for key in ONLY_RAY:
        if key not in own and getattr(host, key) is not None and not host.elsewhere:
            raise ValueError(
                f"hosts.{name}.{key} is for a host elsewhere: set hosts.{name}.kind=ray, or leave"
                f" it out (in what goes on, hosts.{name}.{key}=none)"
            )
    if host.elsewhere and host.device.startswith("cuda:"):
        raise ValueError(
            f"hosts.{name}.device is {host.device}, and Ray chooses the GPU of an actor: set"
            f" hosts.{name}.device=cuda"
        )
    if host.budget_money is not None and host.price is None:
        raise ValueError(
            f"hosts.{name}.budget_money needs a price: set hosts.{name}.price = [prompt, generated]"
        )


# --- reading


def read(
    path: str | Path | None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    shared: bool | None = None,
) -> Config:
    """A config from a TOML file (or a folder with `team.toml`) and `key=value` pairs (dotted keys;
    values as in TOML, otherwise text). Places are relative to the file, in pairs to where the
    command runs. Pairs that name another task leave out the file's options of its own.

    `shared`: whether the file may be somebody else's, and asks by itself for no secret, foreign
    code or missing sandbox; by default a folder and a file called `team.toml` may.
    """
    data: dict[str, Any] = {}
    settings = settings_of(overrides)
    if path is not None:
        if shared is None:  # what people share, rather than a config of one's own
            shared = Path(path).is_dir() or Path(path).name == TEAM
        if Path(path).is_dir() and run_at(str(path)) is not None:
            raise UserMistake(
                f"config {path} is a run: go on with it by `{command()} resume"
                f" {shlex.quote(str(path))}`"
            )
        path = team_file(path) or path
        data = _table(path)
        _to_the_host(data)
        if shared:
            names = _host_names(data)
            check_trust(
                data, path, [host_key(key, names) if len(names) == 1 else key for key in settings]
            )
        anchor(data, Path(path).parent)
    if settings.get("task", data.get("task")) != data.get("task"):
        data.pop("task_options", None)  # those of the file's own task, which is another one
    for key, value in settings.items():
        put(data, key, value)
    names = _host_names(data)
    if len(names) == 1:
        with_host_keys(settings, names)  # no key in two spellings
    _to_the_host(data)
    return checked(data)


def settings_of(pairs: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value, of `key=value` pairs; a mapping is one already."""
    if isinstance(pairs, Mapping):
        return dict(cast("Mapping[str, Any]", pairs))
    return dict(map(parse_pair, pairs))


def settings_from(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as settings: `__` stands for the dot of a nested key, None is no budget."""
    settings: dict[str, Any] = {}
    for name, value in keys.items():
        key = name.replace("__", ".")
        if value is None and key.rpartition(".")[2] in ("budget_tokens", "budget_money"):
            value = "none"
        if value is None:
            raise UserMistake(f"{key}=None: None is no value of this key here: leave it out")
        settings[key] = str(value) if isinstance(value, Path) else value
    return settings


def host_key(key: str, hosts: Sequence[str]) -> str:
    """`hosts.home.base` for `base`, where there is one host; any other key as it is."""
    if key not in HostConfig.model_fields or key in Config.model_fields:
        return key
    if len(hosts) != 1:
        raise UserMistake(
            f"{key} belongs to a host, and here are {', '.join(hosts)}: set hosts.<name>.{key}"
        )
    return f"hosts.{hosts[0]}.{key}"


def with_host_keys(settings: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """Settings with `host_key` for their keys. UserMistake for one key in two spellings."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        path = host_key(key, hosts)
        if path in found:
            raise UserMistake(f"{path.rpartition('.')[2]} and {path} are one key: give one of them")
        found[path] = value
    return found


def _to_the_host(data: dict[str, Any]) -> None:
    """Move keys of hosts from the top level, where people write them, to the only host that there
    is.
    """
    names = _host_names(data)
    for key in list(data) if names else ():
        if (host_path := host_key(key, names)) != key:
            put(data, host_path, data.pop(key))


def _table(path: str | Path) -> dict[str, Any]:
    """Read a config file, unchecked."""
    try:
        return files.read_toml(Path(path))
    except OSError as error:
        raise UserMistake(
            f"config {path}: {error.strerror}; keys are set by key=value, without spaces"
        ) from error
    except ValueError as error:
        raise UserMistake(f"config {path} is not TOML: {error}") from error


def hosts_named_in(path: str | Path) -> list[str]:
    """The names of a config file's hosts; nothing that it names is looked at, or run."""
    return _host_names(_table(team_file(path) or path))


def _host_names(data: Mapping[str, Any]) -> list[str]:
    """The hosts of a config that is not checked yet; none where `hosts` is no table, which is an
    error when it is checked.
    """
    hosts: Any = data.get("hosts") or {"home": {}}
    return list(cast("Mapping[str, Any]", hosts)) if isinstance(hosts, Mapping) else []


def values_of(config: Config, keys: Iterable[str]) -> dict[str, Any]:
    """Return dotted keys with their values in a checked config."""
    values: dict[str, Any] = {}
    for key in keys:
        value: Any = config.model_dump()
        for part in key.split("."):
            value = value[part]
        values[key] = value
    return values


def checked(data: Mapping[str, Any]) -> Config:
    """A config from plain tables; a mistake in them is one line."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise UserMistake(explain(error, partial(_keys_beside, data))) from error


def _keys_beside(data: Mapping[str, Any], key: Sequence[str | int]) -> Iterable[str]:
    """The keys of the table that a key, given as the parts of its path, stands in; at the top level
    also those of the only host (`host_key`).
    """
    tables = {"hosts": HostConfig, "agents": AgentConfig}
    if len(key) > 1 and key[0] in tables:
        return tables[str(key[0])].model_fields
    of_run = [name for name, field in Config.model_fields.items() if not field.exclude]
    return {*of_run, *HostConfig.model_fields} if len(_host_names(data)) == 1 else of_run


def parse_pair(text: str) -> tuple[str, Any]:
    """`key=value`, the value as in TOML, otherwise text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserMistake(f"{text!r} is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    except (RecursionError, ValueError) as error:  # a number without end
        raise UserMistake(f"{key.strip()}: its value cannot be read: {error}") from error


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in tables within tables."""
    *path, last = key.split(".")
    for part in path:
        table: Any = data.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserMistake(f"{key}: {part} is {table!r}, not a table")
        data = cast("dict[str, Any]", table)
    data[last] = value


# --- what somebody else's file may not ask for by itself


HERE = ("localhost", "127.0.0.1", "::1")
"""Names of this machine."""


def check_trust(data: Mapping[str, Any], path: str | Path, asked_for: Sequence[str]) -> None:
    """Refuse what the file at `path` wants and nobody asked for; `asked_for` are the
    keys of the command line.
    """
    for key, value, why in _wishes(data, Path(path).parent):
        parts = key.split(".")
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        if not prefixes & set(asked_for):
            raise UserMistake(
                f"{path}: {key} = {value} {why}; if you want that, say so on the command line:"
                f" {shlex.quote(f'{key}={value}')}"
            )


def consents(path: Path) -> list[str]:
    """The `key=value` pairs, ready for a shell, that a command line has to have for all that a file
    wants to be granted.
    """
    wishes = _wishes(_table(path), path.parent)
    return [shlex.quote(f"{key}={value}") for key, value, _ in wishes]


def _is_here(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return urlsplit(address).hostname in HERE
    except ValueError:  # which is told where the config is read
        return True


def _wishes(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str, str]]:
    """Key, value and meaning of everything in a config in `folder` that needs its reader's consent;
    paths are found from anywhere.
    """
    hosts: Any = data.get("hosts")
    for name, table in cast(
        "Mapping[str, Any]", hosts if isinstance(hosts, Mapping) else {}
    ).items():
        host = cast("Mapping[str, Any]", table if isinstance(table, Mapping) else {})
        headers = cast(
            "Mapping[str, Any]", named if isinstance(named := host.get("header_env"), dict) else {}
        )
        variables = {f"header_env.{header}": headers[header] for header in headers}
        if host.get("key_env") is not None:
            variables["key_env"] = host["key_env"]
        for key, variable in variables.items():
            target = host.get("api", "an address of its choice")
            yield (
                f"hosts.{name}.{key}",
                variable,
                f"would send what that environment variable holds to {target}",
            )
        if not variables and isinstance(address := host.get("api"), str) and not _is_here(address):
            yield f"hosts.{name}.api", address, "would send every discussion there"
        for key in OWN_FILES_OF_HOSTS:
            if names_file(target := host.get(key)):
                place = beside(str(target), folder)
                yield f"hosts.{name}.{key}", place, "would run the code in that file"
        # 1 and "yes" are read as true as well
        if host.get("trust_remote_code", False) is not False:
            yield (
                f"hosts.{name}.trust_remote_code",
                "true",
                f"would run code that comes with {host.get('base', 'its base')}",
            )
    # its method and its task are what the file is about
    for key in (key for key in OWN_FILES if key not in ("method", "task")):
        names = cast("list[Any]", data[key] if isinstance(data.get(key), list) else [])
        if any(map(names_file, names)):
            places = [beside(name, folder) if names_file(name) else name for name in names]
            yield key, json.dumps(places), "would run the code in that file"
    if data.get("sandbox", "auto") != "auto":
        yield "sandbox", "none", "would run programs that models write without walls"


# --- where the paths in a file lead


def from_here(key: str, value: Any) -> Any:
    """Anchor the value of a dotted key where the command runs."""
    data: dict[str, Any] = {}
    put(data, key, value)
    anchor_bases(data, Path.cwd())
    anchor_files(data, Path.cwd())
    for part in key.split("."):
        data = data[part]
    return data


def anchor(data: dict[str, Any], folder: Path) -> None:
    """Make paths from `folder` absolute, so that what a config names is found from anywhere.

    Bases, method, task and data that lie there are meant before those that the same words name from
    where the command runs; hub names and what is not there are left as they are.
    """
    if folder.resolve() != Path.cwd():
        anchor_bases(data, folder)
        anchor_files(data, folder)


def anchor_bases(data: dict[str, Any], folder: Path) -> None:
    """Make bases that lie in `folder` absolute; behind an API a base is a name only."""
    hosts = _tables(data, "hosts")
    elsewhere = {name for name, host in hosts.items() if not has_weights(host)}
    agents = _tables(data, "agents").values()
    with_bases = [host for name, host in hosts.items() if name not in elsewhere]
    with_bases += [agent for agent in agents if agent.get("host", "home") not in elsewhere]
    for table in with_bases:
        base = table.get("base")
        if isinstance(base, str) and not is_shipped(base):
            table["base"] = beside(base, folder)


def anchor_files(data: dict[str, Any], folder: Path) -> None:
    """Make absolute what else lies in `folder`: questions, texts of tools, the user's own code."""
    if isinstance(questions := data.get("data"), str):
        data["data"] = beside(questions, folder)
    for options in _tables(data, "tool_options").values():
        if isinstance(texts := options.get("folder"), str):
            options["folder"] = beside(texts, folder)
    tables = [(data, OWN_FILES)]
    tables += [(host, OWN_FILES_OF_HOSTS) for host in _tables(data, "hosts").values()]
    for table, keys in tables:
        for key in keys:
            value = table.get(key)
            if names_file(value):
                table[key] = beside(value, folder)
            elif isinstance(value, list):
                names = cast("list[Any]", value)
                table[key] = [beside(name, folder) if names_file(name) else name for name in names]


def _tables(data: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The tables below a key, by name; what is none is left out, and an error when it is
    checked.
    """
    below = data.get(key)
    if not isinstance(below, dict):
        return {}
    tables = cast("dict[str, Any]", below)
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def beside(name: str, folder: Path) -> str:
    """Resolve a path against `folder`; return it as it is where nothing lies there."""
    absolute = str((folder / name).resolve())
    if name and (Path(absolute).exists() or run_at(absolute) is not None):
        return absolute
    lost = name.startswith(("./", "../")) and not Path(name).exists() and run_at(name) is None
    # what is said of a path that leads nowhere names the place that was looked at
    return absolute if lost else name
