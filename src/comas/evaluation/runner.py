"""An evaluation: systems x tasks x setups, played as far as its folder does not hold them yet.

Going on asks nothing twice: games that machines failed are played again, answers whose checker
broke down are checked again. What it came to is written at its end: cells, comparisons, costs,
notes. Leaves out: the folder (`evaluation.folder`), statistics (`evaluation.report`), showing it
(`cli.evaluate`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

from comas.config.resolve import Resolved, check_roles
from comas.evaluation import cross_play, fingerprints, report, spec, ways
from comas.evaluation.folder import Folder
from comas.evaluation.games import OpenRound, Played, Round
from comas.evaluation.questions import Overlap, load_questions, overlaps
from comas.evaluation.report import Cell, Key
from comas.evaluation.spec import CROSS, Plan
from comas.evaluation.teamwork import teamwork
from comas.evaluation.ways import Asking, Way, asked_otherwise, asking_of
from comas.hooks import Hook, Progress, Pulse, hooks_of
from comas.hosts.api import ApiHost
from comas.program import Work
from comas.signals import listening
from comas.storage.game_log import Log
from comas.team import spending
from comas.team.build import Team, api_hosts_of, greet, outline
from comas.types import Account, Host, Method, Question, Sampling, Task, UserMistake


class Trained(NamedTuple):
    """Which questions of a task a run was trained on."""

    run: str
    task: str
    overlap: Overlap | None
    """None where its training questions cannot be read."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        unknown = {"exact": None, "near": None}
        pairs = dataclasses.asdict(self.overlap) if self.overlap else unknown
        return {"run": self.run, "task": self.task, **pairs}

    def warning(self) -> str | None:
        """What a reader has to know of it."""
        if self.overlap is None:
            return (
                f"{self.run}: its training questions cannot be read here: whether {self.task} was"
                " among them is not known"
            )
        if self.overlap.exact or self.overlap.near:
            return f"{self.run}, {self.task}: {self.overlap}"
        return None


