"""THE loop: play, settle, learn, write; and what surrounds it once: measure before, measure after.

Leaves out: how games are batched (hosts), how they are paid (methods), how a run looks on disk
(store).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from comas.config.resolve import resolve, split_options
from comas.config.roles import check_room, check_seats, check_training
from comas.config.schema import Config, checked, lifted, parse_pair, read, values_of
from comas.display.onlooker import shown
from comas.evaluation import fingerprints
from comas.evaluation.accuracy import accuracy, answer_all, by_agent, copied
from comas.evaluation.contamination import overlap
from comas.forecast import fitting
from comas.game.agent import Member, derive_seed
from comas.game.play import payoffs, play_all, settle_all
from comas.hosts.api import ApiHost
from comas.installed import peak_bytes, process_facts
from comas.questions.checked import RunQuestions, of_run, order
from comas.signals import listening
from comas.stats import Interval
from comas.storage import lineage
from comas.storage.out_folder import check_free
from comas.storage.run import Run
from comas.sync import collected_apart, run_sync
from comas.team import spending
from comas.team.build import Team
from comas.team.equal_policies import measured_for
from comas.team.greeting import assemble
from comas.training.hooks import Progress, Stage
from comas.training.hooks import Watch as Watch
from comas.training.learning_signal import LearningSignal
from comas.training.metrics import summarise
from comas.training.progress import Pulse
from comas.types import Episode, HostFailure, Question, Stopped, UserMistake

LENGTH = ("steps", "tokens")
"""How long a run is: it may be made longer when it goes on, and is then what it would have been
from the start.
"""
PATIENCE = 3
"""Steps in a row in which a policy's loss or gradient is not finite, after which a run stops."""


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

    def __repr__(self) -> str:
        measured = ", ".join(f"{name} {found}" for name, found in self.accuracy.items() if found)
        return (
            f"Result({str(self.run)!r}: {self.steps} steps, {self.tokens:,} tokens;"
            f" {measured or 'accuracy not measured'})"
        )


def train(config: str | Path | None = None, watch: Watch | None = None, **overrides: Any) -> Result:
    """Train a team: `comas.train(method="ttrl", steps=50, options__votes=8)`; `__` stands for the
    dot of a nested key.

    Progress is shown where a person looks on: on a terminal and in notebooks. `watch=comas.Watch()`
    shows nothing.
    """
    with shown(watch) as told:
        return run_sync(
            train_async(read(config, {k.replace("__", "."): v for k, v in overrides.items()}), told)
        )


async def train_async(config: Config, watch: Watch) -> Result:
    """The same from a config, inside an event loop."""
    resolved = resolve(config)
    check_training(*resolved[:3])
    check_seats(resolved.config, resolved.method, learn=True)
    if resolved.config.out is not None:
        check_free(resolved.config.out)
    # before what takes long; mistakes in them leave no folder behind
    asked = of_run(resolved.config, resolved.task, watch.note)
    check_room(resolved, watch.note)
    watch.working(Progress("estimating"))
    resolved = fitting.fitted(resolved, watch.note)
    watch.working(Progress("loading"))
    team = await assemble(resolved, watch.note, asks=resolved.config.steps > 0)
    run = None
    try:
        session = Session(team, watch, asked)
        run = Run.create(resolved.config.model_dump(), resolved.config.out)
        return await session.go(run, 0)
    finally:
        team.close()
        if run is not None:
            run.unlock()


