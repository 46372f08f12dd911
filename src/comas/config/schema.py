"""What a run is, as data: TOML + key=value -> a checked config. Unknown keys are errors that name
the nearest key.

Leaves out: what follows from the method, the task and the bases (`config.resolve`).
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from comas.config.named_places import Place, anchor
from comas.config.trust import check_trust, is_shared
from comas.models.sources import run_at, team_file
from comas.program import command
from comas.types import UserMistake


def _none(value: Any) -> Any:
    """`none` as a value: for what is to be left out again when something goes on."""
    return None if value == "none" else value


def _engine(value: Any) -> Any:
    """Runs from before engines had names say `torch` for what is `auto` now."""
    return "auto" if value == "torch" else value


Price = Annotated[float, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
"""Of Adam's moving averages."""
TOKENS_PER_PASS = 8192
"""Of seed models, and the most that other bases get by default."""
MAX_ROWS = 512
"""The same of rows that are decoded at once."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class HostConfig(_Table):
    """`[hosts.<name>]`: one owner of weights, or an endpoint where somebody else's
    models answer.
    """

    base: Place = "seed"
    """Of its policies: a shipped seed model, a folder, or a hub name; with `api` the model's name
    there.
    """
    learner: Literal["full", "adapters"] | None = None
    """What of a policy is trained: all of it, or an adapter on a base that the host's policies
    share; None is full for seed models (and runs that trained them so), otherwise adapters.
    """
    rank: int | None = Field(None, ge=1)
    """Of adapters; None is 16, or what an adapter has that is the base."""
    alpha: float | None = Field(None, gt=0)
    """An adapter counts alpha / rank times; None is twice the rank, or what an adapter has that is
    the base.
    """
    targets: list[str] | None = Field(None, min_length=1)
    """Names of linear layers (or ends of names) that adapters change; None is all but the head."""
    engine: Annotated[Place, BeforeValidator(_engine)] = "auto"
    """What samples: `hf`, `stacked`, or a file with `build(plan, models)`; auto is stacked for
    small plain Llamas of one shape on a CPU, otherwise hf.
    """
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; auto takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of sampling and of the learner's passes; auto is float32 on CPU, bfloat16 on a GPU.

    Trained weights are float32 always.
    """
    context: int | None = Field(None, ge=16)
    """Tokens that prompt and reply share; None is what the base has room for."""
    thinking: bool | None = None
    """Whether models that can think before they answer do so; None is what their template says."""
    max_rows: int | None = Field(None, ge=1)
    """Rows decoded at once; None is MAX_ROWS for seed models, otherwise what fits (`fitting`)."""
    compile: bool = False
    """Sample with torch.compile, where the engine does not stack small models: minutes at the start
    for fewer calls per token.
    """
    old_logprobs: Literal["recomputed", "sampled"] = "recomputed"
    """What the probability ratio of the loss, and the KL, call the old policy: the learner's own
    forward pass before the first update, or what the engine said while it sampled, which spares
    that pass.
    """
    tokens_per_pass: int | None = Field(None, ge=64)
    """Padded tokens in one forward and backward pass: bounds memory, changes nothing else. None is
    TOKENS_PER_PASS for seed models, otherwise what fits (`fitting`).
    """
    checkpointing: bool = False
    """Recompute activations in the backward pass: slower, smaller."""
    lr: float | None = Field(None, gt=0)
    """Overrides the shared one."""
    trust_remote_code: bool = False
    api: str | None = Field(None, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$")
    """Base URL of an OpenAI-compatible endpoint: no weights here, and its agents are frozen."""
    own: bool = False
    """Whether it is an instance of the caller's: `comas.train(hosts={"mine": MyHost()})`; the other
    keys of such a host say nothing.
    """
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
    budget_tokens: Annotated[int | None, BeforeValidator(_none)] = Field(None, ge=1)
    """Prompt and generated tokens, over all processes of a run; when they are spent the run stops.

    `none` is no budget.
    """
    budget_money: Annotated[float | None, BeforeValidator(_none)] = Field(None, gt=0)
    """The same in the unit of `price`."""

    @property
    def kind(self) -> Literal["local", "api", "own"]:
        """The module below `comas.hosts` that builds it; `own` is built by nobody."""
        if self.own:
            return "own"
        return "local" if self.api is None else "api"

    @property
    def here(self) -> bool:
        """Whether its weights are loaded in this process."""
        return self.kind == "local"


class AgentConfig(_Table):
    """`[agents.<name>]`: one member of the team; it has a policy of its own unless it names
    another's.
    """

    host: str = "home"
    base: Place | None = None
    """Overrides the host's."""
    policy: str | None = None
    """Share this policy (self-play); None is one of its own."""
    roles: list[str] | None = Field(None, min_length=1)
    frozen: bool = False
    """Always true at a host with `api`, whatever is written."""
    temperature: float | None = Field(None, gt=0)
    lr: float | None = Field(None, gt=0)
    """Overrides the host's; so do the next three."""
    rank: int | None = Field(None, ge=1)
    alpha: float | None = Field(None, gt=0)
    targets: list[str] | None = Field(None, min_length=1)


NAME = re.compile(r"\w([\w .+-]*[\w+-])?")
"""Of hosts and policies: what a folder may be called anywhere, and no path that leads elsewhere."""
FILES = (".json", ".toml", ".md", ".py")
"""Names of what lies beside the folders of policies end so."""
DEVICES = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices, whatever stands behind a dot."""


def _names_a_folder(name: str) -> bool:
    """Whether a folder may be called so on any system, and is not taken for
    something else there.
    """
    return (
        NAME.fullmatch(name) is not None
        and not name.endswith(FILES)
        and not DEVICES.fullmatch(name)
    )


class Config(_Table):
    """A run.

    Tables that belong to functions (`options credit loss kl task_options`) are checked by
    `resolve`.
    """

    method: Place = "comas"
    preset: str | None = None
    task: Place = "pick"
    data: Place | None = None
    """A file of questions, where the task reads one."""
    steps: int = Field(180, ge=0)
    tokens: int | None = Field(None, ge=1)
    """Stop after the step in which this many tokens have been generated, if that comes before
    `steps`.
    """
    seed: int = Field(0, ge=0)
    out: Place | None = None
    questions: int | None = Field(None, ge=1)
    """Per step; None is the preset's number, or 128."""
    samples: int | None = Field(None, ge=1)
    """Discussions per question; None is the method's own number."""
    temperature: float = Field(1.0, gt=0)
    max_tokens: int = Field(512, ge=1)
    """Room per reply, where neither `room` nor the task says otherwise."""
    room: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Room per reply and role."""
    epochs: int | None = Field(None, ge=1)
    minibatches: int | None = Field(None, ge=1)
    lr: float | None = Field(None, gt=0)
    """None is the recipe's: the embedded one for seed models, or one that the task ships."""
    betas: tuple[Beta, Beta] | None = None
    weight_decay: float | None = Field(None, ge=0)
    grad_norm: float | None = Field(None, gt=0)
    checkpoint_every: int = Field(20, ge=1)
    eval_every: int = Field(20, ge=0)
    """Steps between measurements on the validation split; 0 is never."""
    eval_questions: int = Field(128, ge=1)
    """For those; the measurements before and after the run take `test_questions` of the held-out
    split.
    """
    metrics: list[str] | None = None
    """Of each step, by name or file; None is all that are shipped, `pay` only where the task's
    verifier is quick.
    """
    test_questions: int | None = Field(None, ge=0)
    """0 leaves the measurements before and after out; None is 512 for seed models, otherwise 128.
    """
    eval_temperature: float = Field(0.7, ge=0)
    eval_top_p: float = Field(1.0, gt=0, le=1)
    sandbox: Literal["auto", "none"] = "auto"
    """Of programs that models write; none runs them without walls."""
    threads: int | None = Field(None, ge=1, le=4096)
    """Of torch; None is one per CPU that this process may use."""
    memory: float | None = Field(None, gt=0)
    """GB (of 10**9 bytes) that the run may take of each device that it uses; None is what is free
    when it starts.
    """
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
            names = (
                list(cast("Mapping[str, Any]", hosts))
                if hosts and isinstance(hosts, Mapping)
                else ["home"]
            )
            data = {
                **data,
                "agents": {f"a{i}": {"host": names[i % len(names)]} for i in range(agents or 4)},
            }
        return data

    @model_validator(mode="after")
    def _known_hosts(self) -> Config:
        for name, agent in self.agents.items():
            if agent.host not in self.hosts:
                raise ValueError(
                    f"agents.{name}.host is {agent.host!r}: {nearest(agent.host, self.hosts)}"
                )
            agent.frozen = agent.frozen or self.hosts[agent.host].api is not None
        homes: dict[str, str] = {}
        rates: dict[str, float] = {}
        for name, agent in self.agents.items():
            policy = name if agent.policy is None else agent.policy
            if homes.setdefault(policy, agent.host) != agent.host:
                raise ValueError(
                    f"policy {policy!r} is at hosts {homes[policy]} and {agent.host}: give it two"
                    " names"
                )
            if agent.lr is not None and rates.setdefault(policy, agent.lr) != agent.lr:
                raise ValueError(
                    f"agents.{name}.lr is {agent.lr:g}, but policy {policy!r} has lr"
                    f" {rates[policy]:g} already"
                )
        for kind, names in (("host", self.hosts), ("policy", homes)):
            if odd := [
                n for n in names if not _names_a_folder(n) or (kind, n) == ("host", "manifest")
            ]:
                raise ValueError(
                    f"{kind} {odd[0]!r}: files are named after it: take letters, digits, - and _,"
                    " such as a0"
                )
        if dotted := [name for name in self.hosts if "." in name]:
            other = dotted[0].replace(".", "-")
            raise ValueError(
                f"host {dotted[0]!r}: a dot divides the parts of a key, as in hosts.NAME.base: name"
                f" it {other}"
            )
        folders: dict[str, str] = {}
        for policy in homes:  # macOS and Windows
            if (other := folders.setdefault(policy.casefold(), policy)) != policy:
                raise ValueError(
                    f"policies {other!r} and {policy!r} would share a folder where capitals do not"
                    " count: rename one"
                )
        for name, host in self.hosts.items():
            for key in (
                ("rank", "alpha", "targets") if host.learner == "full" or not host.here else ()
            ):
                tables = {f"hosts.{name}": host} | {
                    f"agents.{n}": a for n, a in self.agents.items() if a.host == name
                }
                if given := [n for n, table in tables.items() if getattr(table, key) is not None]:
                    raise ValueError(
                        f"{given[0]}.{key} is for hosts.{name}.learner=adapters: set that, or leave"
                        " it out"
                    )
            for key in ("key_env", "price", "budget_tokens", "budget_money"):
                if getattr(host, key) is not None and host.api is None:
                    raise ValueError(
                        f"hosts.{name}.{key} is for a host behind an API: set hosts.{name}.api, or"
                        " leave it out"
                    )
            if host.budget_money is not None and host.price is None:
                raise ValueError(
                    f"hosts.{name}.budget_money needs a price: set hosts.{name}.price = [prompt,"
                    " generated]"
                )
        return self


def read(
    path: str | Path | None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    shared: bool | None = None,
) -> Config:
    """A config from a TOML file (or a folder with `team.toml`) and `key=value` pairs (dotted keys;
    values as in TOML, otherwise text). Places are relative to the file, in pairs to where the
    command runs.

    `shared`: whether the file may be somebody else's, and asks by itself for no secret, foreign
    code or missing sandbox; by default a folder and a file called `team.toml` may.
    """
    data: dict[str, Any] = {}
    pairs = list(
        overrides.items() if isinstance(overrides, Mapping) else map(parse_pair, overrides)
    )
    if path is not None:
        shared = is_shared(path) if shared is None else shared
        if Path(path).is_dir() and run_at(str(path)) is not None:
            raise UserMistake(
                f"config {path} is a run: go on with it by `{command()} resume"
                f" {shlex.quote(str(path))}`"
            )
        path = team_file(path) or path
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise UserMistake(
                f"config {path}: {error.strerror}; keys are set by key=value, without spaces"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserMistake(f"config {path} is not TOML: {error}") from error
        _to_the_host(data)
        if shared:
            names = list(cast("Mapping[str, Any]", data.get("hosts") or {"home": {}}))
            check_trust(
                data, path, [host_key(key, names) if len(names) == 1 else key for key, _ in pairs]
            )
        anchor(data, Path(path).parent)
    for key, value in pairs:
        _put(data, key, value)
    _to_the_host(data)
    return checked(data)


def host_key(key: str, hosts: Sequence[str]) -> str:
    """`hosts.home.base` for `base`, where there is one host; any other key as it is."""
    if key not in HostConfig.model_fields or key in Config.model_fields:
        return key
    if len(hosts) != 1:
        raise UserMistake(
            f"{key} belongs to a host, and here are {', '.join(hosts)}: set hosts.<name>.{key}"
        )
    return f"hosts.{hosts[0]}.{key}"


def lifted(pairs: Iterable[str], hosts: Sequence[str]) -> list[str]:
    """`key=value` pairs with `host_key` for their keys."""
    parts = [pair.partition("=") for pair in pairs]
    return [host_key(key, hosts) + equals + value for key, equals, value in parts]


def _to_the_host(data: dict[str, Any]) -> None:
    """Move keys of hosts from the top level, where people write them, to the only host that there
    is.
    """
    hosts: Any = data.get("hosts") or {"home": {}}
    if not isinstance(hosts, Mapping):
        return  # said of it when it is checked
    names = list(cast("Mapping[str, Any]", hosts))
    for key in list(data):
        if (place := host_key(key, names)) != key:
            _put(data, place, data.pop(key))


def values_of(config: Config, keys: Iterable[str]) -> dict[str, Any]:
    """Return dotted keys with their values in a checked config; `none` stands for None."""
    found: dict[str, Any] = {}
    for key in keys:
        value: Any = config.model_dump()
        for part in key.split("."):
            value = value[part]
        found[key] = "none" if value is None else value
    return found


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
        table = (
            {"hosts": HostConfig, "agents": AgentConfig}.get(str(first["loc"][0]), Config)
            if len(first["loc"]) > 1
            else Config
        )
        if last in ELSEWHERE:
            return f"unknown key {place}: did you mean {ELSEWHERE[str(last)]}?"
        return f"unknown key {place}: {nearest(str(last), table.model_fields)}"
    if first["loc"] and first["loc"][-1] in SECRETIVE:
        return f"{place}: {SECRETIVE[str(first['loc'][-1])]}"
    said = first["msg"].removeprefix("Value error, ")
    if first["type"] == "list_type" and isinstance(first["input"], str):
        said = f"a list is wanted: {json.dumps(first['input'].split(','))}"
    return f"{place} = {first['input']!r}: {said}" if place else said


ELSEWHERE = {
    "model": "base",
    "model_name": "base",
    "model_name_or_path": "base",
    "learning_rate": "lr",
    "batch_size": "questions",
    "num_agents": "agents",
    "n_agents": "agents",
    "lora_rank": "rank",
    "lora_r": "rank",
    "lora_alpha": "alpha",
    "gpu": "device",
    "max_steps": "steps",
    "dataset": "task",
    "output_dir": "out",
    "num_generations": "samples",
    "max_new_tokens": "max_tokens",
}
"""What keys are called in other libraries -> what they are called here."""
SECRETIVE = {
    "key_env": (
        "the name of an environment variable is wanted, never the key itself (letters, digits"
        " and _)"
    ),
    "api": (
        "wanted is http(s)://host[:port]/path without a user, a password, ? or #: a key belongs"
        " into the variable of key_env"
    ),
}
"""Keys whose value may be a secret in the wrong place: what is said of a mistake does not repeat
it.
"""


def nearest(name: str, known: Any) -> str:
    """What may have been meant by a name that is not known, in words."""
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return (
        f"did you mean {close[0]}?" if close else f"one of {', '.join(sorted(known)) or '(none)'}"
    )
