"""THE loop: play, settle, learn, write; and what surrounds it once: measure before, measure after.

Leaves out: how games are batched (hosts), how they are paid (methods), how a run looks on disk (store).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from comas.agent import derive_seed
from comas.config import Config, read, resolve, split_options
from comas.evaluate import accuracy, answer_all
from comas.metrics import summarise
from comas.play import payoffs, play_all, settle_all
from comas.stats import Interval
from comas.store import Run
from comas.team import Team, build_team, run_sync
from comas.types import Episode, Question, Turn, UserMistake


class Watch:
    """Told of what happens; every method may be overridden, none needs to be."""

    path: Path | None = None
    """The run's folder, once there is one."""

    def begin(self, run: Run, team: Team, start: int) -> None:
        """The run is about to start (or to go on) at step `start`."""

    def turn(self, turn: Turn) -> None:
        """Somebody said something; not yet paid."""

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """A step is written."""

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        """An accuracy: `before`, `validation` or `after`."""


@dataclass
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


def train(config: str | Path | None = None, watch: Watch | None = None, **overrides: Any) -> Result:
    """Train a team: `comas.train(method="ttrl", steps=50, options__votes=8)`; `__` stands for the dot of a nested key."""
    return run_sync(train_async(read(config, {k.replace("__", "."): v for k, v in overrides.items()}), watch or Watch()))


async def train_async(config: Config, watch: Watch) -> Result:
    """The same from a config, inside an event loop."""
    resolved, method, task = resolve(config)
    team = build_team(resolved, method, task)
    try:
        session = Session(team, watch)  # loads the questions: mistakes in them leave no folder behind
        return await session.go(Run.create(resolved.model_dump(), resolved.out), 0)
    finally:
        team.close()


async def resume_async(path: str | Path, watch: Watch, steps: int | None = None) -> Result:
    """Go on from a run's last commit, to its own number of steps or to `steps`."""
    run = Run.open(path)
    start = run.rewind()
    config, method, task = resolve(Config.model_validate({**run.config(), **({"steps": steps} if steps else {})}))
    team = build_team(config, method, task)
    try:
        for host in team.hosts.values():
            await host.load(run.path / "checkpoints" / f"step-{start}")
        return await Session(team, watch).go(run, start)
    finally:
        team.close()


