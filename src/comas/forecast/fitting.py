"""Whether a run fits into memory, and the defaults of `tokens_per_pass`, `max_rows` and
`checkpointing` with which it does.

The estimate (`memory.host_needs`) is compared with what the machine can give (`machine`) or the
user allows (`memory`). Defaults are powers of two, so that a little more or less free memory does
not change them. Leaves out: trying, time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from comas.config.policies import Resolved
from comas.config.schema import Config, HostConfig
from comas.forecast.at_once import check_weights, device_of
from comas.forecast.disk import check_disk
from comas.forecast.fit import Fit, HostFit, Needs, kept_bytes, learning_bytes, sampling_bytes
from comas.forecast.memory import (
    host_needs,
    longest_row,
    question_tokens,
)
from comas.forecast.precision import with_dtypes
from comas.hosts.local_table import MAX_ROWS, TOKENS_PER_PASS
from comas.machine import Memory, memory_of
from comas.types import UserMistake

SHARES = {"cpu": 0.5, "gpu": 0.8, "allowed": 0.9}
"""Of the usable memory, what defaults aim at: the estimate is off by a tenth, and a CPU's memory is
for others too.

`allowed` is of what the config's `memory` says.
"""
LEAST_TOKENS = 256
"""A pass of fewer tokens is hardly smaller: it takes one row at least."""
PASS_ON_CPU = 1024
"""Tokens of a pass beyond which a CPU is no faster: SmolLM2-135M learnt 195, 223, 230 and 231
tokens per processor second in passes of 256, 512, 1024 and 2048.
"""
ROWS_ON_CPU = 64
"""Rows at once beyond which a CPU samples no faster: 256 replies of SmolLM2-135M's shape came at
86, 92 and 87 tokens per processor second with 64, 128 and 256 rows at once.
"""
CAREFUL = {"tokens_per_pass": PASS_ON_CPU, "max_rows": 64}
"""Where nothing can be estimated, or nobody says how much memory there is."""
AMPLE = 8e9
"""Bytes that teams of seed models never need by their defaults: with so many free nothing has to be
estimated.
"""


def fit(resolved: Resolved, *, learn: bool = True, all_hosts: bool = False) -> tuple[Resolved, Fit]:
    """The config with `tokens_per_pass`, `max_rows` and `checkpointing` of every host, and what it
    takes with them.

    Values that the config has stay, whatever the memory is: a run that goes on is the same run.
    Hosts that certainly fit are estimated with `all_hosts` only.
    """
    config = resolved.config
    inhabited = [name for name, host in config.hosts.items() if host.here and resolved.at(name)]
    devices = {
        name: device_of(config.hosts[name])
        for name in inhabited
        if config.hosts[name].on_this_machine
    }
    memory = _memory(config, list(devices.values()))
    hosts = [_far(config, name) for name in inhabited if name not in devices]
    chosen = {host.name: _closed(config.hosts[host.name], host.chosen) for host in hosts}
    for name, device in devices.items():
        usable = memory[device].usable
        if not all_hosts and _is_ample(resolved, name, usable, len(devices)):
            continue
        room = None
        if usable is not None:
            beside = list(devices.values()).count(device)
            room = _share(config, device) * usable / beside
        host = _fit_host(resolved, name, device, room, learn)
        hosts.append(host)
        chosen[name] = _closed(config.hosts[name], host.chosen)
    config = config.model_copy(update={"hosts": {**config.hosts, **chosen}})
    return resolved.with_config(config), Fit(hosts, memory, config.memory is not None)


def _far(config: Config, name: str) -> HostFit:
    """A host on another machine, whose memory nobody knows here: careful values for open keys."""
    host = config.hosts[name]
    open_keys = {key: value for key, value in CAREFUL.items() if getattr(host, key) is None}
    why = f"it is on another machine, where={host.where}" if open_keys else None
    return HostFit(name, host.where, {}, why, open_keys)


def _closed(host: HostConfig, chosen: Mapping[str, int]) -> HostConfig:
    """The host with what was chosen; activations are recomputed only where that was."""
    recomputing = {"checkpointing": False} if host.checkpointing is None else {}
    return host.model_copy(update={**recomputing, **chosen})


def _memory(config: Config, devices: Sequence[str]) -> dict[str, Memory]:
    """Device -> what it can give now, or what the config allows."""
    if config.memory is None:
        return {device: memory_of(device) for device in dict.fromkeys(devices)}
    allowed = int(config.memory * 1e9)
    return dict.fromkeys(devices, Memory(allowed, allowed))


def _share(config: Config, device: str) -> float:
    """Of the usable memory, what defaults aim at."""
    if config.memory is not None:
        return SHARES["allowed"]
    return SHARES["cpu" if device == "cpu" else "gpu"]


def resumed(resolved: Resolved, note: Callable[[str], None]) -> Resolved:
    """The config of a run that goes on with the values that it has; a note where they may be too
    much by now.
    """
    resolved, found = fit(resolved)
    for device in found.too_large():
        note(f"the run may not fit into memory now: {found.compared(device)}")
    for warning in found.tight_notes():
        note(warning)
    return resolved


def filled(resolved: Resolved, learn: bool) -> Resolved:
    """The same config with the two defaults, where one of them is open."""
    hosts = [host for host in resolved.config.hosts.values() if host.here]
    if any(host.tokens_per_pass is None or host.max_rows is None for host in hosts):
        return fit(resolved, learn=learn)[0]
    return resolved


def fitted(resolved: Resolved, note: Callable[[str], None]) -> Resolved:
    """The config that a new run keeps: with the two defaults, which are told; an error where it
    does not fit into memory or onto the disk.
    """
    check_weights(resolved)
    resolved = with_dtypes(resolved, note)
    resolved, found = fit(resolved)
    check(found, resolved)
    for line in found.notes():
        note(line)
    check_disk(resolved)
    return resolved


def check(found: Fit, resolved: Resolved) -> None:
    """An error where a device cannot hold its hosts; it names keys with which it could."""
    for device in found.too_large():
        keys = remedy(found, device, resolved)
        raise UserMistake(f"the run does not fit into memory: {found.compared(device)}: {keys}")


def remedy(found: Fit, device: str, resolved: Resolved) -> str:
    """Keys that would make the hosts of a device fit, each tried by the estimate, the mildest
    first.
    """
    names = [host.name for host in found.hosts if host.device == device and host.needs]
    changed = resolved
    pairs: dict[str, str] = {}
    for change in (_lower, _recompute, _halve, _shorten):
        for name in names:
            changed, keys = change(changed, name)
            pairs |= keys
        again, fitted = fit(changed)
        for host in fitted.hosts:
            pairs |= _lowered(resolved.config, host)
        if pairs and not fitted.too_large():
            settings = " ".join(f"{key}={value}" for key, value in pairs.items())
            return f"set {settings}"
        hosts = {name: _opened(host) for name, host in again.config.hosts.items()}
        changed = again.with_config(again.config.model_copy(update={"hosts": hosts}))
    return (
        "no setting makes it fit; have fewer agents, take a smaller base, or set memory=GB where"
        " there is more"
    )


def _lowered(config: Config, host: HostFit) -> dict[str, str]:
    """The keys that the user has to lower; an open key finds its value by itself."""
    lowered: dict[str, str] = {}
    for key, value in host.chosen.items():
        configured = getattr(config.hosts[host.name], key)
        if configured is not None and value < configured:
            lowered[f"hosts.{host.name}.{key}"] = str(value)
    return lowered


Change = tuple[Resolved, dict[str, str]]


def _with(resolved: Resolved, name: str, **keys: Any) -> Resolved:
    config = resolved.config
    host = config.hosts[name].model_copy(update=keys)
    return resolved.with_config(config.model_copy(update={"hosts": {**config.hosts, name: host}}))


def _opened(host: HostConfig) -> HostConfig:
    """The host without values for the two keys."""
    if not host.here:
        return host
    return host.model_copy(update={"tokens_per_pass": None, "max_rows": None})


def _lower(resolved: Resolved, name: str) -> Change:
    return _with(resolved, name, tokens_per_pass=None, max_rows=None), {}


def _recompute(resolved: Resolved, name: str) -> Change:
    if resolved.config.hosts[name].checkpointing:
        return resolved, {}
    return _with(resolved, name, checkpointing=True), {f"hosts.{name}.checkpointing": "true"}


def _halve(resolved: Resolved, name: str) -> Change:
    if resolved.config.hosts[name].dtype == "bfloat16":
        return resolved, {}
    return _with(resolved, name, dtype="bfloat16"), {f"hosts.{name}.dtype": "bfloat16"}


def _shorten(resolved: Resolved, name: str) -> Change:
    """A context in which a question and its longest reply still have room."""
    least, longest = longest_row(resolved, name)
    if least >= (resolved.config.hosts[name].context or longest):
        return resolved, {}
    return _with(resolved, name, context=least), {f"hosts.{name}.context": str(least)}


def _fit_host(
    resolved: Resolved, name: str, device: str, room: float | None, learn: bool
) -> HostFit:
    """The host with values for its open keys; `room` is in bytes, None where nobody knows.

    Activations are recomputed only where even the smallest passes have too little room otherwise.
    """
    kept = _fit_open(resolved, name, device, room, learn)
    host = resolved.config.hosts[name]
    enough = room is None or not kept.needs or _part("tokens_per_pass", kept.needs) <= room
    if enough or not learn or host.checkpointing is not None or host.tokens_per_pass is not None:
        return kept
    recomputing = _with(resolved, name, checkpointing=True)
    smaller = _fit_open(recomputing, name, device, room, learn)
    if not smaller.needs or smaller.peak >= kept.peak:
        return kept
    return replace(smaller, chosen={**smaller.chosen, "checkpointing": True})


def _fit_open(
    resolved: Resolved, name: str, device: str, room: float | None, learn: bool
) -> HostFit:
    """The host with values for what bounds passes and sampling."""
    host = resolved.config.hosts[name]
    most = most_of(device)
    open_keys = [key for key in CAREFUL if getattr(host, key) is None]
    question = question_tokens(resolved, name)

    def needs_of(values: Mapping[str, int]) -> Needs | str:
        return host_needs(_with(resolved, name, **values), name, learn=learn, question=question)

    careful = {key: CAREFUL[key] for key in open_keys}
    values = careful if room is None else {key: most[key] for key in open_keys}
    needs = needs_of(values)
    if isinstance(needs, str):
        return HostFit(name, device, {}, needs, careful)
    if room is None or not values or needs["bytes at the peak"] <= room:
        return HostFit(name, device, needs, None, values)
    nothing = dict.fromkeys(needs, 0)
    nothing["bytes at the peak"] = kept_bytes(needs)
    origin = (dict.fromkeys(open_keys, 0), nothing)
    values = interpolated(origin, (values, needs), room)
    smallest = {key: LEAST[key] for key in open_keys}
    while True:
        needs = _known(needs_of(values))
        over = [key for key in open_keys if _part(key, needs) > room and values[key] > LEAST[key]]
        if not over:
            return HostFit(name, device, needs, None, values)
        least = (smallest, _known(needs_of(smallest)))
        lower = interpolated(least, (values, needs), room)
        for key in over:
            half = max(LEAST[key], values[key] // 2)
            values[key] = min(lower[key], half)


def _known(needs: Needs | str) -> Needs:
    assert not isinstance(needs, str), "the same model could be estimated a moment ago"
    return needs


def most_of(device: str) -> dict[str, int]:
    """The values from which open keys are halved."""
    if device == "cpu":
        return {"tokens_per_pass": PASS_ON_CPU, "max_rows": ROWS_ON_CPU}
    return {"tokens_per_pass": TOKENS_PER_PASS, "max_rows": MAX_ROWS}


LEAST = {"tokens_per_pass": LEAST_TOKENS, "max_rows": 1}
PARTS: Mapping[str, Callable[[Needs], int]] = {
    "tokens_per_pass": learning_bytes,
    "max_rows": sampling_bytes,
}
Point = tuple[Mapping[str, int], Needs]
"""Values of open keys, and what a host needs with them."""


def _part(key: str, needs: Needs) -> int:
    """Bytes while the host does what a key bounds."""
    return kept_bytes(needs) + PARTS[key](needs)


def interpolated(least: Point, most: Point, room: float) -> dict[str, int]:
    """For each key the largest half of a half ... of its most with which the host should fit, on a
    line through both points.

    Rows beyond those that are ever sampled at once need nothing: the line ends at those.
    """
    least_values, least_needs = least
    most_values, most_needs = most
    found: dict[str, int] = {}
    for key, low in least_values.items():
        value = most_values[key]
        high = value
        if key == "max_rows":
            high = min(high, most_needs["rows sampled at once"])
        small = _part(key, least_needs)
        large = _part(key, most_needs)
        slope = (large - small) / max(1, high - low)
        while value > LEAST[key] and small + slope * (min(value, high) - low) > room:
            value //= 2
        found[key] = max(LEAST[key], value)
    return found


def _is_ample(resolved: Resolved, name: str, usable: int | None, hosts: int) -> bool:
    """Whether a host of seed models needs no look: with its own defaults it takes a tenth of what
    there is.
    """
    host = resolved.config.hosts[name]
    if usable is None or usable <= AMPLE * hosts:
        return False
    if not host.max_rows or host.max_rows > MAX_ROWS:
        return False
    if (host.tokens_per_pass or 0) > TOKENS_PER_PASS:
        return False
    return all(plan.source.seeded for plan in resolved.at(name))
