"""The games of one round of an evaluation: played side by side, judged, written down with what is
noted of their turns.

A round is what one team is asked of one task in one setup. Which revisions are right follows from
the texts and the task, and is written into the game's record, so that reports need neither; no game
sees it. Leaves out: which rounds there are (`evaluation.runner`), what it comes to
(`evaluation.teams`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from comas.evaluation.accuracy import judged
from comas.evaluation.report import CellKey
from comas.evaluation.setups import Asking, ChosenSetup, described, players
from comas.game.agent import TeamMember
from comas.game.play import first, is_own, play_one
from comas.hooks import Hook, Pulse
from comas.hosts.ledger import BudgetSpent
from comas.machine import usable_cpus
from comas.storage.game_log import Log
from comas.storage.records import kind_of
from comas.team import spending
from comas.team.build import Team
from comas.types import Episode, Host, Question, Task

AT_ONCE = {"cpu": 128, "elsewhere": 512}
"""Games that are played side by side. What ends an evaluation costs as many replies as are on their
way; on a CPU they take minutes, and more rows than 64 are no quicker there.
"""
SLOW = 60.0
"""Seconds after which a note says that a verifier has not returned."""


class Game(NamedTuple):
    """One question to the team, or to one of its policies."""

    episode: Episode
    who: str
    """`team`, or an agent that answers by itself."""
    members: Sequence[TeamMember]


@dataclass
class Round:
    """Games of one team on one task in one setup: what it is asked, and what it has answered."""

    system: str
    team: Team
    task: Task
    questions: Sequence[Question]
    setup: ChosenSetup
    log: Log

    def __post_init__(self) -> None:
        planned = {game.episode.id for game in self.games()}
        # not those of questions that are gone
        logged = self.log.found
        self.log.found = {game: logged[game] for game in logged if game in planned}

    @property
    def key(self) -> CellKey:
        return CellKey(self.system, self.task.name, self.setup.name)

    @property
    def answerers(self) -> str:
        """Who answers, in words."""
        return described(self.team, self.setup)

    def games(self) -> list[Game]:
        """List all games of it, also those that were played."""
        games: list[Game] = []
        for who, members in players(self.team, self.setup).items():
            for question in self.questions:
                episode = Episode(f"eval-{self.setup.name}/{who}/{question.id}/0", question)
                games.append(Game(episode, who, members))
        return games

    def to_play(self) -> list[Game]:
        """List the games that were not played, or that a machine failed."""
        records = self.log.found
        played = {game for game, record in records.items() if record["error"] is None}
        return [game for game in self.games() if game.episode.id not in played]

    def to_judge(self) -> list[dict[str, Any]]:
        """List the records of games whose checker broke down."""
        return [
            record
            for record in self.log.found.values()
            if record["verdict"] == "failed" and record["error"] is None
        ]

    async def play(
        self, asking: Asking, seed: int, hook: Hook, account: Callable[[], None]
    ) -> None:
        """Let the team answer what it has not; each game is written down when it ends.

        `account` writes down what its hosts have cost. Where a budget ends a game, no other begins;
        those whose requests are open end in order.
        """
        to_judge = self.to_judge()
        to_play = self.to_play()
        hook.cell(*self.key)
        if not to_judge and not to_play:
            return
        began = time.monotonic()
        hosts = self.team.hosts
        # the first game may end late; of hosts that count nothing only games are told
        counting = {name: host for name, host in hosts.items() if host.meter is not None}
        pulse = Pulse(hook, counting)
        if counting:
            pulse.turn_to("playing")
        side_by_side = _SideBySide(self, asking, seed, hook)
        try:
            with pulse.beating() if counting else nullcontext():
                async with spending.kept(hosts, account), asyncio.TaskGroup() as group:
                    for record in to_judge:
                        group.create_task(side_by_side.judge_again(record))
                    for game in to_play:
                        group.create_task(side_by_side.play(game))
            if side_by_side.spent is not None:
                raise side_by_side.spent
        finally:
            side_by_side.threads.shutdown(wait=False, cancel_futures=True)
            seconds = time.monotonic() - began
            self.log.close(seconds=seconds, bases=self.team.origins(), team=self.answerers)


class _SideBySide:
    """Plays and judges games of a round, `at_once` at a time, until a budget is spent."""

    def __init__(self, of: Round, asking: Asking, seed: int, hook: Hook) -> None:
        self.round = of
        self.asking = asking
        self.seed = seed
        self.hook = hook
        self.questions = {question.id: question for question in of.questions}
        self.slots = asyncio.Semaphore(at_once(of.team.hosts))
        self.threads = ThreadPoolExecutor(2 * usable_cpus(), thread_name_prefix="verify")
        self.spent: BaseException | None = None
        """The first error of a budget that is spent: no further game begins."""
        self.told = False
        """Whether a note has said that a verifier does not return."""

    async def play(self, game: Game) -> None:
        """Play one game, judge it, and write it down."""
        episode = game.episode
        async with self.slots:
            if self.spent is not None:
                return
            context = self.asking.context(
                self.round.task, self.round.setup, game.members, self.seed
            )
            try:
                await play_one(context, episode)
            except* BudgetSpent as errors:
                error = first(errors)
                episode.error = str(error)
                self.spent = self.spent or error
        if self.spent is not None and episode.error:
            return
        if cut_off(episode):
            episode.answer = None
        turns = [dataclasses.asdict(turn) for turn in episode.turns]
        await self._judge(episode, game.who, turns)

    async def judge_again(self, record: Mapping[str, Any]) -> None:
        """Judge a game that was played before."""
        question = self.questions[record["question"]]
        episode = Episode(record["id"], question, answer=record["answer"])
        await self._judge(episode, record["agent"], record["turns"])

    async def _judge(self, episode: Episode, who: str, turns: Sequence[Any]) -> None:
        """Ask the verifier, in a thread: it may wait for a process of its own."""
        task = self.round.task
        record = {
            "id": episode.id,
            "question": episode.question.id,
            "agent": who,
            "verdict": "failed",
            "error": episode.error,
            "answer": episode.answer,
            "turns": list(turns),
        }
        if not episode.error:
            if not task.quick:  # whatever stops it now, it is not asked again
                self.round.log.add(record)
            loop = asyncio.get_running_loop()
            judging = loop.run_in_executor(self.threads, _judged, task, episode, turns)
            late = loop.call_later(SLOW, self._tell_late, episode.question.id)
            try:
                verdict, besides = await judging
            finally:
                late.cancel()
            record = {**record, "verdict": verdict, **besides}
        self.round.log.add(record)
        self.hook.game(record)

    def _tell_late(self, question: str) -> None:
        """Say once that a verifier of the user's own is still at work: it may never return."""
        task = self.round.task
        if is_own(task.verify) and not self.told:
            self.told = True
            self.hook.note(
                f"task {task.name}: verify has not returned for {SLOW:.0f} s, of question"
                f" {question}; Ctrl-C stops"
            )


