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

from comas.config.resolve import resolve
from comas.config.roles import check_training
from comas.config.schema import Config, read
from comas.forecast import fitting
from comas.forecast import hours as timing
from comas.forecast.memory import estimate, memory
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
    fit: fitting.Fit
    disk: fitting.Disk
    hours: timing.Hours | None
    """None where nothing could be timed."""
    untimed: str
    """Why, then."""
    mistake: str
    """What training would refuse it for; empty where it would not."""


def plan(config: Config) -> Plan:
    """Estimate and time a run; its models are loaded only if they fit into memory."""
    resolved = resolve(config)
    check_training(*resolved[:3])
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
        fitting.check_disk(resolved)
    except UserMistake as error:
        mistake = mistake or str(error)
    needs = {**estimate(resolved), **memory(resolved)}
    disk = fitting.disk_of(resolved)
    return Plan(resolved.config, needs, found, disk, hours, untimed, mistake)


def lines(made: Plan) -> list[str]:
    """Memory, disk and time, a line each."""
    return [
        f"memory: {memory_line(made.fit)}",
        f"disk:   {_disk_line(made.disk)}",
        f"time:   {_time_line(made)}",
    ]


def memory_line(fit: fitting.Fit) -> str:
    """Per device what is needed, what there is, and how that goes together."""
    said = [
        fit.compared(device)
        + (
            ": does not fit"
            if device in fit.too_large()
            else ": tight"
            if device in fit.tight()
            else ""
        )
        for device in fit.memory
        if fit.peak_of(device)
    ]
    said += [
        f"host {host.name} is not known ({host.unknown})" for host in fit.hosts if host.unknown
    ]
    return "; ".join(said) or "next to nothing"


def _disk_line(disk: fitting.Disk) -> str:
    if disk.needed is None:
        return f"not known before the base is loaded; {disk.free / 1e9:.1f} GB free in {disk.place}"
    return f"about {disk.needed / 1e9:.2f} GB in {disk.place}, {disk.free / 1e9:.1f} GB free"


def _time_line(made: Plan) -> str:
    if made.hours is None:
        return f"not known: {made.untimed}"
    shares = ", ".join(
        f"{name} {share:.0%}" for name, share in made.hours.shares().items() if share > 0
    )
    basis = f"a guess: {made.hours.steps} steps, replies of {made.hours.reply:.0f} tokens"
    if made.hours.cut:
        basis += f"; those of {', '.join(made.hours.cut)} were cut after {PATIENCE:.0f} seconds"
    return (
        f"about {spoken(made.hours.total)} ({basis}): {shares}"
        if shares
        else "none: there is nothing to do"
    )


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
    mine = _flat(config.model_dump())
    usual_host = {
        k.removeprefix("hosts.home."): v for k, v in usual.items() if k.startswith("hosts.home.")
    }
    usual_agent = {
        k.removeprefix("agents.a0."): v for k, v in usual.items() if k.startswith("agents.a0.")
    }
    for key, value in mine.items():
        known = usual.get(key)
        if key.startswith("hosts."):
            known = usual_host.get(key.split(".", 2)[2])
        elif key.startswith("agents."):
            known = usual_agent.get(key.split(".", 2)[2])
        if value is not None and value != known:
            # of numbers or texts: JSON is TOML there, and one line
            if isinstance(value, list | tuple):
                yield f"{key} = {json.dumps(value)}"
            else:
                yield tomli_w.dumps({"x": value}).replace("x", key, 1).strip()
    if config.agents.keys() != default.agents.keys():
        yield f"agents: {', '.join(config.agents)}"


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Dotted keys; an empty table has none."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= (
            _flat(value, f"{above}{key}.")
            if isinstance(value, Mapping)
            else {f"{above}{key}": value}
        )
    return found


def report(made: Plan, full: bool) -> Iterator[str]:
    """All lines of a dry run."""
    yield from lines(made)
    yield ""
    if not full:
        found = list(differences(made.config))
        yield (
            "other than the defaults of docs/config.md:"
            if found
            else "everything is as in docs/config.md"
        )
        yield from (f"  {line}" for line in found)
        yield "the whole config and estimate: --full"
        return
    yield tomli_w.dumps(without_none(made.config.model_dump()))
    for key, value in made.needs.items():
        yield f"# {key}: {value:,}" if isinstance(value, int) else f"# {key}: {value}"


def as_data(made: Plan) -> dict[str, Any]:
    """The same as JSON."""
    devices = {
        device: {"peak": made.fit.peak_of(device), "free": there.free, "total": there.total}
        for device, there in made.fit.memory.items()
    }
    seconds = None
    if made.hours is not None:
        parts = {
            name: round(value, 1)
            for name, value in made.hours.parts.items()
            if math.isfinite(value)
        }
        seconds = {"total": round(made.hours.total, 1), "parts": parts, "steps": made.hours.steps}
    return {
        "config": made.config.model_dump(),
        "estimate": dict(made.needs),
        "memory": devices,
        "disk": {"needed": made.disk.needed, "free": made.disk.free},
        "seconds": seconds,
        "refused": made.mistake or None,
    }