async def resume_async(
    path: str | Path, watch: Watch, steps: int | None = None, changes: Sequence[str] = ()
) -> Result:
    """Go on from a run's last good checkpoint, to its own number of steps or to `steps`.

    `changes` are pairs of keys in `LENGTH` and in `spending.CHANGEABLE`: they are written into the
    run's config.
    """
    run = Run.open(path)
    hosts = list(run.config()["hosts"])
    changes = lifted(changes, hosts)
    of_hosts = [pair for pair in changes if parse_pair(pair)[0] not in LENGTH]
    spending.check_changes(of_hosts)
    run.lock()
    team = None
    try:
        spending.check_hosts(of_hosts, [checked(run.config())])
        changed = dict(map(parse_pair, changes))
        start, notes = run.rewind()
        for note in notes:
            watch.note(note)
        watch.working(Progress("estimating", start))
        resolved = resolve(
            read(None, {**run.config(), **({"steps": steps} if steps else {}), **changed})
        )
        config = resolved.config
        if "steps" in changed and config.steps < start:
            raise UserMistake(
                f"steps={config.steps}: {run.path} has {start} steps already; take more, or begin"
                " anew"
            )
        asked = of_run(config, resolved.task, watch.note)
        check_room(resolved, watch.note)
        resolved = fitting.resumed(resolved, watch.note)
        watch.working(Progress("loading", start))
        checkpoint = (
            run.path / "checkpoints" / f"step-{start}" if run.marker() is not None else None
        )
        accounts = {**spending.kept_in(checkpoint, config), **run.spent()}
        team = await assemble(
            resolved, watch.note, accounts=accounts, folder=run.path, asks=start < config.steps
        )
        for name, host in team.hosts.items():
            if checkpoint is not None and not isinstance(host, ApiHost):
                await _at(name, f"loading step {start}", host.load(checkpoint))
        session = Session(team, watch, asked)
        return await session.go(run, start, run.change(values_of(config, changed)))
    finally:
        if team is not None:
            team.close()
        run.unlock()


async def _at(host: str, doing: str, work: Awaitable[Any]) -> Any:
    """The work of a host; what goes wrong names it."""
    try:
        return await work
    except HostFailure as error:
        raise HostFailure(f"host {host}, {doing}: {error}") from error
    except UserMistake:
        raise
    except Exception as error:
        error.add_note(f"in host {host}, {doing}")
        raise