class Exam:
    """An evaluation, ready to be played."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._own_hosts: Mapping[str, Host] = {}
        self._work = Work(folder.path)
        self._resolved: dict[str, Resolved] = {}
        """Run or model -> what its name means: asked once."""
        self._asked: list[tuple[Task, list[Question]]] = []
        """Of all systems: the questions of the tasks that were named, or of the first system's own.
        """
        self._asking = Asking()
        """How all systems are asked: as the first one is by its own config."""
        self._notes: list[str] = []
        """What a reader has to know of the systems."""
        self._trained: list[Trained] = []
        self._accounts: dict[str, dict[str, Account]] = {}
        """Run or model -> what its hosts behind an API have cost, over all processes."""
        self._crossed: dict[str, dict[tuple[str, str], Log]] = {}
        """Task -> pair of runs -> their games, where every run plays against every other."""

    @classmethod
    def create(cls, plan: Plan, out: str | None = None) -> Exam:
        """In a new folder, `evals/<time>` unless `out` names one."""
        return cls(Folder.create(plan, out))

    @classmethod
    def open(cls, folder: str | Path, changes: Sequence[str] = ()) -> Exam:
        """One that exists; `changes` as in `Folder.open`."""
        return cls(Folder.open(folder, changes))

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def plan(self) -> Plan:
        return self._folder.plan

    async def go(self, *hooks: Hook, hosts: Mapping[str, Host] | None = None) -> dict[str, Any]:
        """Play what is missing; returns the report, which is also written. `hosts` are instances of
        the caller's own, for systems that have such.
        """
        self._own_hosts = hosts or {}
        hook = hooks_of(hooks)
        report: dict[str, Any] | None = None
        try:
            with self._folder.alone():
                report = await self._evaluate(hook)
            return report
        finally:
            hook.ended(report)

    async def _evaluate(self, hook: Hook) -> dict[str, Any]:
        working = asyncio.current_task()
        assert working is not None
        self._folder.write_plan()
        self._accounts = self._folder.read_accounts()
        with listening(lambda: False, working.cancel):  # SIGTERM ends it in order, like Ctrl-C
            for note in self._folder.notes:
                hook.note(note)
            outlines = self._prepare(hook)
            await self._greet(outlines, hook)
            cells = await self._play_all(hook)
            crossed = await self._cross(hook) if self.plan.crosses else []
        report = {**self._outcome(cells), "cross": crossed}
        self._folder.write_report(report)
        games = [record for cell in cells for record in cell.records]
        logs = [log for of_task in self._crossed.values() for log in of_task.values()]
        games += [record for log in logs for record in log.found.values()]
        if games and all(game["error"] for game in games):
            first = games[0]["error"]
            raise UserMistake(f"{self.folder}: every game failed; the first: {first}")
        if all(game["verdict"] != "failed" for game in games):
            self._folder.release_checkpoints()
        return report

    def _outcome(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """Make the report, but for cross-play."""
        systems = self.plan.systems
        seed = self.plan.seed

        def compared(part: Literal["system", "setup"]) -> list[dict[str, Any]]:
            found = report.against_first(part, cells, seed)
            return [difference.record(systems) for difference in found]

        # first of runs of which it is not known what they were trained on
        trained = sorted(self._trained, key=lambda each: each.overlap is not None)
        warnings = [warning for each in trained if (warning := each.warning())]
        return {
            "folder": str(self.folder),
            "cells": [report.cell_record(cell, systems) for cell in cells],
            "systems": compared("system"),
            "setups": compared("setup"),
            "teamwork": teamwork(cells, systems),
            "api": spending.records(self._accounts),
            "asked": {"temperature": self._asking.temperature, "top_p": self._asking.top_p},
            "notes": [*report.notes(cells), *warnings, *dict.fromkeys(self._notes)],
            "overlap": [each.record() for each in self._trained],
        }

    # --- before a model is loaded

    def _prepare(self, hook: Hook) -> dict[str, Team]:
        """Everything that can be known before a model is loaded: a mistake in the last system costs
        no answers of the first.
        """
        for _, run in self._runs():
            self._resolved[run] = self.plan.resolved(run)
        outlines = {run: outline(resolved) for run, resolved in self._resolved.items()}
        teams = list(outlines.values())
        spec.check_hosts(self.plan.pairs, teams)
        for file, digest in spec.contents(self.plan, teams).items():
            self._folder.check_unchanged(file, digest)
        chosen: list[tuple[Team, Way]] = []
        for team in teams:
            of_team = [ways.way(setup, team, self.plan.files) for setup in self.plan.ways]
            check_roles(team.config, [team.method, *(way.method for way in of_team)], team.task)
            chosen += [(team, way) for way in of_team]
        self._asked, self._notes = load_questions(self.plan, teams)
        self._asking = asking_of(teams[0].config)
        for task, questions in self._asked:
            digest = fingerprints.of_questions(questions)
            self._folder.check_unchanged(f"questions of {task.name}", digest)
            for _, way in chosen:
                ways.check_playable(way, task)
        configs = [(run, team.config) for run, team in outlines.items()]
        self._notes += asked_otherwise(configs)
        for team, way in chosen:
            ways.check_team(way, team, self._asked)
        answerers = sum(len(ways.players(team, way)) for team, way in chosen)
        if self.plan.crosses:
            for task, _ in self._asked:
                cross_play.check_sides(task, self._methods(), teams)
            answerers += len(self._runs()) ** 2
        questions = sum(len(questions) for _, questions in self._asked)
        hook.planned(self.folder, answerers * questions, self._folder.games())
        return outlines

    def _methods(self) -> list[Method]:
        """The methods of the systems."""
        return [resolved.method for resolved in self._resolved.values()]

    async def _greet(self, outlines: Mapping[str, Team], hook: Hook) -> None:
        """Let the hosts behind an API that have something left to answer say one token, each
        endpoint and model once.
        """
        greeted: set[tuple[str, ...]] = set()
        sampling = Sampling(self._asking.temperature, self._asking.top_p)
        for system, run in self._runs():
            team = outlines[run]
            hosts = self._api_hosts(run)
            rounds = self._rounds(system, run, team)
            if not hosts or not (self.plan.crosses or any(each.to_play() for each in rounds)):
                continue
            try:
                await greet(hosts, sampling, hook.note, greeted)
            finally:
                self._account(run, hosts)
                for host in hosts.values():
                    host.close()

    # --- playing

    async def _play_all(self, hook: Hook) -> list[Cell]:
        """Play every system in every task and setup."""
        rounds: dict[Key, list[Played]] = {}
        for system, run in self._runs():
            hook.working(Progress("loading"))
            team = self._load(run)
            try:
                self._check_weights(run, team)
                self._trained += self._overlaps(run, team)
                for each in self._rounds(system, run, team):
                    await self._play(each, hook)
                    rounds.setdefault(each.key, []).append(each.played())
            finally:
                team.close()
        return [_cell_of(key, played) for key, played in rounds.items()]

    def _overlaps(self, run: str, team: Team) -> list[Trained]:
        """Which of the questions that are asked a run was trained on, per task. Of a game what is
        held out is the opponent: its splits begin in the same positions.
        """
        asked = [(task, questions) for task, questions in self._asked if task.rules is None]
        names = [self.plan.places.get(run, run)]
        if run in self.plan.teams:
            names = team.resolved.base_names()
        return [Trained(run, task, overlap) for task, overlap in overlaps(names, asked)]

    def _runs(self) -> list[tuple[str, str]]:
        """List (system, run) of all runs and models."""
        return [(system, run) for system in self.plan.systems for run in system.split(",")]

    def _rounds(self, system: str, run: str, team: Team) -> Iterator[Round]:
        for task, questions in self._asked:
            for setup in self.plan.ways:
                way = ways.way(setup, team, self.plan.files)
                log = self._folder.log(run, task.name, setup)
                yield Round(system, run, team, task, questions, way, log)

    def _load(self, run: str) -> Team:
        """Load a system."""
        resolved = self._resolved[run]
        apis = self._api_hosts(run)
        own = {n: host for n, host in self._own_hosts.items() if n in resolved.config.hosts}
        return self.plan.team(run, resolved, {**apis, **own})

    def _api_hosts(self, run: str) -> dict[str, ApiHost]:
        """A run's hosts behind an API, with what they have cost so far; not yet opened."""
        hosts = api_hosts_of(self._resolved[run], self._work)
        others = [account for other, account in self._accounts.items() if other != run]
        spending.restore(hosts, self._accounts.get(run, {}), others)
        return hosts

    def _check_weights(self, run: str, team: Team) -> None:
        """Note what was loaded, or an error where its weights are not those of the beginning."""
        if team.sources:
            digest = fingerprints.of_weights(team.sources)
            self._folder.check_unchanged(f"weights of {run}", digest)

    async def _play(
        self, each: Round, hook: Hook, account: Callable[[], None] | None = None
    ) -> None:
        """Let one team answer the questions of a round, as far as it has not; `account` writes down
        what its hosts have cost, where these are not those of one run.
        """
        to_judge = each.to_judge()
        to_play = each.to_play()
        hook.cell(*each.key)
        if not to_judge and not to_play:
            return
        began = time.monotonic()
        questions = {question.id: question for question in each.questions}
        playing = OpenRound(each.task, each.log, hook)
        hosts = each.team.hosts
        # the first game may end late; of hosts that count nothing only games are told
        counting = {name: host for name, host in hosts.items() if host.meter is not None}
        pulse = Pulse(hook, counting)
        if counting:
            pulse.turn_to("playing")
        kept = spending.kept(hosts, account or (lambda: self._account(each.run, hosts)))
        try:
            with pulse.beating() if counting else nullcontext():
                async with kept, asyncio.TaskGroup() as group:
                    for record in to_judge:
                        question = questions[record["question"]]
                        group.create_task(playing.judge_again(record, question))
                    for game in to_play:
                        scene = self._asking.scene(
                            each.task, each.way, game.members, self.plan.seed
                        )
                        group.create_task(playing.play(scene, game))
            if playing.spent:
                raise playing.spent[0]
        finally:
            playing.close()
            each.log.close(
                seconds=time.monotonic() - began,
                bases=each.team.origins(),
                team=each.played().team,
            )

    def _account(self, run: str, hosts: Mapping[str, Host]) -> None:
        """Write down what a run's hosts have cost."""
        self._accounts[run] = spending.accounts(hosts)
        self._folder.write_accounts(self._accounts)

    # --- every run against every other

    async def _cross(self, hook: Hook) -> list[dict[str, Any]]:
        """Play all pairs of runs, two teams at a time in memory; a matrix for each task that has a
        question which all of them have played to its end.
        """
        runs = [run for _, run in self._runs()]
        for row in runs:
            with closing(self._load(row)) as rows:
                self._check_weights(row, rows)
                for column in runs:
                    other = nullcontext(rows) if column == row else closing(self._load(column))
                    with other as columns:
                        self._check_weights(column, columns)
                        await self._play_pair(row, rows, column, columns, hook)
        matrices: list[dict[str, Any]] = []
        for task, questions in self._asked:
            logs = self._crossed[task.name]
            found = {pair: cross_play.payoffs_in(log) for pair, log in logs.items()}
            matrix = cross_play.matrix(runs, found)
            if matrix is None:
                reason = "no question was played to its end by all pairs"
                self._notes.append(f"cross of {task.name}: {reason}")
            else:
                matrices.append(matrix.record(task.name, len(questions)))
        return matrices

    async def _play_pair(
        self, row: str, rows: Team, column: str, columns: Team, hook: Hook
    ) -> None:
        """Let two runs play against each other in each task."""

        def account() -> None:
            self._account(row, rows.hosts)
            self._account(column, columns.hosts)

        both = cross_play.joined(rows, columns)
        pair = f"{row} against {column}"
        for task, questions in self._asked:
            game = cross_play.game_of(task, self._methods())
            way = Way(CROSS, cross_play.between(game), False, {})
            log = self._folder.log(pair, task.name, CROSS)
            self._crossed.setdefault(task.name, {})[row, column] = log
            judged = cross_play.judging(task)
            await self._play(Round(pair, pair, both, judged, questions, way, log), hook, account)


def _cell_of(key: Key, rounds: Sequence[Played]) -> Cell:
    """The cell of a system, from the rounds that its runs have played."""
    logs = [played.log for played in rounds]
    return Cell(
        *key,
        team=rounds[0].team,
        planned=rounds[0].planned,
        runs=[list(log.found.values()) for log in logs],
        bases=tuple(", ".join(log.facts.get("bases", [])) for log in logs),
        seconds=sum(log.seconds for log in logs),
    )
