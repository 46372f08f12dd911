"""Whether a run fits into memory, and the defaults of `tokens_per_pass` and `max_rows` with which
it does; also whether it fits on the disk.

The estimate (`estimate.host_needs`) is compared with what the machine can give (`machine`) or the
user allows (`memory`). Defaults are powers of two, so that a little more or less free memory does
not change them. Leaves out: trying, time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.config.policies import Resolved
from comas.config.schema import Config, HostConfig
from comas.forecast.at_once import check_weights, device_of
from comas.forecast.memory import (
    estimate,
    host_needs,
    longest_row,
    question_tokens,
)
from comas.hosts.local_table import MAX_ROWS, TOKENS_PER_PASS
from comas.machine import Memory, memory_of
from comas.types import UserMistake

SHARES = {"cpu": 0.5, "gpu": 0.8, "allowed": 0.9}
"""Of the usable memory, what defaults aim at: the estimate is off by a tenth, and a CPU's memory is
for others too.

`allowed` is of what the config's `memory` says.
"""
TIGHT = 0.9
"""Above this share a run is warned of."""
LEAST_TOKENS = 256
"""A pass of fewer tokens is hardly smaller: it takes one row at least."""
CAREFUL = {"tokens_per_pass": 2048, "max_rows": 64}
"""Where nothing can be estimated, or nobody says how much memory there is."""
AMPLE = 8e9
"""Bytes that teams of seed models never need by their defaults: with so many free nothing has to be
estimated.
"""

Needs = dict[str, int]


@dataclass(frozen=True)
class HostFit:
    """What one host with weights takes, by the estimate."""

    name: str
    device: str
    needs: Needs
    """Bytes by what they are for; empty where that is unknown."""
    unknown: str | None = None
    """Why, then."""
    chosen: Mapping[str, int] = field(default_factory=dict[str, int])
    """Keys that had no value, and what they were given."""

    @property
    def peak(self) -> int:
        """Bytes."""
        return self.needs.get("bytes at the peak", 0)

    @property
    def busiest(self) -> str:
        """What the host does at its peak."""
        return "learning" if learning_bytes(self.needs) > sampling_bytes(self.needs) else "sampling"


@dataclass(frozen=True)
class Fit:
    """A run's hosts against the memory of the devices that they are on."""

    hosts: Sequence[HostFit]
    memory: Mapping[str, Memory]
    """Device -> what it can give now, or what the config allows."""
    allowed: bool = False
    """Whether the config says how much it may be."""

    def peak_of(self, device: str) -> int:
        """Bytes at the peak of all hosts on a device: they work side by side."""
        return sum(host.peak for host in self.hosts if host.device == device)

    def share(self, device: str) -> float:
        """Of what the device can give; 0 where that is unknown."""
        usable = self.memory[device].usable
        return self.peak_of(device) / max(1, usable) if usable is not None else 0.0

    def too_large(self) -> list[str]:
        """Devices that cannot hold what is on them."""
        return [device for device in self.memory if self.share(device) > 1]

    def tight(self) -> list[str]:
        """Devices that hold it with little to spare."""
        return [device for device in self.memory if TIGHT < self.share(device) <= 1]

    def compared(self, device: str) -> str:
        """`about 7.6 GB at the peak (learning) of 21.4 GB free on the CPU`."""
        here = [host for host in self.hosts if host.device == device and host.needs]
        doing = ", ".join(dict.fromkeys(host.busiest for host in here))
        usable = self.memory[device].usable or 0
        there = (
            f"{usable / 1e9:.1f} GB that memory={usable / 1e9:g} allows"
            if self.allowed
            else str(self.memory[device])
        )
        place = "the CPU" if device == "cpu" else device
        return (
            f"about {self.peak_of(device) / 1e9:.1f} GB at the peak ({doing}), {there} on {place}"
        )

    def notes(self) -> list[str]:
        """What is said at the start: what was chosen and why, what is tight, what is not known."""
        said: list[str] = []
        for host in self.hosts:
            if host.unknown:
                given = ", ".join(f"{key}={value}" for key, value in host.chosen.items())
                said.append(
                    f"memory of host {host.name} is not known ({host.unknown})"
                    + (f": {given}" if given else "")
                )
        for device in self.memory:
            chosen = [
                f"hosts.{host.name}.{key}={value}"
                for host in self.hosts
                if host.device == device and host.needs
                for key, value in host.chosen.items()
            ]
            if chosen:
                said.append(
                    f"memory: {self.compared(device)}, with {', '.join(chosen)}, which follow from"
                    " that"
                )
        warning = "memory is tight: {}; lower {} if it runs out"
        return said + [
            warning.format(self.compared(device), self._knobs(device)) for device in self.tight()
        ]

    def _knobs(self, device: str) -> str:
        here = [host for host in self.hosts if host.device == device and host.needs]
        names = {"learning": "tokens_per_pass", "sampling": "max_rows"}
        return " and ".join(f"hosts.{host.name}.{names[host.busiest]}" for host in here)


