"""Monitors of a run: they look at each step, their hypotheses are tested, and what is refuted is an
alarm.

All hypotheses of a run share one error: where nothing has changed since the start, the chance that
any of them is refuted, at any time in the run, is at most `ALPHA`. Leaves out: what is watched
(`monitors`), what becomes of a run that is alarmed (`training.loop`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.plugins import load_plugin
from comas.config.schema import Config
from comas.game.play import GameContext, first
from comas.hooks import Alarm
from comas.monitors.evidence import Trial, seen_after
from comas.monitors.monitor import Allowance, CannotWatch, Monitor, Reading, Seen
from comas.seams import StaleWeights
from comas.storage import files
from comas.types import Episode, HostLost, UserMistake

ALPHA = 0.01
MONITORS = "monitors.json"
"""File of a checkpoint with what monitors know."""
SHARE = 0.05
"""Share of the tokens that the run will generate, for the games of monitors at most."""


def load_monitors(names: Sequence[str]) -> dict[str, Monitor]:
    """Name -> monitor; an error for a name that is none."""
    monitors: dict[str, Monitor] = {}
    for name in names:
        module = load_plugin("monitor", name, "monitors")
        monitor = module.watch()
        if not isinstance(monitor, Monitor):
            raise UserMistake(f"monitors = {name!r}: watch() has to return a Monitor")
        monitors[Path(name).stem] = monitor
    return monitors


class MonitorRunner:
    """The monitors of one run, and their hypotheses on trial; a monitor that raises is noted and
    dropped, the run goes on.
    """

    def __init__(self, config: Config, note: Callable[[str], Any]) -> None:
        self.note = note
        self.config = config
        self.monitors = load_monitors(config.monitors or ())
        self.trials: dict[tuple[str, str], Trial] = {}
        count = sum(len(monitor.hypotheses) for monitor in self.monitors.values())
        self.error = ALPHA / max(1, count)
        """Part of ALPHA that each hypothesis gets."""
        for name, monitor in self.monitors.items():
            for hypothesis in monitor.hypotheses:
                self.trials[name, hypothesis.name] = Trial(hypothesis, self.error)

    async def beside(
        self,
        playing: Coroutine[Any, Any, list[Episode]],
        context: GameContext,
        step: int,
        discussions: int,
    ) -> list[Episode]:
        """Return what is played in a step of so many discussions, while monitors ask what they want
        to know; when the first has been played they prepare. `context` is for games that are no
        part of the step.
        """
        async with asyncio.TaskGroup() as side_by_side:
            played = side_by_side.create_task(playing)
            for name, monitor in self.monitors.items():
                asking = monitor.ask(context, step, discussions)
                side_by_side.create_task(self._guarded(name, asking))
        episodes = played.result()
        if step == 0:
            self._allow(episodes)
            finished = [episode for episode in episodes if episode.error is None]
            for name, monitor in tuple(self.monitors.items()):
                await self._guarded(name, monitor.begin(context, finished))
                self._foretell(name)
        return episodes

    def _foretell(self, name: str) -> None:
        """Say what a monitor that asks can see in this run; drop it where that is nothing."""
        monitor = self.monitors.get(name)
        if monitor is None:
            return
        for key, expected in monitor.expected().items():
            hypothesis = self.trials[name, key].hypothesis
            steps = monitor.allowance.steps
            needed = seen_after(hypothesis, self.error, expected, steps)
            if needed is None:
                reason = f"{steps} steps are too few to notice that {hypothesis.says}"
                self._drop(name, CannotWatch(reason))
                return
            self.note(
                f"monitor {name} will notice within about {needed} steps if"
                f" {hypothesis.says} always"
            )

    def _allow(self, episodes: Sequence[Episode]) -> None:
        """Divide the tokens for monitors among those that ask anything; `episodes` are the first
        step, which says what the others will take.
        """
        in_step = max(1, sum(turn.tokens for game in episodes for turn in game.turns))
        steps = self.config.steps
        if self.config.tokens is not None:
            steps = min(steps, math.ceil(self.config.tokens / in_step))
        asking = [monitor for monitor in self.monitors.values() if monitor.asks]
        for monitor in asking:
            tokens = SHARE * in_step * steps / len(asking)
            monitor.allowance = Allowance(tokens, steps)

    async def _guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Let a monitor work; drop it where it raises. What its games say of a user's mistake, a
        spent budget or a lost machine is no fault of the monitor.
        """
        try:
            await work
        except Exception as error:
            # of several games at once they come in a group
            if isinstance(first(error), (UserMistake, HostLost, StaleWeights)):
                raise
            self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        """Watch on without a monitor."""
        del self.monitors[name]
        if isinstance(error, CannotWatch):
            self.note(f"monitor {name} cannot watch this run: {error}")
            return
        reason = f"{type(error).__name__}: {error}"
        self.note(f"monitor {name} failed and watches no more: {reason}")

    def read(self, seen: Seen) -> tuple[dict[str, Any], list[Alarm]]:
        """The figures of a step for metrics.jsonl, and what it alarms for the first time."""
        figures: dict[str, Any] = {}
        alarms: list[Alarm] = []
        for name, monitor in tuple(self.monitors.items()):
            try:
                readings = monitor.read(seen)
                json.dumps(monitor.memory, allow_nan=False)  # as checkpoints will write it
                alarmed = self._put_to_trial(name, seen.step, readings, alarms)
            except Exception as error:  # noqa: BLE001 - who looks on never ends a run
                self._drop(name, error)
                continue
            if alarmed:
                figures[name] = alarmed
        return figures, alarms

    def _put_to_trial(
        self, name: str, step: int, readings: Mapping[str, Reading], alarms: list[Alarm]
    ) -> dict[str, Any]:
        """The figures of one monitor's readings; what they alarm joins `alarms`."""
        hypotheses = [hypothesis.name for hypothesis in self.monitors[name].hypotheses]
        if not isinstance(readings, Mapping):
            raise ValueError(f"read gave {readings!r}: a dict of hypothesis -> Reading is wanted")
        unknown = readings.keys() - set(hypotheses)
        if unknown:
            raise ValueError(f"it reads {min(unknown)!r}, which is none of its hypotheses")
        figures: dict[str, Any] = {}
        for key in hypotheses:
            trial = self.trials[name, key]
            reading = readings.get(key)
            if trial.hear(reading):
                alarms.append(_alarm(step, name, trial))
            if reading is not None and reading.values:
                figures[key] = _figures(reading, trial)
        return figures

    def write(self, checkpoint: Path) -> None:
        """Write what monitors and trials know into an open checkpoint, also where all monitors
        have been dropped since.
        """
        if not self.trials:
            return
        memories = {name: monitor.memory for name, monitor in self.monitors.items()}
        trials = {"/".join(key): trial.as_record() for key, trial in self.trials.items()}
        record = {"memories": memories, "trials": trials}
        (checkpoint / MONITORS).write_text(json.dumps(record), encoding="utf-8")

    def take_up(self, checkpoint: Path) -> None:
        """Go on from a checkpoint; without monitors where that knows of none, and without those
        that had been dropped, or whose hypotheses are others by now.
        """
        if not self.monitors:
            return
        record = files.read_object(checkpoint / MONITORS)
        if record is None:
            self.monitors = {}
            self.trials = {}
            self.note("this run was begun without monitors, and goes on without them")
            return
        memories = record["memories"]
        self.monitors = {name: seen for name, seen in self.monitors.items() if name in memories}
        for name, monitor in self.monitors.items():
            monitor.memory = memories[name]
        for (name, hypothesis), trial in self.trials.items():
            kept = record["trials"].get(f"{name}/{hypothesis}")
            if name not in self.monitors:
                continue
            if kept is None:
                reason = f"this run was begun when it had no hypothesis {hypothesis!r}"
                self._drop(name, CannotWatch(reason))
            elif kept.get("scale", 1) != trial.hypothesis.scale:
                reason = f"this run was begun when values of {hypothesis!r} were read otherwise"
                self._drop(name, CannotWatch(reason))
            else:
                trial.take_up(kept)


