"""What ends a run before its time: an alarm, which is written down, and ends the run where that is
wished, with its last weights or with the best; and updates that are skipped a few times in a row
since a loss or gradient is not finite.

Leaves out: what is alarmed (`training.watching`), how an update is skipped (`learners`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from comas.hooks import Alarm, Hook
from comas.storage.alarms import append_alarms, read_alarms
from comas.storage.run import Run
from comas.training.learning import at_host
from comas.types import Host, UserMistake

Action = Literal["warn", "stop", "restore"]


class Guard:
    """Of one run."""

    def __init__(self, action: Action, hooks: Hook) -> None:
        self.action: Action = action
        self.hooks = hooks
        self.ends = False
        """Whether an alarm has ended the run, in whichever process of it."""

    def take_up(self, run: Run, done: int) -> None:
        """Go on with a run that has so many steps: it has ended where its last one was alarmed. An
        alarm that came while it was told to go on ends nothing later.
        """
        self.ends = bool(ending(read_alarms(run.path), done, self.action))

    def write(self, run: Run, alarms: Sequence[Alarm]) -> None:
        """Write down the alarms of a step, and what they do."""
        records = [{**asdict(alarm), "action": self.action} for alarm in alarms]
        append_alarms(run.path, records)
        self.ends = self.ends or (bool(alarms) and self.action != "warn")

    async def end(self, run: Run, hosts: Mapping[str, Host], done: int, best: int | None) -> None:
        """Say that the run ends after so many steps; put the weights of the `best` checkpoint
        back, where that is wished.
        """
        if self.action == "stop":
            self.hooks.note(f"stopped after step {done} by an alarm (on_alarm=stop)")
            return
        if best is None:
            step, known = _before_the_change(run, done)
        else:
            step, known = best, ""
        if step != done:  # otherwise hosts have those weights, which are not written down yet
            checkpoint = run.intact(step)
            for name, host in hosts.items():
                if host.learns:
                    await at_host(name, f"loading step {step}", host.load(checkpoint))
        self.hooks.note(
            f"stopped after step {done} by an alarm, with the weights after {step} steps"
            f" (on_alarm=restore{known})"
        )


def ending(alarms: Sequence[Mapping[str, Any]], done: int, action: Action) -> list[Any]:
    """Those of the alarms that end a run of `done` steps whose config has this action now.

    They are of its last step, and did not come while it was told to go on.
    """
    if action == "warn":
        return []
    last = [alarm for alarm in alarms if alarm["step"] == done - 1]
    # one that was written before actions were says nothing of its own
    return [alarm for alarm in last if alarm.get("action", action) != "warn"]


def _before_the_change(run: Run, done: int) -> tuple[int, str]:
    """The newest checkpoint from before what ended a run of `done` steps, the oldest where none is,
    and what is to be said of that.
    """
    kept = sorted(run.steps_kept())
    since = min(alarm["since"] for alarm in ending(read_alarms(run.path), done, "restore"))
    step = max((step for step in kept if step <= since), default=None)
    if step is not None:
        return step, ""
    return kept[0], f"; no checkpoint was kept from before the change in step {since + 1}"


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
