"""What a run came to, read from its folder.

Leaves out: the numbers of its steps (`metrics.jsonl`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.evaluation.accuracy import paired_gain
from comas.program import Work
from comas.stats import Interval
from comas.storage.alarms import read_alarms
from comas.storage.run import Run


@dataclass(repr=False)
class Result:
    """What a run came to."""

    run: Path
    steps: int
    tokens: int
    """Generated while training; measurements not counted."""
    seconds: float
    """Of this process."""
    accuracy: dict[str, Interval | None] = field(default_factory=dict)
    """`before` and `after` on held-out questions."""
    gain: Interval | None = None
    """After minus before, paired by question."""
    alarms: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What monitors have alarmed, as in `alarms.jsonl`."""
    ended_by_alarm: bool = False
    """Whether one of them has ended the run (`on_alarm`)."""

    def __repr__(self) -> str:
        measured = ", ".join(
            f"{name} {interval}" for name, interval in self.accuracy.items() if interval
        )
        return (
            f"Result({str(self.run)!r}: {self.steps} steps, {self.tokens:,} tokens;"
            f" {measured or 'accuracy not measured'})"
        )


def result_of(run: Run, seconds: float) -> Result:
    """What the folder says."""
    last: dict[str, Any] = {}
    for last in run.metrics():  # noqa: B007 - the last line is wanted
        pass
    records = {name: run.read_eval(name) for name in ("before", "after")}
    # it has gone on since
    if (ended := records["after"]) and ended["step"] != last.get("step", -1) + 1:
        records["after"] = None
    intervals = {
        n: Interval(**r["accuracy"]) if r and r["accuracy"] else None for n, r in records.items()
    }
    before = records["before"]
    after = records["after"]
    gain = paired_gain(before["answers"], after["answers"]) if before and after else None
    steps = last.get("step", -1) + 1
    alarms = read_alarms(run.path)
    config = run.config()
    action = config.get("on_alarm", "warn")
    ended = is_ended(alarms, steps, action) and steps < config["steps"]
    return Result(run.path, steps, last.get("tokens", 0), seconds, intervals, gain, alarms, ended)


def nothing_left(run: Run, start: int) -> str | None:
    """How to go on with a run that has come to its end, all measured; None where work is left, and
    with trackers, which may lack steps.
    """
    config = run.config()
    if config.get("track"):
        return None
    tokens = config.get("tokens")
    spent = 0
    for metrics in run.metrics():
        spent = metrics["tokens"]
    measured = run.read_eval("after")
    if config["test_questions"] and (measured is None or measured["step"] != start):
        return None
    if start >= config["steps"]:
        return _ended(run, f"all steps are done ({start})", f"steps={2 * max(1, start)}")
    if tokens is not None and spent >= tokens:
        return _ended(run, f"{spent:,} of {tokens:,} tokens are spent", f"tokens={2 * tokens}")
    if is_ended(read_alarms(run.path), start, config.get("on_alarm", "warn")):
        return _ended(run, f"an alarm ended it after step {start}", "on_alarm=warn")
    return None


def _ended(run: Run, why: str, change: str) -> str:
    return f"nothing is left to do: {why};{Work(run.path).going_on(change).removeprefix(' and')}"


def is_ended(alarms: Sequence[Mapping[str, Any]], done: int, action: str) -> bool:
    """Whether one of the alarms ends a run of `done` steps whose `on_alarm` is this action now.

    It is of the last step, and did not come while the run was told to go on.
    """
    last = [alarm for alarm in alarms if alarm["step"] == done - 1]
    # one that was written before actions were says nothing of its own
    return action != "warn" and any(alarm.get("action", action) != "warn" for alarm in last)
