"""What a run would need, before it is begun: three lines for people (memory, disk, time), then what
differs from the defaults.

Leaves out: the estimates themselves (`forecast.fitting`, `forecast.memory`, `forecast.hours`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from comas.config.builders import check_trackers
from comas.config.resolve import resolve
from comas.config.schema import Config, read
from comas.config.trainable import check_training
from comas.forecast import fitting
from comas.forecast import hours as timing
from comas.forecast.disk import Disk, check_disk, disk_of
from comas.forecast.fit import Fit
from comas.forecast.memory import estimate, memory
from comas.forecast.precision import with_dtypes
from comas.forecast.stopwatch import PATIENCE
from comas.questions.checked import of_run
from comas.storage.out_folder import check_free
from comas.storage.run import without_none
from comas.types import HostFailure, UserMistake


@dataclass(frozen=True)
class Plan:
    """A run that was not begun."""

    config: Config
    """Resolved."""
    needs: Mapping[str, int | str]
    """The whole estimate, by what it is of."""
    fit: Fit
    disk: Disk
    hours: timing.Hours | None
    """None where nothing could be timed."""
    untimed: str
    """Why, then."""
    mistake: str
    """What training would refuse it for; empty where it would not."""
    notes: tuple[str, ...] = ()
    """What training would say of values that it chooses by trying."""


def plan(config: Config) -> Plan:
    """Estimate and time a run; its models are loaded only if they fit into memory."""
    resolved = resolve(config)
    check_training(resolved)
    check_trackers(resolved.config.track)
    told: list[str] = []
    resolved = with_dtypes(resolved, told.append)
    resolved, found = fitting.fit(resolved, all_hosts=True)
    mistake = ""
    hours: timing.Hours | None = None
    untimed = "no host has weights here"
    try:
        of_run(resolved.config, resolved.task, note=lambda _: None)
    except UserMistake as error:
        mistake = untimed = str(error)
    try:
        fitting.check(found, resolved)
    except UserMistake as error:
        mistake = mistake or str(error)
        untimed = "its models are not loaded, since they do not fit"
    if not mistake:
        try:
            hours = timing.hours(resolved)
        except UserMistake as error:  # a base that is not to be had, for one
            mistake = untimed = str(error)
        except HostFailure as error:
            untimed = str(error)
    try:
        if resolved.config.out is not None:
            check_free(resolved.config.out)
        check_disk(resolved)
    except UserMistake as error:
        mistake = mistake or str(error)
    needs = {**estimate(resolved), **memory(resolved)}
    disk = disk_of(resolved)
    return Plan(resolved.config, needs, found, disk, hours, untimed, mistake, tuple(told))


def lines(made: Plan) -> list[str]:
    """Memory, disk and time, a line each."""
    return [
        f"memory: {memory_line(made.fit)}",
        f"disk:   {_disk_line(made.disk)}",
        f"time:   {_time_line(made)}",
        *(f"note:   {text}" for text in made.notes),
    ]


def memory_line(fit: Fit) -> str:
    """Per device what is needed, what there is, and how that goes together."""
    devices = [device for device in fit.memory if fit.peak_of(device)]
    unknown = [host for host in fit.hosts if host.unknown]
    parts = [
        *(fit.compared(device) + _strain(fit, device) for device in devices),
        *(f"host {host.name} is not known ({host.unknown})" for host in unknown),
    ]
    return "; ".join(parts) or "next to nothing"


def _strain(fit: Fit, device: str) -> str:
    if device in fit.too_large():
        return ": does not fit"
    return ": tight" if device in fit.tight() else ""


def _disk_line(disk: Disk) -> str:
    free = f"{disk.free / 1e9:.1f} GB free"
    if disk.needed is None:
        return f"not known before the base is loaded; {free} in {disk.place}"
    return f"about {disk.needed / 1e9:.2f} GB in {disk.place}, {free}"


def _time_line(made: Plan) -> str:
    hours = made.hours
    if hours is None:
        return f"not known: {made.untimed}"
    shares = [f"{part} {share:.0%}" for part, share in hours.shares().items() if share > 0]
    if not shares:
        return "none: there is nothing to do"
    basis = f"a guess: {hours.steps} steps, replies of {hours.reply:.0f} tokens"
    if hours.cut:
        basis += f"; those of {', '.join(hours.cut)} were cut after {PATIENCE:.0f} seconds"
    return f"about {spoken(hours.total)} ({basis}): {', '.join(shares)}"


def spoken(seconds: float) -> str:
    """Two digits of hours, minutes or seconds: more a guess does not have."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)):
        if seconds >= 1.5 * size or unit == "seconds":
            amount = seconds / size
            return f"{amount:.0f} {unit}" if amount >= 9.5 else f"{amount:.1f} {unit}"
    raise AssertionError("seconds are the last unit")


def differences(config: Config) -> Iterator[str]:
    """`key = value` of what is not as in the complete default (docs/config.md)."""
    default = resolve(read(None)).config
    usual = _flat(default.model_dump())
    usual_host = _below(usual, "hosts.home.")
    usual_agent = _below(usual, "agents.a0.")
    for key, value in _flat(config.model_dump()).items():
        known = usual.get(key)
        if key.startswith("hosts."):
            known = usual_host.get(key.split(".", 2)[2])
        elif key.startswith("agents."):
            known = usual_agent.get(key.split(".", 2)[2])
        if value is not None and value != known:
            yield _toml_line(key, value)
    if config.agents.keys() != default.agents.keys():
        yield f"agents: {', '.join(config.agents)}"


def _below(table: Mapping[str, Any], above: str) -> dict[str, Any]:
    """The dotted keys below one, without it."""
    return {key.removeprefix(above): table[key] for key in table if key.startswith(above)}


def _toml_line(key: str, value: Any) -> str:
    # of numbers or texts: JSON is TOML there, and one line
    if isinstance(value, list | tuple):
        return f"{key} = {json.dumps(value)}"
    return tomli_w.dumps({"x": value}).replace("x", key, 1).strip()


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Dotted keys; an empty table has none."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def report(made: Plan, full: bool) -> Iterator[str]:
    """All lines of a dry run."""
    yield from lines(made)
    yield ""
    if full:
        yield tomli_w.dumps(without_none(made.config.model_dump()))
        for key, value in made.needs.items():
            yield f"# {key}: {value:,}" if isinstance(value, int) else f"# {key}: {value}"
        return
    changed = list(differences(made.config))
    if changed:
        yield "other than the defaults of docs/config.md:"
    else:
        yield "everything is as in docs/config.md"
    for line in changed:
        yield f"  {line}"
    yield "the whole config and estimate: --full"


def as_data(made: Plan) -> dict[str, Any]:
    """The same as JSON."""
    devices = {
        device: {"peak": made.fit.peak_of(device), "free": memory.free, "total": memory.total}
        for device, memory in made.fit.memory.items()
    }
    return {
        "config": made.config.model_dump(),
        "estimate": dict(made.needs),
        "memory": devices,
        "disk": {"needed": made.disk.needed, "free": made.disk.free},
        "seconds": _seconds(made.hours) if made.hours is not None else None,
        "refused": made.mistake or None,
    }


def _seconds(hours: timing.Hours) -> dict[str, Any]:
    parts = {part: round(value, 1) for part, value in hours.parts.items() if math.isfinite(value)}
    return {"total": round(hours.total, 1), "parts": parts, "steps": hours.steps}