def learning_bytes(needs: Needs) -> int:
    """Those of a learner's pass with what is alive beside it."""
    return sum(size for what, size in needs.items() if what.startswith("bytes of a learner's pass"))


def sampling_bytes(needs: Needs) -> int:
    """Those of sampling."""
    return needs.get("bytes of sampling, caches included", 0)


def kept_bytes(needs: Needs) -> int:
    """Those that are there whatever a host does."""
    return needs["bytes at the peak"] - max(learning_bytes(needs), sampling_bytes(needs))


def fit(resolved: Resolved, *, learn: bool = True, all_hosts: bool = False) -> tuple[Resolved, Fit]:
    """The config with `tokens_per_pass` and `max_rows` of every host, and what it takes with them.

    Values that the config has stay, whatever the memory is: a run that goes on is the same run.
    Hosts that certainly fit are estimated with `all_hosts` only.
    """
    config = resolved.config
    devices = {
        name: device_of(host)
        for name, host in config.hosts.items()
        if host.here and resolved.at(name)
    }
    known = {device: memory_of(device) for device in dict.fromkeys(devices.values())}
    if config.memory is not None:
        allowed = int(config.memory * 1e9)
        known = {device: Memory(allowed, allowed) for device in known}
    hosts: list[HostFit] = []
    chosen: dict[str, HostConfig] = {}
    for name, device in devices.items():
        usable = known[device].usable
        if not all_hosts and _is_ample(resolved, name, usable, len(devices)):
            continue
        beside = sum(other == device for other in devices.values())
        share = SHARES[
            "allowed" if config.memory is not None else "cpu" if device == "cpu" else "gpu"
        ]
        room = None if usable is None else share * usable / beside
        found = _fit_host(resolved, name, device, room, learn)
        hosts.append(found)
        chosen[name] = config.hosts[name].model_copy(update=dict(found.chosen))
    config = config.model_copy(update={"hosts": {**config.hosts, **chosen}})
    return resolved.with_config(config), Fit(hosts, known, config.memory is not None)


def resumed(resolved: Resolved, note: Callable[[str], None]) -> Resolved:
    """The config of a run that goes on with the values that it has; a note where they may be too
    much by now.
    """
    resolved, found = fit(resolved)
    for line in _warnings(found):
        note(line)
    return resolved


def _warnings(found: Fit) -> list[str]:
    said = [
        f"the run may not fit into memory now: {found.compared(device)}"
        for device in found.too_large()
    ]
    return said + [note for note in found.notes() if note.startswith("memory is tight")]


def filled(resolved: Resolved, learn: bool) -> Resolved:
    """The same config with the two defaults, where one of them is open."""
    open_keys = [
        h
        for h in resolved.config.hosts.values()
        if h.here and (h.tokens_per_pass is None or h.max_rows is None)
    ]
    return fit(resolved, learn=learn)[0] if open_keys else resolved


def fitted(resolved: Resolved, note: Callable[[str], None]) -> Resolved:
    """The config that a new run keeps: with the two defaults, which are told; an error where it
    does not fit into memory or onto the disk.
    """
    check_weights(resolved)
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
    said: dict[str, str] = {}
    for change in (_lower, _recompute, _halve, _shorten):
        for name in names:
            changed, keys = change(changed, name)
            said |= keys
        again, fitted = fit(changed)
        said |= {
            f"hosts.{h.name}.{k}": str(v)
            for h in fitted.hosts
            for k, v in h.chosen.items()
            if _lowered(resolved.config, h.name, k, v)
        }
        if said and not fitted.too_large():
            return f"set {' '.join(f'{key}={value}' for key, value in said.items())}"
        hosts = {name: _opened(host) for name, host in again.config.hosts.items()}
        changed = again.with_config(again.config.model_copy(update={"hosts": hosts}))
    return (
        "no setting makes it fit; have fewer agents, take a smaller base, or set memory=GB where"
        " there is more"
    )


