"""What an alarm does to a run: it is written down, and where that is wished it ends the run, with
its last weights or with the best.

Leaves out: what is alarmed (`training.watching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal

from comas.hooks import Alarm, Hook
from comas.storage.alarms import append_alarms, read_alarms
from comas.storage.run import Run
from comas.training.learning import at_host
from comas.types import Host

Action = Literal["warn", "stop", "restore"]


class Guard:
    """Of one run."""

    def __init__(self, action: Action, hooks: Hook) -> None:
        self.action: Action = action
        self.hooks = hooks
        self.alarmed = False
        """Whether there was an alarm, in whichever process of the run."""

    @property
    def ends(self) -> bool:
        """Whether an alarm has ended the run."""
        return self.alarmed and self.action != "warn"

    def write(self, run: Run, alarms: Sequence[Alarm]) -> None:
        """Write down the alarms of a step."""
        records = [asdict(alarm) for alarm in alarms]
        append_alarms(run.path, records)
        self.alarmed = self.alarmed or bool(alarms)

    async def end(self, run: Run, hosts: Mapping[str, Host], done: int, best: int | None) -> bool:
        """Say that the run ends after so many steps; put the weights of the `best` checkpoint
        back, where that is wished. Whether it was.
        """
        if self.action == "stop":
            self.hooks.note(f"stopped after step {done} by an alarm (on_alarm=stop)")
            return False
        step = _before_the_change(run) if best is None else best
        checkpoint = run.intact(step)
        for name, host in hosts.items():
            if host.learns:
                await at_host(name, f"loading step {step}", host.load(checkpoint))
        self.hooks.note(
            f"stopped after step {done} by an alarm, with the weights after {step} steps"
            " (on_alarm=restore)"
        )
        return True


def _before_the_change(run: Run) -> int:
    """The newest checkpoint from before anything that was alarmed; the oldest where none is."""
    kept = sorted(run.steps_kept())
    alarms = read_alarms(run.path)
    since = min(alarm["since"] for alarm in alarms)
    return max((step for step in kept if step <= since), default=kept[0])
