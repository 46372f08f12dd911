"""THE loop: play, settle, learn, write, rules; and what surrounds it once: measure before, measure
after.

Leaves out: how games are batched and learnt (hosts), how they are rewarded (methods), how a run
looks on disk (storage), how it begins (`training.start`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from comas.evaluation.questions import overlap, run_digests
from comas.game.play import GameContext, own_file, play_all, settle_all, unlabelled
from comas.hooks import Hook, Pulse, hooks_of
from comas.machine import peak_bytes, process_facts
from comas.monitors.monitor import Seen
from comas.monitors.planting import PLANTED
from comas.questions.checked import RunQuestions
from comas.signals import listening
from comas.storage.alarms import append_alarms, read_alarms
from comas.storage.run import Run, hold
from comas.sync import collected_apart
from comas.team import spending
from comas.team.build import Team
from comas.training.learning import at_host, divergence, learn, lr_scale
from comas.training.learning_signal import LearningSignal
from comas.training.measuring import Evaluator
from comas.training.metrics import metrics_of, summarise
from comas.training.record import StepRecord, note_truth
from comas.training.remembering import MethodMemory
from comas.training.result import Result, is_ended, result_of
from comas.training.watching import MonitorRunner
from comas.types import Episode, Host, HostFailure, HostLost, Stopped, Turn, UserMistake


class Session:
    """One process's work on one run."""

    run: Run

    def __init__(self, team: Team, hook: Hook, asked: RunQuestions, replies: float = 0) -> None:
        """`replies` is how many a discussion has, as far as that is known before one is played."""
        self.team = team
        self.hooks = hooks_of([hook])
        self.config = team.config
        self.pulse = Pulse(self.hooks, team.hosts, replies * (team.config.samples or 1))
        self.measuring = Evaluator(team, self.hooks, self.pulse)
        self.metrics = metrics_of(team.task)
        self.asked = asked
        self.memory = MethodMemory(team, asked)
        # a game's start is no question whose answer could be learnt by heart
        learnable = self.asked.train if team.task.rules is None else ()
        self.overlap = overlap(learnable, self.asked.test)
        if self.overlap.exact:
            self.hooks.note(str(self.overlap))
        self.watching = MonitorRunner(self.config, self.hooks.note)
        self.ended = False
        """Whether an alarm has ended the run, in whichever process of it."""
        self.tokens = 0
        self.monitor_tokens = 0
        """Generated for monitors in this step."""
        self.best: tuple[float, int | None] = (-1.0, None)
        self.began = time.monotonic()
        learning = {m.address for m in team.members if m.host.learns and not m.frozen}
        self.signal = LearningSignal(self.config, team.method, team.task, sorted(learning))
        self.skipped: dict[str, int] = {}
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
            self.signal.recall(metrics)
        # a better checkpoint was lost
        if (marker := run.marker()) is not None and (best := marker.get("best")) != self.best[1]:
            means = {
                m["step"] + 1: m["validation"]["mean"] for m in run.metrics() if m.get("validation")
            }
            self.best = (means.get(best, -1.0), best)
        for note in hold(self.team.plan.checkpoints(), run.path):
            self.hooks.note(note)
        self.hooks.locate(run.path)
        facts: dict[str, Any] = {"step": start}
        if changed:
            facts["changed"] = changed
        facts |= process_facts(self.team.hosts)
        facts |= run_digests(self.config, self.asked, self.team.sources)
        for change in run.write_process(facts):
            self.hooks.note(
                f"since the last process on this run: {change} (bit-equal results need the same)"
            )
        self._account()  # what the first requests have cost
        if run.marker() is not None:
            self.watching.take_up(run.checkpoint_of(start))
            self.ended = is_ended(read_alarms(run.path), start, self.config.on_alarm)
        self.hooks.begin(run, self.team, start)

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
            await self.measuring.recorded(self.run, "before", 0, self.asked.test)
            await self._commit(0)
        async with spending.kept(self.team.hosts, self._account):
            reached = await self.loop(start)
        await self.measuring.recorded(self.run, "after", reached, self.asked.test)

    def _stop(self) -> bool:
        """Asked to stop: after this step, if one is open."""
        self.stopping = True
        if self.looping:
            self.hooks.note("stopping after this step; once more gives it up")
        return self.looping

    def _count(self, metrics: Mapping[str, Any]) -> None:
        """Update what is known of the steps so far from metrics alone: it is the same after a
        resume.
        """
        self.tokens = metrics["tokens"]
        if (validation := metrics.get("validation")) and validation["mean"] > self.best[0]:
            self.best = (validation["mean"], metrics["step"] + 1)
        for policy, stats in metrics["policies"].items():
            before = self.skipped.get(policy, 0)
            self.skipped[policy] = before + 1 if stats.get("skipped") else 0

    async def loop(self, start: int) -> int:
        """Play, settle, learn, write, rules; returns the number of steps that the policies have
        behind them.
        """
        reached = max(start, self.config.steps)
        for step in range(start, self.config.steps):
            # also where a run is resumed that ended so
            if self._spent() or self.ended:
                reached = step
                break
            began = time.monotonic()
            clocks = clocks_of(self.team.hosts)
            self.looping = True
            try:
                episodes = await self._play(step)
            # nobody has learnt from this step yet: keep those before it
            except (Exception, asyncio.CancelledError):
                await self._keep(step)
                raise
            await self._to_the_end(self._finish(step, episodes, began, clocks))
            await self._rules(step)
        return reached

    async def _play(self, step: int) -> list[Episode]:
        """Play and settle a step, beside what monitors ask."""
        context = self._context()
        questions = self.memory.draw(context, step)
        self.pulse.play(step, [unlabelled(question) for question in questions])
        samples = self.config.samples or 1
        playing = play_all(context, questions, step, samples)
        self.monitor_tokens = 0
        quiet = self.team.context(
            keep=False, on_turn=self._count_turn_apart, state=self.memory.state
        )
        episodes = await self.watching.beside(playing, quiet, step, len(questions) * samples)
        if all(episode.error for episode in episodes):
            raise UserMistake(
                f"step {step + 1}: every discussion failed; the first: {episodes[0].error}"
            )
        self.memory.check_posed(step, episodes)
        settle_all(context, episodes)
        return episodes

    def _count_turn_apart(self, turn: Turn) -> None:
        """Count a reply to a monitor."""
        if PLANTED not in turn.info:
            self.monitor_tokens += turn.tokens
            self.pulse.count_turn_apart(turn)

    def _context(self) -> GameContext:
        """The team at its own game, with what the method remembers now."""
        return self.team.context(keep=True, on_turn=self.pulse.count_turn, state=self.memory.state)

    async def _finish(
        self,
        step: int,
        episodes: Sequence[Episode],
        began: float,
        clocks: Mapping[str, float],
    ) -> None:
        """The second half of a step: learn, watch, write."""
        self.pulse.turn_to("learning", step)
        config = self.config
        scale = lr_scale(config.schedule, config.warmup, config.steps, step)
        learned = await learn(self.team, scale, step, episodes)
        self.memory.advance(self._context(), episodes)
        record = StepRecord(episodes, learned, self.team.task)
        with own_file(self.team.task.extract, f"step {step + 1}: extract, in its figures,"):
            metrics: dict[str, Any] = {"step": step, **summarise(record, self.metrics)}
            note_truth(record)
        metrics["tokens"] = self.tokens + metrics["step_tokens"]
        metrics["monitor_tokens"] = self.monitor_tokens
        metrics["seconds"] = time.monotonic() - began
        now = clocks_of(self.team.hosts)
        metrics["spent"] = {kind: now[kind] - clocks.get(kind, 0.0) for kind in now}
        metrics["peak_bytes"] = peak_bytes(self.team.hosts)
        validated: list[float] = []
        if self.asked.validation and (step + 1) % self.config.eval_every == 0:
            figures, validated = await self.measuring.validated(self.asked.validation, step + 1)
            metrics |= figures
        signs = self.signal.signs(step, episodes, metrics["policies"])
        seen = Seen(step, episodes, metrics["policies"], validated)
        metrics["monitors"], alarms = self.watching.read(seen)
        metrics["notes"] = [news.text for news in (*signs, *alarms)]
        self._account()
        self.run.change(spending.halved(self.team.hosts))
        action = self.config.on_alarm
        append_alarms(self.run.path, [{**asdict(alarm), "action": action} for alarm in alarms])
        self.ended = self.ended or (bool(alarms) and action != "warn")
        self.run.write_step(metrics, episodes)
        self._count(metrics)
        for policy, times in self.skipped.items():
            if times == 1:
                self.hooks.note(
                    f"step {step + 1}: policy {policy} learnt nothing: a loss, a gradient or an"
                    " advantage was not finite"
                )
        for alarm in [*self.signal.news(signs), *alarms]:
            self.hooks.alarm(alarm)
            self.hooks.note(f"step {step + 1}: {alarm.text}")
        self.hooks.step(metrics, episodes)

    async def _rules(self, step: int) -> None:
        """Commit where it is time; stop where nothing can be learnt, or where it is wished."""
        done = step + 1
        if self.ended:
            self.hooks.note(f"stopped after step {done} by an alarm (on_alarm=stop)")
        diverged = divergence(self.skipped, step, self.run.path)
        ends = self.ended or diverged is not None
        last = ends or self.stopping or self._spent() or done == self.config.steps
        if last or done % self.config.checkpoint_every == 0 or self.best[1] == done:
            await self._to_the_end(self._commit(done))
        self.looping = False
        if diverged is not None:
            raise diverged
        if self.stopping:
            raise Stopped

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

    def _account(self) -> None:
        if accounts := spending.accounts(self.team.hosts):
            self.run.write_spent(accounts)

    async def _keep(self, step: int) -> None:
        """Commit before an error ends the run; where that fails too, the error is the news."""
        try:
            self._account()
            await self._commit(step)
        except (HostFailure, HostLost, OSError) as error:
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


def clocks_of(hosts: Mapping[str, Host]) -> dict[str, float]:
    """Kind of work -> seconds that the hosts of a team have spent so far."""
    spent: dict[str, float] = {}
    for host in hosts.values():
        for kind, seconds in host.clock().items():
            spent[kind] = spent.get(kind, 0.0) + seconds
    return spent
