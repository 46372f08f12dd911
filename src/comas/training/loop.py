"""THE loop: play, settle, learn, write, rules; and what surrounds it once: measure before, measure
after.

Leaves out: how games are batched (hosts), how they are paid (methods), how a run looks on disk
(storage), how it begins (`training.start`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from comas.evaluation import fingerprints
from comas.evaluation.accuracy import accuracy, by_agent, by_question
from comas.evaluation.contamination import overlap
from comas.game.play import Scene, play_all, settle_all
from comas.hooks import Hook, hooks_of
from comas.machine import peak_bytes, process_facts
from comas.monitors.monitor import Seen
from comas.questions.checked import RunQuestions
from comas.signals import listening
from comas.stats import Interval
from comas.storage import lineage
from comas.storage.alarms import append_alarms, read_alarms
from comas.storage.rewind import best_kept
from comas.storage.run import Run
from comas.sync import collected_apart
from comas.team import spending
from comas.team.build import Team
from comas.training.learning import at_host, learn
from comas.training.learning_signal import LearningSignal
from comas.training.measuring import Measuring
from comas.training.metrics import StepRecord, load_metrics, summarise
from comas.training.progress import Pulse
from comas.training.remembering import Remembering
from comas.training.result import Result, result_of
from comas.training.schedule import scheduled
from comas.training.truth import note_truth
from comas.training.watching import Watching
from comas.types import Episode, HostFailure, Stopped, UserMistake

PATIENCE = 3
"""Steps in a row in which a policy's loss or gradient is not finite, after which a run stops."""


