"""What ends a run before its time: an alarm, which is written down, and ends the run where that is
wished; and updates that are skipped a few times in a row since a loss or gradient is not finite.

Leaves out: what is alarmed (`training.watching`), how an update is skipped (`learners`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from comas.hooks import Alarm
from comas.storage.alarms import append_alarms, read_alarms
from comas.storage.run import Run
from comas.types import UserMistake

Action = Literal["warn", "stop"]


class Guard:
    """Of one run."""

    def __init__(self, action: Action) -> None:
        self.action: Action = action
        self.ends = False
        """Whether an alarm has ended the run, in whichever process of it."""

    def take_up(self, run: Run, done: int) -> None:
        """Go on with a run that has so many steps: it has ended where its last one was alarmed."""
        self.ends = is_ended(read_alarms(run.path), done, self.action)

    def write(self, run: Run, alarms: Sequence[Alarm]) -> None:
        """Write down the alarms of a step, and what they do."""
        records = [{**asdict(alarm), "action": self.action} for alarm in alarms]
        append_alarms(run.path, records)
        self.ends = self.ends or (bool(alarms) and self.action != "warn")


def is_ended(alarms: Sequence[Mapping[str, Any]], done: int, action: Action) -> bool:
    """Whether one of the alarms ends a run of `done` steps whose config has this action now.

    It is of the last step, and did not come while the run was told to go on.
    """
    last = [alarm for alarm in alarms if alarm["step"] == done - 1]
    # one that was written before actions were says nothing of its own
    return action != "warn" and any(alarm.get("action", action) != "warn" for alarm in last)


PATIENCE = 3
"""Steps in a row in which a policy's loss or gradient is not finite, after which a run stops."""


class Divergence:
    """Of all policies of a run."""

    def __init__(self) -> None:
        self.skipped: dict[str, int] = {}
        """`host/policy` -> steps in a row whose update was skipped."""

    def count(self, metrics: Mapping[str, Any]) -> None:
        """Count what a step's metrics say."""
        for policy, stats in metrics["policies"].items():
            before = self.skipped.get(policy, 0)
            self.skipped[policy] = before + 1 if stats.get("skipped") else 0

    @property
    def ends(self) -> bool:
        """Whether the run has to stop."""
        return max(self.skipped.values(), default=0) >= PATIENCE

    def check(self, step: int, run: Path) -> None:
        """An error that names the policy, where the run has to stop."""
        for policy, times in self.skipped.items():
            if times < PATIENCE:
                continue
            raise UserMistake(
                f"step {step + 1}: loss or gradient of policy {policy} was not finite in {times}"
                " steps in a row; its weights are those before. Start again with a lower lr,"
                f" or from an earlier checkpoint of {run}"
            )
