"""An evaluation: systems x tasks x setups, played as far as its folder does not hold them yet.

`evaluation.json` is what is asked, `answers/*.jsonl` has a line per game, written when it ends,
`spent.json` what hosts behind an API have cost, `report.json` what it came to: cells, comparisons,
costs, notes. Going on asks nothing twice: games that machines failed are played again, answers
whose checker broke down are checked again. Leaves out: statistics (`evaluation.report`), showing it
(`cli.evaluate`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from comas.config.checks import check_roles
from comas.config.plan import Plan
from comas.evaluation import report, spec, teams
from comas.evaluation.games import Round
from comas.evaluation.questions import (
    Overlap,
    load_questions,
    of_questions,
    of_weights,
    overlaps,
)
from comas.evaluation.report import CellKey, CellReport
from comas.evaluation.setups import (
    Asking,
    ChosenSetup,
    asked_otherwise,
    asking_of,
    check_playable,
    check_team,
    chosen_setup,
    players,
)
from comas.evaluation.spec import CROSS, EvaluationPlan
from comas.evaluation.systems import asked
from comas.hooks import Hook, Progress, hooks_of
from comas.hosts.api import ApiHost
from comas.hosts.ledger import BudgetSpent
from comas.models.sources import checkpoints
from comas.program import Work
from comas.signals import listening
from comas.storage import files
from comas.storage.game_log import Log, logs_in
from comas.storage.out_folder import check_free, fresh
from comas.storage.run import accounts_in, hold, release
from comas.team import spending
from comas.team.build import Team, api_hosts_of, check_places, greet, outline
from comas.types import Account, Host, Method, Question, Task, UserMistake

PLAN = "evaluation.json"
REPORT = "report.json"
SPENT = "spent.json"
LONGEST = 240
"""Bytes of the name of a file of answers before its digest."""


class EvaluationRun:
    """An evaluation in its folder, on which one process at a time works."""

    def __init__(self, folder: Path, plan: EvaluationPlan, created: Sequence[Path] = ()) -> None:
        """`created` are the folder and those above it that this process made, from the inside
        out.
        """
        self.folder = folder
        self.plan = plan
        self._created = created
        self._work = Work(folder)
        self._plans: dict[str, Plan] = {}
        """Run or model -> what its name means: asked once."""
        self._setups: dict[str, list[ChosenSetup]] = {}
        """Run or model -> the setups in which it answers by itself."""
        self._asked: list[tuple[Task, list[Question]]] = []
        """Questions that all systems are asked: of the tasks that were named, or of the first
        system's own.
        """
        self._asking = Asking()
        """How all systems are asked: as the first one is by its own config."""
        self._notes: list[str] = []
        """Notes on the systems that a reader has to know."""
        self._overlaps: list[tuple[str, str, Overlap | None]] = []
        """Run, task, and which of the task's questions the run was trained on; None where its
        training questions cannot be read.
        """
        self._accounts: dict[str, dict[str, Account]] = {}
        """Run or model -> what its hosts behind an API have cost, over all processes."""
        self._crossed: dict[str, dict[tuple[str, str], Log]] = {}
        """Task -> pair of runs -> their games, where every run plays against every other."""

    @classmethod
    def create(cls, plan: EvaluationPlan, out: str | None = None) -> EvaluationRun:
        """In a new folder, `evals/<time>` unless `out` names one."""
        plan = spec.placed(plan)
        if out:
            path = Path(os.path.expanduser(out))
            created = [place for place in (path, *path.parents) if not place.exists()]
            check_free(str(path), "--out ")
        else:
            stem = Path("evals") / time.strftime("%Y%m%d-%H%M%S")
            missing = [place for place in stem.parents if not place.exists()]
            path = fresh(stem)
            created = [path, *missing]
        try:
            (path / "answers").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserMistake(f"--out {path}: {error.strerror}") from error
        evaluation = cls(path, plan, created)
        lock = files.lock(path, "evaluation")
        try:
            if out:
                check_free(str(path), "--out ")  # now that nobody else can begin there
            evaluation._write_plan()
            list(hold(checkpoints(plan.places.values()), path))  # told of when it goes on
        finally:
            lock.release()
        return evaluation

    @classmethod
    def open(cls, folder: str | Path, changes: Mapping[str, Any] | None = None) -> EvaluationRun:
        """One that exists; `changes` are values of keys in `spending.CHANGEABLE`, which are written
        down when it goes on.
        """
        path = Path(folder)
        try:
            written = spec.upgraded((path / PLAN).read_bytes())
            plan = TypeAdapter(EvaluationPlan).validate_json(written, strict=True)
            (path / "answers").mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise UserMistake(f"{path} is not an evaluation: it has no {PLAN}") from error
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise UserMistake(f"{path}/{PLAN} is damaged: {key}: {first['msg']}") from error
        return cls(path, spec.changed(plan, changes) if changes else plan)

    async def go(self, *hooks: Hook) -> dict[str, Any]:
        """Play what is missing; returns the report, which is also written."""
        hook = hooks_of(hooks)
        report: dict[str, Any] | None = None
        try:
            with self._alone():
                report = await self._evaluate(hook)
            return report
        finally:
            hook.ended(report)

    async def _evaluate(self, hook: Hook) -> dict[str, Any]:
        working = asyncio.current_task()
        assert working is not None
        self._write_plan()
        self._accounts = accounts_in(self.folder / SPENT, by_system=True)
        with listening(lambda: False, working.cancel):  # SIGTERM ends it in order, like Ctrl-C
            for note in hold(checkpoints(self.plan.places.values()), self.folder):
                hook.note(note)
            outlines = self._prepare(hook)
            await self._greet(outlines, hook)
            cells = await self._play_all(hook)
            crossed = await self._cross(hook) if self.plan.crosses else []
        report = {**self._outcome(cells), "cross": crossed}
        files.replace(self.folder / REPORT, files.as_json(report, indent=1))
        games = [record for cell in cells for record in cell.records]
        logs = [log for of_task in self._crossed.values() for log in of_task.values()]
        games += [record for log in logs for record in log.records]
        if games and all(game["error"] for game in games):
            first = games[0]["error"]
            raise UserMistake(f"{self.folder}: every game failed; the first: {first}")
        if all(game["verdict"] != "failed" for game in games):
            # nothing is left to ask of the checkpoints: their runs may remove them
            release(checkpoints(self.plan.places.values()), self.folder)
        return report

    def _outcome(self, cells: Sequence[CellReport]) -> dict[str, Any]:
        """Make the report, but for cross-play."""
        systems = self.plan.systems
        # first of runs of which it is not known what they were trained on
        trained = sorted(self._overlaps, key=lambda each: each[2] is not None)
        unknown = {"exact": None}
        unread = (
            "its training questions cannot be read here: whether {} was among them is not known"
        )
        warnings = [
            f"{run}: {unread.format(task)}" if overlap is None else f"{run}, {task}: {overlap}"
            for run, task, overlap in trained
            if overlap is None or overlap.exact
        ]
        return {
            "folder": str(self.folder),
            "cells": [report.cell_record(cell, systems) for cell in cells],
            "systems": report.against_first("system", cells, self.plan.seed, systems),
            "setups": report.against_first("setup", cells, self.plan.seed, systems),
            "teamwork": teams.teamwork(cells, systems),
            "api": spending.records(self._accounts),
            "asked": {"temperature": self._asking.temperature, "top_p": self._asking.top_p},
            "notes": [*report.notes(cells), *warnings, *dict.fromkeys(self._notes)],
            "overlap": [
                {"run": run, "task": task, **(asdict(overlap) if overlap else unknown)}
                for run, task, overlap in self._overlaps
            ],
        }

    # --- before a model is loaded

    def _prepare(self, hook: Hook) -> dict[str, Team]:
        """Everything that can be known before a model is loaded: a mistake in the last system costs
        no answers of the first.
        """
        plan = self.plan
        self._plans = {run: plan.of(run) for _, run in plan.runs()}
        for system in self._plans.values():
            check_places(system)
        outlines = {run: outline(system) for run, system in self._plans.items()}
        teams_outlined = list(outlines.values())
        spec.check_hosts(plan.settings, teams_outlined)
        for file, digest in spec.contents(plan, outlines).items():
            self._check_unchanged(file, digest)
        for run, team in outlines.items():
            of_run = [chosen_setup(name, team, plan.files) for name in plan.setups_per_system]
            check_roles(team.config, [team.method, *(setup.method for setup in of_run)], team.task)
            self._setups[run] = of_run
        chosen = [(team, setup) for run, team in outlines.items() for setup in self._setups[run]]
        self._asked, self._notes = load_questions(plan, outlines)
        first = spec.with_a_task(plan, outlines)
        self._asking = asking_of(outlines[first].config)
        for task, questions in self._asked:
            digest = of_questions(questions)
            self._check_unchanged(f"questions of {task.name}", digest)
            for _, setup in chosen:
                check_playable(setup, task)
        configs = {run: team.config for run, team in outlines.items()}
        self._notes += asked_otherwise(configs, first)
        for team, setup in chosen:
            check_team(setup, team, self._asked)
        answerers = sum(len(players(team, setup)) for team, setup in chosen)
        if plan.crosses:
            for task, _ in self._asked:
                teams.check_sides(task, self._methods(), teams_outlined)
            answerers += len(plan.runs()) ** 2
        questions = sum(len(questions) for _, questions in self._asked)
        played = sum(len(Log(path).found) for path in logs_in(self.folder / "answers"))
        hook.planned(self.folder, answerers * questions, played)
        return outlines

    def _methods(self) -> list[Method]:
        """The methods of the systems."""
        return [plan.method for plan in self._plans.values()]

    async def _greet(self, outlines: Mapping[str, Team], hook: Hook) -> None:
        """Let the hosts behind an API that have something left to answer say one token, each
        endpoint and model once.
        """
        greeted: set[tuple[object, ...]] = set()
        for system, run in self.plan.runs():
            hosts = self._api_hosts(run)
            rounds = self._rounds(system, run, outlines[run])
            if not hosts or not (self.plan.crosses or any(each.to_play() for each in rounds)):
                continue
            try:
                await greet(hosts, outlines[run].members, hook.note, self._asking.sampling, greeted)
            finally:
                self._account(run, hosts)
                for host in hosts.values():
                    host.close()

    # --- playing

    async def _play_all(self, hook: Hook) -> list[CellReport]:
        """Play every system in every task and setup."""
        cells: dict[CellKey, CellReport] = {}
        for system, run in self.plan.runs():
            hook.working(Progress("loading"))
            with closing(self._load(run)) as team:
                self._check_weights(run, team)
                # of a game what is held out is the opponent: its splits begin in the same positions
                asked = [(task, questions) for task, questions in self._asked if task.rules is None]
                names = [self.plan.places.get(run, run)]
                if run in self.plan.teams:
                    names = team.plan.base_names()
                self._overlaps += [(run, task, overlap) for task, overlap in overlaps(names, asked)]
                for each in self._rounds(system, run, team):
                    await self._play(each, hook, {run: team.hosts})
                    cell = CellReport(*each.key, each.answerers, len(each.games()), [])
                    cells.setdefault(each.key, cell).add(each.log)
        return list(cells.values())

    def _rounds(self, system: str, run: str, team: Team) -> Iterator[Round]:
        for task, questions in self._asked:
            for setup in self._setups[run]:
                log = self.log(run, task.name, setup.name)
                yield Round(system, team, task, questions, setup, log)

    def _load(self, run: str) -> Team:
        """Load a system."""
        return asked(self._plans[run], self._api_hosts(run))

    def _api_hosts(self, run: str) -> dict[str, ApiHost]:
        """A run's hosts behind an API, with what they have cost so far; not yet opened."""
        hosts = api_hosts_of(self._plans[run])
        others = [account for other, account in self._accounts.items() if other != run]
        spending.restore(hosts, self._accounts.get(run, {}), others, work=self._work)
        return hosts

    async def _play(self, each: Round, hook: Hook, hosts: Mapping[str, Mapping[str, Host]]) -> None:
        """Play a round; `hosts` are those of the runs that take part in it."""

        def account() -> None:
            for run, of_run in hosts.items():
                self._account(run, of_run)

        await each.play(self._asking, self.plan.seed, hook, account)

    def _account(self, run: str, hosts: Mapping[str, Host]) -> None:
        """Write down what a run's hosts have cost."""
        self._accounts[run] = spending.accounts(hosts)
        files.replace(self.folder / SPENT, files.as_json(self._accounts, indent=1))

    # --- every run against every other

    async def _cross(self, hook: Hook) -> list[dict[str, Any]]:
        """Play all pairs of runs, two teams at a time in memory; a matrix for each task that has a
        question which all of them have played to its end.
        """
        runs = [run for _, run in self.plan.runs()]
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
            payoffs = {pair: teams.payoffs_in(log) for pair, log in logs.items()}
            matrix = teams.matrix_of(runs, payoffs, len(questions))
            if matrix is None:
                reason = "no question was played to its end by all pairs"
                self._notes.append(f"cross of {task.name}: {reason}")
            else:
                matrices.append({"task": task.name, **matrix})
        return matrices

    async def _play_pair(
        self, row: str, rows: Team, column: str, columns: Team, hook: Hook
    ) -> None:
        """Let two runs play against each other in each task."""
        joined = teams.joined(rows, columns)
        pair = f"{row} against {column}"
        for task, questions in self._asked:
            setup = ChosenSetup(
                CROSS, teams.between(teams.game_of(task, self._methods())), False, {}
            )
            log = self.log(pair, task.name, CROSS)
            self._crossed.setdefault(task.name, {})[row, column] = log
            each = Round(pair, joined, teams.judging(task), questions, setup, log)
            await self._play(each, hook, {row: rows.hosts, column: columns.hosts})

    # --- the folder

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes out; a mistake before anything was asked leaves no folder behind."""
        lock = files.lock(self.folder, "evaluation")
        try:
            yield
        except BudgetSpent:  # there is something to go on with
            raise
        except UserMistake:
            if self._created and not any((self.folder / "answers").iterdir()):
                shutil.rmtree(self.folder)
                for above in self._created[1:]:
                    with suppress(OSError):  # others use it by now
                        above.rmdir()
            raise
        finally:
            lock.release()

    def _write_plan(self) -> None:
        """Write down what is asked."""
        files.replace(self.folder / PLAN, json.dumps(asdict(self.plan), indent=1))

    def _check_unchanged(self, what: str, digest: str) -> None:
        """Note the digest of what is asked, or an error where it is no longer what it was."""
        earlier = self.plan.digests.get(what)
        if earlier is None:
            self.plan = replace(self.plan, digests={**self.plan.digests, what: digest})
            self._write_plan()
        elif earlier != digest:
            raise UserMistake(
                f"{self.folder}: the {what} are not what they were when this evaluation began"
                " (SHA-256 differs): bring them back, or start a new evaluation"
            )

    def _check_weights(self, run: str, team: Team) -> None:
        """Note what was loaded, or an error where its weights are not those of the beginning."""
        if team.sources:
            self._check_unchanged(f"weights of {run}", of_weights(team.sources))

    def log(self, run: str, task: str, setup: str) -> Log:
        """Read the games that one run has played of a task in a setup."""
        slug = re.sub(r"[^\w.=-]+", "-", f"{Path(run).name}.{task}.{setup}")
        slug = slug.encode()[:LONGEST].decode(errors="ignore")
        digest = hashlib.sha256(f"{run} {task} {setup}".encode()).hexdigest()[:8]
        return Log(self.folder / "answers" / f"{slug}.{digest}.jsonl")