def _lowered(config: Config, name: str, key: str, value: int) -> bool:
    """Whether the user has to lower this key; an open key finds its value by itself."""
    given = getattr(config.hosts[name], key)
    return given is not None and value < given


@dataclass(frozen=True)
class Disk:
    """What a run is going to write, and where, in bytes."""

    needed: int | None
    """None where the sizes of its models are not known before they are loaded."""
    free: int
    place: Path


def disk_of(resolved: Resolved) -> Disk:
    """Of a run with this config."""
    place = Path(resolved.config.out or "runs").resolve()
    free = shutil.disk_usage(next(p for p in (place, *place.parents) if p.exists())).free
    return Disk(estimate(resolved).get("bytes on disk"), free, place)


def check_disk(resolved: Resolved) -> None:
    """An error where the disk has less room than the run is going to need."""
    disk = disk_of(resolved)
    if disk.needed is not None and disk.needed > disk.free:
        raise UserMistake(
            f"the run needs about {disk.needed / 1e9:.2f} GB on disk and {disk.place} has"
            f" {disk.free / 1e9:.2f} GB free: free some, choose another out, or fewer or smaller"
            " agents"
        )


Change = tuple[Resolved, dict[str, str]]


def _with(resolved: Resolved, name: str, **keys: Any) -> Resolved:
    config = resolved.config
    host = config.hosts[name].model_copy(update=keys)
    return resolved.with_config(config.model_copy(update={"hosts": {**config.hosts, name: host}}))


def _opened(host: HostConfig) -> HostConfig:
    return (
        host
        if not host.here
        else host.model_copy(update={"tokens_per_pass": None, "max_rows": None})
    )


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
    """The host with values for its open keys; `room` is in bytes, None where nobody knows."""
    host = resolved.config.hosts[name]
    open_keys = [key for key in CAREFUL if getattr(host, key) is None]
    question = question_tokens(resolved, name)

    def needs_of(values: Mapping[str, int]) -> Needs | str:
        return host_needs(_with(resolved, name, **values), name, learn=learn, question=question)

    values = {key: CAREFUL[key] if room is None else MOST[key] for key in open_keys}
    needs = needs_of(values)
    if isinstance(needs, str):
        return HostFit(name, device, {}, needs, {key: CAREFUL[key] for key in open_keys})
    if room is None or not values or needs["bytes at the peak"] <= room:
        return HostFit(name, device, needs, None, values)
    nothing = {
        **dict.fromkeys(needs, 0),
        "bytes at the peak": kept_bytes(needs),
        "rows sampled at once": 0,
    }
    values = interpolated((dict.fromkeys(open_keys, 0), nothing), (values, needs), room)
    while True:
        needs = _known(needs_of(values))
        over = {key for key in open_keys if _part(key, needs) > room and values[key] > LEAST[key]}
        if not over:
            return HostFit(name, device, needs, None, values)
        smallest = {key: LEAST[key] for key in open_keys}
        lower = interpolated((smallest, _known(needs_of(smallest))), (values, needs), room)
        values = {
            key: min(lower[key], max(LEAST[key], values[key] // 2)) if key in over else values[key]
            for key in open_keys
        }


def _known(needs: Needs | str) -> Needs:
    assert not isinstance(needs, str), "the same model could be estimated a moment ago"
    return needs


MOST = {"tokens_per_pass": TOKENS_PER_PASS, "max_rows": MAX_ROWS}
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
    found: dict[str, int] = {}
    for key in least[0]:
        low = least[0][key]
        high = most[0][key]
        if key == "max_rows":
            high = min(high, most[1]["rows sampled at once"])
        small = _part(key, least[1])
        large = _part(key, most[1])
        slope = (large - small) / max(1, high - low)
        value = most[0][key]
        while value > LEAST[key] and small + slope * (min(value, high) - low) > room:
            value //= 2
        found[key] = max(LEAST[key], value)
    return found


def _is_ample(resolved: Resolved, name: str, usable: int | None, hosts: int) -> bool:
    """Whether a host of seed models needs no look: with its own defaults it takes a tenth of what
    there is.
    """
    host = resolved.config.hosts[name]
    usual = (host.max_rows or 0) <= MAX_ROWS and (host.tokens_per_pass or 0) <= TOKENS_PER_PASS
    return (
        bool(host.max_rows)
        and usual
        and usable is not None
        and usable > AMPLE * hosts
        and all(plan.source.seeded for plan in resolved.at(name))
    )
