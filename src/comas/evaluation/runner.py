"""An evaluation: systems x tasks x setups, as a folder that survives whatever stops it.

`evaluation.json` says what is asked, `answers/*.jsonl` has a line per game, written when it ends,
`report.json` what it came to. Going on asks nothing twice: games that machines failed are played
again, answers whose checker broke down are checked again. Leaves out: statistics
(`evaluation.report`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import filelock
from pydantic import TypeAdapter, ValidationError

from comas.config.policies import Resolved
from comas.config.roles import check_roles
from comas.evaluation import fingerprints, report
from comas.evaluation import spec as plans
from comas.evaluation.asking import Asking, asked_otherwise, asking_of
from comas.evaluation.contamination import Overlap
from comas.evaluation.games import judge_game, play_game
from comas.evaluation.report import Cell
from comas.evaluation.spec import (
    Plan,
    asked_roles,
    changed,
    check_hosts,
    check_roles_taken,
    described,
    overlaps,
    places,
    players,
    questions,
    teams,
    way,
)
from comas.game.agent import Member
from comas.hooks import Hook, hooks_of
from comas.hosts.api import ApiHost
from comas.hosts.endpoint.ledger import BudgetSpent
from comas.machine import peak_bytes, usable_cpus
from comas.models.sources import checkpoints
from comas.program import Work, command
from comas.signals import listening
from comas.storage import files, lineage
from comas.storage.game_log import Log, logs_in
from comas.storage.out_folder import fresh
from comas.team import spending
from comas.team.build import Team, api_hosts_of, outline
from comas.team.greeting import greet
from comas.types import Account, Episode, Host, Question, Sampling, Task, UserMistake

AT_ONCE = 512
"""Games that are played side by side."""
PLAN = "evaluation.json"
SPENT = "spent.json"


class Exam:
    """An evaluation in its folder."""

    def __init__(self, folder: Path, plan: Plan, made: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.plan = plan
        self._made = made
        """`made` is what this process made of the folder and those above it, from the inside out.
        """
        self.said_at_start: list[str] = []
        self.own_hosts: dict[str, Host] = {}
        self.work = Work(folder)
        self._lock = filelock.FileLock(folder / ".lock")
        self.resolved: dict[str, Resolved] = {}
        """Run or model -> what its name means: asked once."""
        self.asked: list[tuple[Task, list[Question]]] = []
        """Of all systems: the questions of the tasks that were named, or of the first system's own.
        """
        self.said: list[str] = []
        """What a reader has to know of the systems."""
        self.accounts: dict[str, dict[str, Account]] = {}
        """Run or model -> what its hosts behind an API have cost, over all processes."""
        self.games = 0
        """Planned ones; votes at equal tokens are planned when the tokens are known."""
        self.overlaps: list[tuple[str, str, str, Overlap | None]] = []
        """(system, run, task, what was trained on; None where that is not known)."""
        self.asking = Asking()
        """How all systems are asked: as the first one is by its own config."""

    @classmethod
    def create(cls, plan: Plan, out: str | None = None) -> Exam:
        """A new folder, `evals/<time>` unless `out` names one."""
        found = places(plan.systems)
        data = str(Path(plan.data).resolve()) if plan.data else None
        plan = replace(
            plan, places=found, teams=teams(found, plan.pairs), data=data, files=plans.files(plan)
        )
        folder = (
            Path(os.path.expanduser(out)) if out else Path("evals") / time.strftime("%Y%m%d-%H%M%S")
        )
        made = [p for p in (folder, *folder.parents) if (p == folder and not out) or not p.exists()]
        folder = folder if out else fresh(folder)
        if (folder / PLAN).exists():
            going_on = f"`{command()} resume {shlex.quote(str(folder))}`"
            raise UserMistake(
                f"--out {out}: there is an evaluation already; go on with {going_on} or choose"
                " another"
            )
        if out and folder.is_dir() and any(folder.iterdir()):
            raise UserMistake(
                f"--out {out}: there is something else in this folder; choose another"
            )
        try:
            (folder / "answers").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserMistake(f"--out {folder}: {error.strerror}") from error
        files.replace(folder / PLAN, json.dumps(asdict(plan), indent=1))
        exam = cls(folder, plan, made)
        exam.said_at_start = list(lineage.hold(checkpoints(found.values()), folder))
        return exam

    @classmethod
    def open(cls, folder: str | Path, changes: Sequence[str] = ()) -> Exam:
        """One that exists; `changes` are pairs of keys in `spending.CHANGEABLE`, which are written
        down when it goes on.
        """
        try:
            plan = TypeAdapter(Plan).validate_json((Path(folder) / PLAN).read_bytes(), strict=True)
            (Path(folder) / "answers").mkdir(exist_ok=True)
            return cls(Path(folder), changed(plan, changes) if changes else plan)
        except FileNotFoundError as error:
            raise UserMistake(f"{folder} is not an evaluation: it has no {PLAN}") from error
        except ValidationError as error:
            wrong = error.errors()[0]
            raise UserMistake(
                f"{folder}/{PLAN} is damaged: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            ) from error

    async def go(self, *hooks: Hook, hosts: Mapping[str, Host] | None = None) -> dict[str, Any]:
        """Play what is missing; returns the report, which is also written. `hosts` are instances of
        the caller's own, for systems that have such.
        """
        self.own_hosts = dict(hosts or {})
        hook = hooks_of(hooks)
        report: dict[str, Any] | None = None
        try:
            report = await self._evaluate(hook)
            return report
        finally:
            hook.ended(report)

    async def _evaluate(self, hook: Hook) -> dict[str, Any]:
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserMistake(
                f"{self.folder}: another process is working on this evaluation; wait for it or"
                " stop it"
            ) from None
        working = asyncio.current_task()
        assert working is not None
        try:
            files.replace(self.folder / PLAN, json.dumps(asdict(self.plan), indent=1))
            self.accounts = spending.read(self.folder / SPENT)
            with listening(lambda: False, working.cancel):  # SIGTERM ends it in order, like Ctrl-C
                for note in self.said_at_start:
                    hook.note(note)
                await self._greet(self._prepare(hook), hook)
                cells = await self._cells(self.plan.setups, hook)
                extra = await self._matched(cells, hook) if self.plan.equal_tokens else []
            found = self._report(cells, extra)
            files.replace(self.folder / "report.json", files.as_json(found, indent=1))
            records = [r for c in cells for r in c.records]
            if records and all(r["error"] for r in records):
                raise UserMistake(
                    f"{self.folder}: every game failed; the first: {records[0]['error']}"
                )
            if not any(r["verdict"] == "failed" for r in records):  # nothing is left to ask
                lineage.release(checkpoints(self.plan.places.values()), self.folder)
            return found
        except BudgetSpent:  # there is something to go on with
            raise
        except UserMistake:
            self._forget()
            raise
        finally:
            self._lock.release()

    def _forget(self) -> None:
        """A mistake before anything was asked leaves no folder behind."""
        if self._made and not any((self.folder / "answers").iterdir()):
            shutil.rmtree(self.folder)
            for above in self._made[1:]:
                with suppress(OSError):  # others use it by now
                    above.rmdir()

    async def _cells(
        self,
        setups: Sequence[str],
        hook: Hook,
        only: Sequence[tuple[str, str, str]] | None = None,
    ) -> list[Cell]:
        """Every system in every task and setup; with `only` those (system, task, setup)."""
        cells: dict[tuple[str, str, str], list[tuple[Log, int, str]]] = {}
        for system, run in self._runs(only):
            resolved = self.resolved[run]
            apis = self._restored(run, resolved)
            own = {n: host for n, host in self.own_hosts.items() if n in resolved.config.hosts}
            team = self.plan.team(run, resolved, {**apis, **own})
            try:
                self._write(plans.with_rooms(self.plan, run, self.resolved[run], team))
                self.resolved[run] = team.resolved
                if team.sources:
                    self._same(f"weights of {run}", fingerprints.of_weights(team.sources))
                wanted = lambda key: only is None or key in only  # noqa: E731
                asked = [
                    (t, qs, s)
                    for t, qs in self.asked
                    for s in setups
                    if wanted((system, t.name, s))
                ]
                if only is None:
                    past = (
                        team.resolved.base_names()
                        if run in self.plan.teams
                        else [self.plan.places.get(run, run)]
                    )
                    self.overlaps += [(system, run, *found) for found in overlaps(past, asked)]
                for task, questions, setup in asked:
                    log = await self._sit(run, team, task, questions, setup, system, hook)
                    cells.setdefault((system, task.name, setup), []).append(log)
            finally:
                team.close()
        return [self._cell(key, found) for key, found in cells.items()]

    def _runs(self, only: Sequence[tuple[str, str, str]] | None = None) -> list[tuple[str, str]]:
        """(system, run)"""
        return [
            (s, run)
            for s in self.plan.systems
            for run in s.split(",")
            if only is None or any(s == name for name, *_ in only)
        ]

    def _restored(self, run: str, resolved: Resolved) -> dict[str, ApiHost]:
        """A run's hosts behind an API, with what they have cost so far; not yet opened."""
        apis = api_hosts_of(resolved, self.work)
        others = [account for other, account in self.accounts.items() if other != run]
        spending.restore(apis, self.accounts.get(run, {}), others)
        return apis

    async def _greet(self, there: Sequence[Team], hook: Hook) -> None:
        """Let the hosts behind an API that have something left to answer say one token, each
        endpoint and model once.
        """
        known: set[tuple[str, ...]] = set()
        for (_, run), team in zip(self._runs(), there, strict=True):
            hosts = self._restored(run, team.resolved)
            asked = [
                (task, questions, setup)
                for task, questions in self.asked
                for setup in self.plan.setups
            ]
            if not hosts or not any(self._left(run, team, *cell)[2] for cell in asked):
                continue
            try:
                await greet(
                    hosts,
                    Sampling(self.asking.temperature, self.asking.top_p),
                    hook.note,
                    known,
                )
            finally:
                self._account(run, hosts)
                for host in hosts.values():
                    host.close()

    def _prepare(self, hook: Hook) -> list[Team]:
        """Everything that can be known before a model is loaded: a mistake in the last system costs
        no answers of the first.
        """
        plan = self.plan
        self.resolved = {run: plan.resolved(run) for _, run in self._runs()}
        there = [outline(self.resolved[run]) for _, run in self._runs()]
        check_hosts(plan.pairs, there)
        for what, digest in plans.contents(plan, there).items():
            self._same(what, digest)
        for team in there:
            check_roles(
                team.config,
                team.method,
                team.task,
                [way(s, team, plan.files).method for s in plan.setups],
            )
        self.asked, self.said = questions(plan, there)
        self.asking = asking_of(there[0].config)
        for task, asked in self.asked:
            self._same(f"questions of {task.name}", fingerprints.of_questions(asked))
        chosen = [(team, way(s, team, plan.files)) for team in there for s in plan.setups]
        configs = [(run, team.config) for (_, run), team in zip(self._runs(), there, strict=True)]
        self.said += asked_otherwise(configs, asked_roles(chosen))
        for team, how in chosen:
            check_roles_taken(how, team.task, team.members)
        ways = [players(team, how) for team, how in chosen]
        self._planned(
            sum(len(playing) * len(asked) for playing in ways for _, asked in self.asked), hook
        )
        return there

    def _planned(self, games: int, hook: Hook) -> None:
        self.games += games
        hook.planned(
            self.folder,
            self.games,
            sum(len(Log(p).found) for p in logs_in(self.folder / "answers")),
        )

    def _same(self, what: str, digest: str) -> None:
        """Note what is asked, or an error where it is no longer what it was."""
        known = self.plan.digests.get(what)
        if known is None:
            self._write(replace(self.plan, digests={**self.plan.digests, what: digest}))
        elif known != digest:
            raise UserMistake(
                f"{self.folder}: the {what} are not what they were when this evaluation began"
                " (SHA-256 differs): bring them back, or start a new evaluation"
            )

    def _write(self, plan: Plan) -> None:
        if plan is not self.plan:
            self.plan = plan
            files.replace(self.folder / PLAN, json.dumps(asdict(plan), indent=1))

    def _left(
        self, run: str, team: Team, task: Task, questions: Sequence[Question], setup: str
    ) -> tuple[Log, int, list[tuple[Episode, str, list[Member]]]]:
        """The games of one team in one task and setup: those that are there, how many there will
        be, and those to be played.
        """
        slug = re.sub(r"[^\w.=-]+", "-", f"{Path(run).name}.{task.name}.{setup}")
        digest = hashlib.sha256(f"{run} {task.name} {setup}".encode()).hexdigest()[:8]
        log = Log(self.folder / "answers" / f"{slug}.{digest}.jsonl")
        playing = players(team, way(setup, team, self.plan.files))
        games = [
            (Episode(f"eval-{setup}/{who}/{q.id}/0", q), who, members)
            for who, members in playing.items()
            for q in questions
        ]
        left = [
            game
            for game in games
            if (log.found.get(game[0].id) or {"error": ""})["error"] is not None
        ]
        ids = {game[0].id for game in games}
        # not those of questions that are gone
        log.found = {key: r for key, r in log.found.items() if key in ids}
        return log, len(games), left

    async def _sit(
        self,
        run: str,
        team: Team,
        task: Task,
        questions: Sequence[Question],
        setup: str,
        system: str,
        hook: Hook,
    ) -> tuple[Log, int, str]:
        """Let one team answer the questions of one task in one setup, as far as it has not."""
        chosen = way(setup, team, self.plan.files)
        log, games, left = self._left(run, team, task, questions, setup)
        again = [r for r in log.found.values() if r["verdict"] == "failed" and r["error"] is None]
        hook.cell(system, task.name, setup)
        if left or again:
            began = time.monotonic()
            room = asyncio.Semaphore(AT_ONCE)
            gate = ThreadPoolExecutor(2 * usable_cpus(), thread_name_prefix="verify")
            asked = {q.id: q for q in questions}
            spent = list[BaseException]()
            try:
                async with (
                    spending.kept(team, lambda: self._account(run, team.hosts)),
                    asyncio.TaskGroup() as group,
                ):
                    for record in again:
                        episode = Episode(
                            record["id"], asked[record["question"]], answer=record["answer"]
                        )
                        who = record["agent"]
                        said = record["turns"]
                        judging = judge_game(episode, who, said, task, gate, log, hook)
                        group.create_task(judging)
                    for episode, who, members in left:
                        scene = self.asking.scene(task, chosen, members, self.plan.seed)
                        playing = play_game(scene, episode, who, room, gate, log, hook, spent)
                        group.create_task(playing)
                if spent:
                    raise spent[0]
            finally:
                gate.shutdown(wait=False, cancel_futures=True)
                log.close(
                    seconds=time.monotonic() - began,
                    peak_bytes=peak_bytes(team.hosts),
                    bases=team.origins(),
                    team=described(team, chosen),
                )
        return log, games, described(team, chosen)

    def _account(self, run: str, hosts: Mapping[str, Host]) -> None:
        self.accounts[run] = spending.accounts(hosts)
        files.replace(self.folder / SPENT, files.as_json(self.accounts, indent=1))

    def _cell(self, key: tuple[str, str, str], found: Sequence[tuple[Log, int, str]]) -> Cell:
        logs = [log for log, *_ in found]
        return Cell(
            *key,
            found[0][2],
            found[0][1],
            [list(log.found.values()) for log in logs],
            tuple(", ".join(log.facts.get("bases", [])) for log in logs),
            sum(log.seconds for log in logs),
            max(log.peak_bytes for log in logs),
        )

    async def _matched(self, cells: Sequence[Cell], hook: Hook) -> list[tuple[Cell, Cell]]:
        """(vote at equal tokens, the dearer cell) for each pair of compared cells whose costs
        differ enough.
        """
        pairs = [
            (d.first, d.second)
            for d in report.between_systems(cells) + report.between_setups(cells)
        ]
        found: list[tuple[Cell, Cell]] = []
        for one, other in pairs:
            cheap, dear = sorted((one, other), key=lambda c: c.tokens_per_question())
            votes = report.votes_for(cheap, dear)
            setup = f"vote:votes={votes}"
            if votes and cheap.setup == "single" and not dear.setup.startswith("vote"):
                if known := [
                    c
                    for c in cells
                    if (c.system, c.task, c.setup) == (cheap.system, cheap.task, setup)
                ]:
                    found.append((known[0], dear))
                    continue
                only = [(cheap.system, cheap.task, setup)]
                self._planned(
                    len(cheap.runs)
                    * sum(len(asked) for task, asked in self.asked if task.name == cheap.task),
                    hook,
                )
                (vote,) = await self._cells([setup], hook, only=only)
                found.append((vote, dear))
        return found

    def _report(
        self, cells: Sequence[Cell], matched: Sequence[tuple[Cell, Cell]]
    ) -> dict[str, Any]:
        everything = list(
            {
                (c.system, c.task, c.setup): c for c in [*cells, *[vote for vote, _ in matched]]
            }.values()
        )
        seed = self.plan.seed
        equal = report.corrected([report.difference(vote, dear, seed) for vote, dear in matched])
        return {
            "folder": str(self.folder),
            "cells": [report.cell_record(c, self.plan.systems) for c in everything],
            "systems": [d.record(self.plan.systems) for d in report.between_systems(cells, seed)],
            "setups": [d.record(self.plan.systems) for d in report.between_setups(cells, seed)],
            "equal_tokens": [d.record(self.plan.systems) for d in equal],
            "api": spending.records(self.accounts),
            "notes": [*report.notes(everything), *self._warnings(), *dict.fromkeys(self.said)],
            "overlap": [
                {
                    "run": run,
                    "task": task,
                    **(dataclasses.asdict(o) if o else {"exact": None, "near": None}),
                }
                for _, run, task, o in self.overlaps
            ],
        }

    def _warnings(self) -> list[str]:
        """About questions that were trained on, or may have been."""
        unknown = [
            f"{run}: its training questions cannot be read here: whether {t} was among them is not"
            " known"
            for _, run, t, o in self.overlaps
            if o is None
        ]
        return unknown + [
            f"{run}, {t}: {o}"
            for _, run, t, o in self.overlaps
            if o is not None and (o.exact or o.near)
        ]