class Session:
    """One process's work on one run."""

    run: Run

    def __init__(self, team: Team, watch: Watch) -> None:
        self.team, self.watch, self.config = team, watch, team.config
        self.questions = self._load("train")
        self.validation = self._load("validation", self.config.eval_questions) if self.config.eval_every else []
        self.test = self._load("test", self.config.test_questions) if self.config.test_questions else []
        if both := {q.id for q in self.questions} & {q.id for q in self.test}:
            raise UserMistake(
                f"task {self.config.task}: {len(both)} held-out questions are also trained on ({min(both)}): give `data` a folder "
                "with a file per split, or set test_questions=0"
            )
        self.tokens, self.best, self.began = 0, (-1.0, None), time.monotonic()

    def _load(self, split: str, limit: int | None = None) -> list[Question]:
        c = self.config
        found = self.team.task.load(split, path=c.data, limit=limit, seed=c.seed, **c.task_options)
        if not found:
            raise UserMistake(f"task {c.task} has no questions in split {split!r}" + (f" of {c.data}" if c.data else ""))
        return found

    def draw(self, step: int) -> list[Question]:
        """The questions of a step: a new order for each pass over them, a function of (seed, step) alone."""
        n, count = len(self.questions), self.config.questions or 1
        drawn = []
        for place in range(step * count, (step + 1) * count):
            turn, i = divmod(place, n)
            drawn.append(_order(n, derive_seed(self.config.seed, "order", turn))[i])
        return [self.questions[i] for i in dict.fromkeys(drawn)]  # a step that spans two passes asks nothing twice

    async def go(self, run: Run, start: int) -> Result:
        """Measure, loop from `start`, measure; all of it recorded in `run`."""
        self.run = run
        for metrics in self.run.metrics():
            self.tokens = metrics["tokens"]
            if (found := metrics.get("validation")) and found["mean"] > self.best[0]:
                self.best = (found["mean"], metrics["step"] + 1)
        self.watch.path = run.path
        self.watch.begin(self.run, self.team, start)
        if start == 0:
            await self._measure("before", 0, self.test)
            await self._commit(0)
        await self._measure("after", await self.loop(start), self.test)
        return result_of(self.run, time.monotonic() - self.began)

    async def loop(self, start: int) -> int:
        """Play, settle, learn, write; returns the number of steps that the policies have behind them."""
        config, team = self.config, self.team
        scene = team.scene(keep=True, heard=self.watch.turn)
        for step in range(start, config.steps):
            if self._spent():  # also where a run is resumed that ended so
                return step
            began, spent = time.monotonic(), {n: dict(h.seconds) for n, h in team.hosts.items()}
            episodes = await play_all(scene, self.draw(step), step, config.samples or 1)
            if all(e.error for e in episodes):
                raise UserMistake(f"step {step}: every discussion failed; the first: {episodes[0].error}")
            settle_all(scene, episodes, split_options(config.options, team.method.settle))
            paid = payoffs(episodes, team.members)
            async with asyncio.TaskGroup() as group:
                learning = {n: group.create_task(h.learn(paid.get(n, {}), team.method)) for n, h in team.hosts.items()}
            learned = {name: task.result() for name, task in learning.items()}
            metrics = summarise(episodes, learned)
            self.tokens += metrics["step_tokens"]
            metrics |= {"tokens": self.tokens, "seconds": time.monotonic() - began, "spent": _spent(team, spent)}
            if config.eval_every and (step + 1) % config.eval_every == 0:
                metrics["validation"] = await self._validate(step + 1)
            self.run.write_step(step, metrics, episodes)
            self.watch.step({"step": step, **metrics}, episodes)
            if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps or self._spent():
                await self._commit(step + 1)
        return max(start, config.steps)

    def _spent(self) -> bool:
        return self.config.tokens is not None and self.tokens >= self.config.tokens

    async def _validate(self, step: int) -> dict[str, float] | None:
        found = accuracy(await self._answers(self.validation, f"validation{step}"))
        if found is not None and found.mean > self.best[0]:
            self.best = (found.mean, step)
        self.watch.measured("validation", step, found)
        return found._asdict() if found else None

    async def _measure(self, name: str, step: int, questions: Sequence[Question]) -> None:
        if questions:
            answers = await self._answers(questions, name)
            found = accuracy(answers)
            record = {"step": step, "accuracy": found._asdict() if found else None, "answers": [asdict(a) for a in answers]}
            self.run.write_eval(name, record)
            self.watch.measured(name, step, found)

    async def _answers(self, questions: Sequence[Question], occasion: str) -> list[Any]:
        c = self.config
        return await answer_all(
            self.team.members, self.team.task, questions, seed=c.seed, occasion=occasion, temperature=c.eval_temperature,
            room=c.room,
        )

    async def _commit(self, step: int) -> None:
        path = self.run.checkpoint(step)
        for host in self.team.hosts.values():
            await host.save(path)
        self.run.commit(step, self.best[1])


@lru_cache(maxsize=2)  # asked for every question, and a step spans two passes at most
def _order(n: int, seed: int) -> list[int]:
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return order


def _spent(team: Team, before: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Seconds of this step by kind of work, summed over hosts."""
    kinds = next(iter(team.hosts.values())).seconds
    return {k: sum(h.seconds[k] - before[n][k] for n, h in team.hosts.items()) for k in kinds}


def result_of(run: Run, seconds: float) -> Result:
    """What the folder says."""
    from comas.evaluate import paired_gain

    last: dict[str, Any] = {}
    for last in run.metrics():  # noqa: B007 - the last line is wanted
        pass
    records = {name: run.read_eval(name) for name in ("before", "after")}
    found = {n: Interval(**r["accuracy"]) if r and r["accuracy"] else None for n, r in records.items()}
    before, after = records["before"], records["after"]
    gain = paired_gain(before["answers"], after["answers"]) if before and after else None
    return Result(run.path, last.get("step", -1) + 1, last.get("tokens", 0), seconds, found, gain)