def _figures(reading: Reading, trial: Trial) -> dict[str, Any]:
    """A reading for the record: mean, number, the start, the evidence and what makes an alarm, both
    in powers of ten, and all values with their counts, so that a record can be put to another test.
    """
    values = reading.values
    counts = sorted(Counter(values).items())
    return {
        "mean": math.fsum(values) / len(values),
        "n": len(values),
        "start": None if math.isnan(trial.start) else trial.start,
        "evidence": trial.evidence.log / math.log(10),
        "needed": trial.level / math.log(10),
        "values": " ".join(f"{value!r}*{count}" for value, count in counts),
    }


def _alarm(step: int, name: str, trial: Trial) -> Alarm:
    """Return the alarm about a hypothesis that has just been refuted."""
    hypothesis = trial.hypothesis
    start = trial.start
    lately = trial.observed
    since = trial.evidence.since
    evidence = math.exp(min(700.0, trial.evidence.log))
    odds = "over a million" if evidence > 1e6 else f"{evidence:,.0f}"
    seen = f"{name}: {lately:.2f} {hypothesis.lately}, {start:.2f} {hypothesis.before}"
    text = f"{hypothesis.says} ({seen}; since step {since + 1}, evidence {odds} to 1)"
    kind = f"{name}.{hypothesis.name}"
    more = (hypothesis.margin, since, evidence, math.exp(trial.level))
    return Alarm(step, kind, (), lately, text, start, *more)