def at_once(hosts: Mapping[str, Host]) -> int:
    """Games of these hosts that are played side by side."""
    on_cpu = any(host.facts().get("device") == "cpu" for host in hosts.values())
    return AT_ONCE["cpu" if on_cpu else "elsewhere"]


def _judged(task: Task, episode: Episode, turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The verdict on the answer of a game that went well, and what else its record holds."""
    if episode.answer is None:
        return "wrong", noted(task, episode.question, turns, {})
    verdict, breakdown = judged(task, episode.question, episode.answer)
    return verdict, noted(task, episode.question, turns, {episode.answer: verdict}) | breakdown


def cut_off(episode: Episode) -> bool:
    """Whether the answer is a reply that ended for want of tokens: no answer in any setup.

    A setup may also return a text that is nobody's reply, cleaned or merged or read out of one:
    that is an answer.
    """
    replies = [turn for turn in episode.turns if turn.text == episode.answer]
    return bool(replies) and not any(turn.finished for turn in replies)


# --- what is noted of turns

TurnRecord = Mapping[str, Any]
"""A turn as it is written down: the fields of `Turn`."""


def noted(
    task: Task, question: Question, turns: Sequence[TurnRecord], known: Mapping[str, str]
) -> dict[str, Any]:
    """Return further facts for the record of a game, where a turn revises another of its author:
    `verdicts`, turn id -> verdict, of both.

    Asks the verifier of texts that are not `known`, each once; a cut reply is wrong.
    """
    verdicts: dict[str, str] = {}
    of_text = dict(known)
    for turn in (turn for pair in revisions(turns) for turn in pair):
        text = turn["text"]
        if turn["finished"] and text not in of_text:
            of_text[text], _ = judged(task, question, text)
        verdicts[turn["id"]] = of_text[text] if turn["finished"] else "wrong"
    return {"verdicts": verdicts} if verdicts else {}


def revisions(turns: Sequence[TurnRecord]) -> Iterator[tuple[TurnRecord, TurnRecord]]:
    """(an answer, its author's next answer about it), in the order of the record."""
    by_id = {turn["id"]: turn for turn in turns}
    for turn in turns:
        before = by_id.get(turn["about"])
        if before is None or before["agent"] != turn["agent"]:
            continue
        if _answers(before) and _answers(turn):
            yield before, turn


def _answers(turn: TurnRecord) -> bool:
    """Whether a reply answers the question, and does not call a tool for it."""
    return kind_of(turn) == "answer" and not turn.get("info", {}).keys() & {"call", "unanswered"}