class Session:
    """One process's work on one run."""

    run: Run

    def __init__(self, team: Team, hook: Hook, asked: RunQuestions) -> None:
        self.team = team
        self.hooks = hooks_of([hook])
        self.config = team.config
        self.pulse = Pulse(self.hooks, team.hosts, team.resolved)
        self.measuring = Measuring(team, self.hooks, self.pulse)
        self.metrics = load_metrics(team.config.metrics or ())
        self.questions = asked.train
        self.validation = asked.validation
        self.test = asked.test
        self.memory = Remembering(team, asked)
        self.overlap = overlap(self.questions, self.test)
        if self.overlap.exact or self.overlap.near:
            self.hooks.note(str(self.overlap))
        self.watching = Watching(self.config.monitors or (), self.config.steps)
        self.alarmed = False
        """Whether a monitor has alarmed, in whichever process of the run."""
        self.tokens = 0
        self.best: tuple[float, int | None] = (-1.0, None)
        self.began = time.monotonic()
        self.signal = LearningSignal(self.config, team.method, team.task)
        self.broken: dict[str, int] = {}
        """`host/policy` -> steps in a row whose update was skipped."""
        self.stopping = False
        self.looping = False

    async def go(self, run: Run, start: int, changed: Mapping[str, Any] | None = None) -> Result:
        """Measure, loop from `start`, measure; all of it recorded in `run`, also what its owner has
        just changed in its config.
        """
        result: Result | None = None
        try:
            self._open(run, start, changed)
            await self._listening(start)
            result = result_of(run, time.monotonic() - self.began)
            return result
        finally:
            self.hooks.ended(result)

    def _open(self, run: Run, start: int, changed: Mapping[str, Any] | None) -> None:
        """Count what the run has behind it, and note what this process is."""
        self.run = run
        self.memory.begin(run, start)
        for metrics in run.metrics():
            self._count(metrics)
        # that checkpoint was lost
        if (marker := run.marker()) is not None and marker.get("best") != self.best[1]:
            self.best = best_kept(run, start)
        for note in lineage.hold(self.team.resolved.checkpoints(), run.path):
            self.hooks.note(note)
        self.hooks.locate(run.path)
        facts: dict[str, Any] = {"step": start}
        if changed:
            facts["changed"] = changed
        facts |= process_facts(self.team.hosts)
        facts |= fingerprints.of_plugins(self.config)
        facts |= self._digests()
        for change in run.write_process(facts):
            self.hooks.note(
                f"since the last process on this run: {change} (bit-equal results need the same)"
            )
        self._account()  # what the first requests have cost
        self._take_up_monitors(start)
        self.hooks.begin(run, self.team, start)

    def _take_up_monitors(self, start: int) -> None:
        """Have monitors go on where the checkpoint left them."""
        if self.run.marker() is None:
            return
        note = self.watching.take_up(self.run.path, start)
        if note is not None:
            self.hooks.note(note)
        self.alarmed = self.watching.alarmed

    async def _listening(self, start: int) -> None:
        """The work, with Ctrl-C and SIGTERM as wishes."""
        working = asyncio.current_task()
        assert working is not None
        with listening(self._stop, working.cancel), collected_apart(), self.pulse.beating():
            try:
                await self._work(start)
            except asyncio.CancelledError:
                if not self.stopping:  # somebody else's wish
                    raise
                raise Stopped from None

    async def _work(self, start: int) -> None:
        if self.run.marker() is None:
            self.run.write_eval("overlap", asdict(self.overlap))
            await self.measuring.recorded(self.run, "before", 0, self.test)
            await self.watching.begin(self._quiet_scene(), self.questions)
            await self._commit(0)
        async with spending.kept(self.team, self._account):
            reached = await self.loop(start)
        await self.measuring.recorded(self.run, "after", reached, self.test)

    def _digests(self) -> dict[str, str]:
        """Digests of bases and questions: others under the same names are news."""
        asked = {"training": self.questions, "validation": self.validation, "held-out": self.test}
        digests = {
            f"SHA-256 of {name} questions": fingerprints.of_questions(questions)[:16]
            for name, questions in asked.items()
        }
        return digests | {"SHA-256 of bases": fingerprints.of_weights(self.team.sources)[:16]}

    def _stop(self) -> bool:
        """Asked to stop: after this step, if one is open."""
        self.stopping = True
        if self.looping:
            self.hooks.note("stopping after this step; once more gives it up")
        return self.looping

    def _count(self, metrics: Mapping[str, Any]) -> None:
        """What is known of the steps so far, from their metrics alone: it is the same after a
        resume.
        """
        self.tokens = metrics["tokens"]
        if (validation := metrics.get("validation")) and validation["mean"] > self.best[0]:
            self.best = (validation["mean"], metrics["step"] + 1)
        for policy, stats in metrics["policies"].items():
            self.broken[policy] = self.broken.get(policy, 0) + 1 if stats.get("skipped") else 0

    async def loop(self, start: int) -> int:
        """Play, settle, learn, write, rules; returns the number of steps that the policies have
        behind them.
        """
        for step in range(start, self.config.steps):
            # also where a run is resumed that ended so
            if self._spent() or self._alarm_ends():
                return step
            began = time.monotonic()
            clocks = self._clocks()
            self.looping = True
            try:
                scene = self._scene()
                episodes = await self._play(scene, step)
                settle_all(scene, episodes, self.memory.options("settle"))
            # nobody has learnt from this step yet: keep those before it
            except (Exception, asyncio.CancelledError):
                await self._keep(step)
                raise
            await self._to_the_end(self._finish(step, episodes, began, clocks))
            await self._rules(step)
        return max(start, self.config.steps)

    async def _play(self, scene: Scene, step: int) -> list[Episode]:
        questions = self.memory.draw(scene, step)
        self.pulse.play(step, questions)
        samples = self.config.samples or 1
        async with asyncio.TaskGroup() as side_by_side:
            playing = side_by_side.create_task(play_all(scene, questions, step, samples))
            watched = self.watching.ask(self._quiet_scene(), step, len(questions) * samples)
            side_by_side.create_task(watched)
        episodes = playing.result()
        if all(episode.error for episode in episodes):
            raise UserMistake(
                f"step {step}: every discussion failed; the first: {episodes[0].error}"
            )
        self.memory.check_posed(step, episodes)
        return episodes

    async def _finish(
        self,
        step: int,
        episodes: Sequence[Episode],
        began: float,
        clocks: Mapping[str, Mapping[str, float]],
    ) -> None:
        """The second half of a step: learn, write."""
        self.pulse.turn_to("learning", step)
        method = scheduled(self.team.method, self.config, step)
        learned = await learn(self.team, method, step, episodes)
        self.memory.advance(self._scene(), episodes)
        record = StepRecord(episodes, learned, self.team.task)
        metrics: dict[str, Any] = {"step": step, **summarise(record, self.metrics)}
        note_truth(record)
        metrics["tokens"] = self.tokens + metrics["step_tokens"]
        metrics["seconds"] = time.monotonic() - began
        metrics["spent"] = self._seconds_since(clocks)
        metrics["peak_bytes"] = peak_bytes(self.team.hosts)
        answers: list[dict[str, Any]] = []
        if self.validation and (step + 1) % self.config.eval_every == 0:
            validated = await self.measuring.answers(self.validation, "validation", step + 1)
            answers = [asdict(answer) for answer in validated]
            metrics |= self._validated(step, accuracy(validated), answers)
        self._write(step, metrics, episodes, list(by_question(answers).values()))

    def _validated(
        self, step: int, interval: Interval | None, answers: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Accuracy on the validation split, as metrics."""
        self.hooks.measured("validation", step + 1, interval)
        return {
            "validation": interval._asdict() if interval else None,
            "validation_by_agent": by_agent(answers),
        }

    def _scene(self) -> Scene:
        """The team at its own game, with what the method remembers now."""
        return self.team.scene(keep=True, heard=self.pulse.heard, state=self.memory.state)

    def _quiet_scene(self) -> Scene:
        """The same, for games that are no part of a step."""
        return self.team.scene(keep=False, state=self.memory.state)

    def _write(
        self,
        step: int,
        metrics: dict[str, Any],
        episodes: Sequence[Episode],
        validated: Sequence[float],
    ) -> None:
        signs = self.signal.signs(episodes)
        played = [episode for episode in episodes if episode.error is None]
        seen = Seen(step, played, metrics["policies"], validated or None)
        metrics["monitors"], alarms = self.watching.read(seen)
        metrics["notes"] = [sign.text for sign in signs] + [alarm.text for alarm in alarms]
        self._account()
        append_alarms(self.run.path, [asdict(alarm) for alarm in alarms])
        self.run.write_step(metrics, episodes)
        self._count(metrics)
        self.alarmed = self.alarmed or bool(alarms)
        for alarm in [*self.signal.news(step, signs), *alarms]:
            self.hooks.alarm(alarm)
            self.hooks.note(f"step {step + 1}: {alarm.text}")
        self.hooks.step(metrics, episodes)

    async def _rules(self, step: int) -> None:
        """Commit where it is time; stop where nothing can be learnt, or where it is wished."""
        broken = [policy for policy, times in self.broken.items() if times >= PATIENCE]
        done = step + 1
        if self._alarm_ends():
            await self._to_the_end(self._end_by_alarm(done))
        last = done == self.config.steps or self._spent() or self.stopping or broken
        last = last or self._alarm_ends()
        if last or done % self.config.checkpoint_every == 0 or self.best[1] == done:
            await self._to_the_end(self._commit(done))
        self.looping = False
        if broken:
            times = self.broken[broken[0]]
            raise UserMistake(
                f"step {step}: loss or gradient of policy {broken[0]} was not finite in {times}"
                " steps in a row; its weights are those before. Start again with a lower lr,"
                f" or from an earlier checkpoint of {self.run.path}"
            )
        if self.stopping:
            raise Stopped

    def _alarm_ends(self) -> bool:
        """Whether an alarm has ended the run, in this process or in one before it."""
        return self.alarmed and self.config.on_alarm != "warn"

    async def _end_by_alarm(self, done: int) -> None:
        """Put the weights of the best checkpoint back, where that is wished."""
        if self.config.on_alarm == "stop":
            self.hooks.note(f"stopped after step {done} by an alarm (on_alarm=stop)")
            return
        step = self._before_the_alarm()
        checkpoint = self.run.intact(step)
        for name, host in self.team.hosts.items():
            if host.learns:
                await at_host(name, f"loading step {step}", host.load(checkpoint))
        self.hooks.note(
            f"stopped after step {done} by an alarm, with the weights after {step} steps"
            " (on_alarm=restore)"
        )

    def _before_the_alarm(self) -> int:
        """The best checkpoint; where none was measured, the newest from before the change."""
        if self.best[1] is not None:
            return self.best[1]
        kept = sorted(self.run.steps_kept())
        since = min(alarm["since"] for alarm in read_alarms(self.run.path))
        return max((step for step in kept if step <= since), default=kept[0])

    async def _to_the_end(self, work: Awaitable[None]) -> None:
        """To the end, even where it is asked to stop at once: half an update is no state to stop
        in.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.stopping = True
            await task
            if (working := asyncio.current_task()) is not None:
                working.uncancel()

    def _spent(self) -> bool:
        return self.config.tokens is not None and self.tokens >= self.config.tokens

    def _clocks(self) -> dict[str, dict[str, float]]:
        """Host -> seconds by kind of work, so far."""
        return {name: dict(host.clock()) for name, host in self.team.hosts.items()}

    def _seconds_since(self, before: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Seconds by kind of work since then, summed over hosts."""
        spent: dict[str, float] = {}
        for name, clock in self._clocks().items():
            for kind, seconds in clock.items():
                spent[kind] = spent.get(kind, 0.0) + seconds - before[name].get(kind, 0.0)
        return spent

    def _account(self) -> None:
        if accounts := spending.accounts(self.team.hosts):
            self.run.write_spent(accounts)

    async def _keep(self, step: int) -> None:
        """Commit before an error ends the run; where that fails too, the error is the news."""
        try:
            self._account()
            await self._commit(step)
        except (HostFailure, OSError) as error:
            self.hooks.note(f"the {step} steps so far could not all be saved: {error}")

    async def _commit(self, step: int) -> None:
        if (marker := self.run.marker()) is not None and marker["step"] == step:
            return
        self.pulse.turn_to("saving", step)
        path = self.run.checkpoint()
        for name, host in self.team.hosts.items():
            await at_host(name, f"saving step {step}", host.save(path))
        self.memory.write(path)
        self.watching.write(path)
        self.run.commit(step, self.best[1])