class Session:
    """One process's work on one run."""

    run: Run

    def __init__(self, team: Team, watch: Watch, asked: RunQuestions) -> None:
        self.team = team
        self.watch = watch
        self.config = team.config
        self.pulse = Pulse(watch, team.hosts, team.resolved)
        self.questions = asked.train
        self.validation = asked.validation
        self.test = asked.test
        self.overlap = overlap(self.questions, self.test)
        if self.overlap.exact or self.overlap.near:
            watch.note(str(self.overlap))
        self.tokens = 0
        self.best = (-1.0, None)
        self.began = time.monotonic()
        self.signal = LearningSignal(self.config, team.method, team.task)
        self.broken: dict[str, int] = {}
        """`host/policy` -> steps in a row whose update was skipped."""
        self.stopping = self.looping = False

    def draw(self, step: int) -> list[Question]:
        """The questions of a step: a new order for each pass over them, a function of (seed, step)
        alone.
        """
        n = len(self.questions)
        count = self.config.questions or 1
        drawn = []
        for place in range(step * count, (step + 1) * count):
            turn, i = divmod(place, n)
            drawn.append(order(n, derive_seed(self.config.seed, "order", turn))[i])
        # a step that spans two passes asks nothing twice
        return [self.questions[i] for i in dict.fromkeys(drawn)]

    async def go(self, run: Run, start: int, changed: Mapping[str, Any] | None = None) -> Result:
        """Measure, loop from `start`, measure; all of it recorded in `run`, also what its owner has
        just changed in its config.
        """
        self.run = run
        for host in spending.api_hosts(self.team).values():
            host.ledger.folder = run.path
        for metrics in run.metrics():
            self._count(metrics)
        # that checkpoint was lost
        if (marker := run.marker()) is not None and marker.get("best") != self.best[1]:
            self.best = run.best_kept(start)
        for note in lineage.hold(self.team.resolved.checkpoints(), run.path):
            self.watch.note(note)
        self.watch.path = run.path
        facts = {
            "step": start,
            **({"changed": changed} if changed else {}),
            **process_facts(self.team),
            **self._asked(),
        }
        for change in run.write_process(facts):
            self.watch.note(
                f"since the last process on this run: {change} (bit-equal results need the same)"
            )
        self._account()  # what the first requests have cost
        self.watch.begin(run, self.team, start)
        working = asyncio.current_task()
        assert working is not None
        with listening(self._stop, working.cancel), collected_apart(), self.pulse.beating():
            try:
                if run.marker() is None:
                    run.write_eval("overlap", asdict(self.overlap))
                    await self._measure("before", 0, self.test)
                    await self._commit(0)
                async with spending.kept(self.team, self._account):
                    reached = await self.loop(start)
                await self._measure("after", reached, self.test)
            except asyncio.CancelledError:
                if not self.stopping:  # somebody else's wish
                    raise
                raise Stopped from None
        return result_of(run, time.monotonic() - self.began)

    def _asked(self) -> dict[str, str]:
        """Digests of bases and questions: others under the same names are news."""
        asked = {"training": self.questions, "validation": self.validation, "held-out": self.test}
        digests = {
            f"SHA-256 of {name} questions": fingerprints.of_questions(found)[:16]
            for name, found in asked.items()
        }
        return digests | {"SHA-256 of bases": fingerprints.of_weights(self.team.sources)[:16]}

    def _stop(self) -> bool:
        """Asked to stop: after this step, if one is open."""
        self.stopping = True
        if self.looping:
            self.watch.note("stopping after this step; once more gives it up")
        return self.looping

    def _count(self, metrics: Mapping[str, Any]) -> None:
        """What is known of the steps so far, from their metrics alone: it is the same after a
        resume.
        """
        self.tokens = metrics["tokens"]
        if (found := metrics.get("validation")) and found["mean"] > self.best[0]:
            self.best = (found["mean"], metrics["step"] + 1)
        for policy, stats in metrics["policies"].items():
            self.broken[policy] = self.broken.get(policy, 0) + 1 if stats.get("skipped") else 0

    async def loop(self, start: int) -> int:
        """Play, settle, learn, write; returns the number of steps that the policies have behind
        them.
        """
        scene = self.team.scene(keep=True, heard=self.pulse.heard)
        for step in range(start, self.config.steps):
            if self._spent():  # also where a run is resumed that ended so
                return step
            began = time.monotonic()
            spent = {n: dict(h.seconds) for n, h in self.team.hosts.items()}
            self.looping = True
            try:
                questions = self.draw(step)
                self.pulse.play(step, questions)
                episodes = await play_all(scene, questions, step, self.config.samples or 1)
                if all(e.error for e in episodes):
                    raise UserMistake(
                        f"step {step}: every discussion failed; the first: {episodes[0].error}"
                    )
                settle_all(
                    scene, episodes, split_options(self.config.options, self.team.method.settle)
                )
            # nobody has learnt from this step yet: keep those before it
            except (Exception, asyncio.CancelledError):
                await self._keep(step)
                raise
            await self._whole(self._learn(step, episodes, began, spent))
            broken = [p for p, times in self.broken.items() if times >= PATIENCE]
            last = step + 1 == self.config.steps or self._spent() or self.stopping or broken
            if last or (step + 1) % self.config.checkpoint_every == 0 or self.best[1] == step + 1:
                await self._whole(self._commit(step + 1))
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
        return max(start, self.config.steps)

    async def _learn(
        self,
        step: int,
        episodes: Sequence[Episode],
        began: float,
        spent: Mapping[str, Mapping[str, float]],
    ) -> None:
        """The second half of a step: learn, write."""
        config = self.config
        team = self.team
        self.pulse.turn_to("learning", step)
        paid = payoffs(episodes, team.members)
        async with asyncio.TaskGroup() as group:
            learning = {
                n: group.create_task(
                    _at(n, f"learning of step {step}", h.learn(paid.get(n, {}), team.method))
                )
                for n, h in team.hosts.items()
            }
        metrics = {
            "step": step,
            **summarise(episodes, {name: task.result() for name, task in learning.items()}),
        }
        metrics |= {
            "tokens": self.tokens + metrics["step_tokens"],
            "seconds": time.monotonic() - began,
        }
        metrics["spent"] = _spent(team, spent)
        metrics["peak_bytes"] = peak_bytes(team)
        if self.validation and (step + 1) % config.eval_every == 0:
            answers = await self._answers(self.validation, "validation", step + 1)
            found = accuracy(answers)
            self.watch.measured("validation", step + 1, found)
            metrics["validation"] = found._asdict() if found else None
            metrics["validation_by_agent"] = by_agent([asdict(answer) for answer in answers])
        signs = self.signal.signs(episodes)
        metrics["notes"] = [sign.text for sign in signs]
        self._account()
        self.run.write_step(metrics, episodes)
        self._count(metrics)
        for note in self.signal.news(step, signs):
            self.watch.note(note)
        self.watch.step(metrics, episodes)

    async def _whole(self, work: Awaitable[None]) -> None:
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

    async def _measure(self, name: Stage, step: int, questions: Sequence[Question]) -> None:
        """Unless it has been done: an interrupted run that had ended does not do it again."""
        if not questions:
            return
        record = self.run.read_eval(name, self.watch.note)
        if record is None or record["step"] != step:
            measured = self._equals() if step == 0 else {}
            copies = {agent: asked for agent, asked in measured.items() if agent != asked}
            answers = await self._answers(questions, name, step, set(copies))
            answers = copied(answers, measured) if copies else answers
            found = accuracy(answers)
            record = {
                "step": step,
                "accuracy": found._asdict() if found else None,
                "answers": [asdict(a) for a in answers],
            }
            record |= {"copies": copies} if copies else {}
            self.run.write_eval(name, record)
        self.watch.measured(
            name, step, Interval(**record["accuracy"]) if record["accuracy"] else None
        )

    def _account(self) -> None:
        if found := spending.accounts(spending.api_hosts(self.team)):
            self.run.write_spent(found)

    def _equals(self) -> dict[str, str]:
        return measured_for(self.team.resolved, self.team.sources, self._measurable())

    def _measurable(self) -> list[Member]:
        """Members with weights here; the others do not change, and cost."""
        return [m for m in self.team.members if not isinstance(m.host, ApiHost)]

    async def _answers(
        self, questions: Sequence[Question], stage: Stage, step: int, without: Collection[str] = ()
    ) -> list[Any]:
        c = self.config
        occasion = f"{stage}{step}" if stage == "validation" else stage
        here = [m for m in self._measurable() if m.name not in without]
        self.pulse.turn_to(stage, step, len(here) * len(questions))
        return await answer_all(
            here,
            self.team.task,
            questions,
            seed=c.seed,
            occasion=occasion,
            temperature=c.eval_temperature,
            room=c.room,
            top_p=c.eval_top_p,
            heard=self.pulse.heard,
        )

    async def _keep(self, step: int) -> None:
        """Commit before an error ends the run; where that fails too, the error is the news."""
        try:
            self._account()
            await self._commit(step)
        except (HostFailure, OSError) as error:
            self.watch.note(f"the {step} steps so far could not all be saved: {error}")

    async def _commit(self, step: int) -> None:
        if (marker := self.run.marker()) is not None and marker["step"] == step:
            return
        self.pulse.turn_to("saving", step)
        path = self.run.checkpoint()
        for name, host in self.team.hosts.items():
            await _at(name, f"saving step {step}", host.save(path))
        self.run.commit(step, self.best[1])


def _spent(team: Team, before: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Seconds of this step by kind of work, summed over hosts."""
    kinds = next(iter(team.hosts.values())).seconds
    return {k: sum(h.seconds[k] - before[n][k] for n, h in team.hosts.items()) for k in kinds}


def result_of(run: Run, seconds: float) -> Result:
    """What the folder says."""
    from comas.evaluation.accuracy import paired_gain

    last: dict[str, Any] = {}
    for last in run.metrics():  # noqa: B007 - the last line is wanted
        pass
    records = {name: run.read_eval(name) for name in ("before", "after")}
    # it has gone on since
    if (ended := records["after"]) and ended["step"] != last.get("step", -1) + 1:
        records["after"] = None
    found = {
        n: Interval(**r["accuracy"]) if r and r["accuracy"] else None for n, r in records.items()
    }
    before = records["before"]
    after = records["after"]
    gain = paired_gain(before["answers"], after["answers"]) if before and after else None
    return Result(run.path, last.get("step", -1) + 1, last.get("tokens", 0), seconds, found, gain)
