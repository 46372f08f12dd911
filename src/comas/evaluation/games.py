"""The games of one round of an evaluation: played side by side, judged, written down with what is
noted of their turns.

A round is what one team is asked of one task in one setup. Which replies are right, which say the
same, and how many turns quote others follows from the texts and the task, and is written into the
game's record, so that reports need neither; no game sees any of it. Leaves out: which rounds there
are (`evaluation.runner`), what it comes to (`evaluation.teamwork`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from comas.answers.pool import usable_cpus
from comas.evaluation.accuracy import judged
from comas.evaluation.report import Key
from comas.evaluation.ways import Way, described, players
from comas.game.agent import Member
from comas.game.play import Scene, first, own_file, play_one
from comas.game.prompts import defuse
from comas.game.roles import ANSWERS
from comas.hooks import Hook
from comas.hosts.endpoint.ledger import BudgetSpent
from comas.storage.game_log import Log
from comas.team.build import Team
from comas.types import Episode, HostFailure, Question, Task

AT_ONCE = 512
"""Games that are played side by side."""


class Game(NamedTuple):
    """One question to the team, or to one of its policies."""

    episode: Episode
    who: str
    """`team`, or an agent that answers by itself."""
    members: Sequence[Member]


class Played(NamedTuple):
    """A round that was played, without its team, whose models go when it is closed."""

    team: str
    """Who answered, in words."""
    planned: int
    """Games."""
    log: Log


@dataclass
class Round:
    """What one team is asked of one task in one setup, and what it has answered."""

    system: str
    run: str
    team: Team
    task: Task
    questions: Sequence[Question]
    way: Way
    log: Log

    def __post_init__(self) -> None:
        planned = {game.episode.id for game in self.games()}
        # not those of questions that are gone
        found = self.log.found
        self.log.found = {game: found[game] for game in found if game in planned}

    @property
    def key(self) -> Key:
        return Key(self.system, self.task.name, self.way.name)

    def played(self) -> Played:
        """What is kept of it when its team has gone."""
        return Played(described(self.team, self.way), len(self.games()), self.log)

    def games(self) -> list[Game]:
        """List all games of it, also those that were played."""
        games: list[Game] = []
        for who, members in players(self.team, self.way).items():
            for question in self.questions:
                episode = Episode(f"eval-{self.way.name}/{who}/{question.id}/0", question)
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


class OpenRound:
    """A round that is being played; each game is written down when it ends."""

    def __init__(self, task: Task, log: Log, hook: Hook) -> None:
        self.task = task
        self.log = log
        self.hook = hook
        self.spent: list[BaseException] = []
        """The error of the budget that ended the round."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(2 * usable_cpus(), thread_name_prefix="verify")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def play(self, scene: Scene, game: Game) -> None:
        """Play one game and judge its answer.

        Where a budget ends it, no other begins; those whose requests are open end in order.
        """
        episode = game.episode
        async with self._slots:
            if self.spent:
                return
            try:
                await play_one(scene, episode)
            except* BudgetSpent as errors:
                error = first(errors)
                episode.error = str(error)
                self.spent.append(error)
        if self.spent and episode.error:
            return
        if cut_off(episode):
            episode.answer = None
        turns = [dataclasses.asdict(turn) for turn in episode.turns]
        await self.judge(episode, game.who, turns)

    async def judge_again(self, record: dict[str, Any], question: Question) -> None:
        """Judge an answer that is written down already."""
        episode = Episode(record["id"], question, answer=record["answer"])
        await self.judge(episode, record["agent"], record["turns"])

    async def judge(self, episode: Episode, who: str, turns: Sequence[Any]) -> None:
        """Ask the verifier, in a thread: it may wait for a process of its own."""
        verdict = "failed"
        besides: dict[str, Any] = {}
        if not episode.error:
            loop = asyncio.get_running_loop()
            verdict, besides = await loop.run_in_executor(
                self._threads, _judged, self.task, episode, turns
            )
        record = {
            "id": episode.id,
            "question": episode.question.id,
            "agent": who,
            "verdict": verdict,
            "error": episode.error,
            "answer": episode.answer,
            "turns": list(turns),
            **besides,
        }
        self.log.add(record)
        self.hook.game(record)


def _judged(task: Task, episode: Episode, turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The verdict on the answer of a game that went well, and what else its record holds."""
    question = episode.question
    answer = episode.answer
    if answer is None:
        return "wrong", noted(task, question, None, turns, {})
    verdict, breakdown = judged(task, question, answer)
    return verdict, {**noted(task, question, answer, turns, {answer: verdict}), **breakdown}


def cut_off(episode: Episode) -> bool:
    """Whether the answer is a reply that ended for want of room: no answer in any setup.

    A setup may also return a text that is nobody's reply, cleaned or merged or read out of one:
    that is an answer.
    """
    replies = [turn for turn in episode.turns if turn.text == episode.answer]
    return bool(replies) and not any(turn.finished for turn in replies)


# --- what is noted of turns

TurnRecord = Mapping[str, Any]
"""A turn as it is written down: the fields of `Turn`."""


def noted(
    task: Task,
    question: Question,
    answer: str | None,
    turns: Sequence[TurnRecord],
    known: Mapping[str, str],
) -> dict[str, Any]:
    """What the record of a game with several turns holds besides; nothing of a single turn.

    `quoting`: how many turns show their author a reply of another agent. `verdicts`: turn id ->
    verdict, of revisions, of what they revise, and of the first answers of different policies.
    `says`: turn id -> what a first answer says, and `team` -> what the game's answer says: equal
    answers have equal numbers, None is one that cannot be read. Asks the verifier.
    """
    if len(turns) < 2:
        return {}
    found: dict[str, Any] = {"quoting": _quoting(task, question, turns)}
    firsts = list(first_answers(turns).values())
    if len({turn["policy"] for turn in firsts}) < 2:
        firsts = []
    revised = [turn for pair in revisions(turns) for turn in pair]
    if firsts or revised:
        found["verdicts"] = _verdicts(task, question, [*firsts, *revised], known)
    if firsts:
        texts = {turn["id"]: turn["text"] if turn["finished"] else None for turn in firsts}
        with suppress(HostFailure):  # the sandbox that tells programs apart let us down
            read = _read_already(turns)
            found["says"] = _numbered(task, question, {**texts, "team": answer}, read)
    return found


def revisions(turns: Sequence[TurnRecord]) -> Iterator[tuple[TurnRecord, TurnRecord]]:
    """(an answer, its author's next answer about it), in the order of the record."""
    by_id = {turn["id"]: turn for turn in turns}
    for turn in turns:
        before = by_id.get(turn["about"])
        if before is None or before["agent"] != turn["agent"]:
            continue
        if _answers(before) and _answers(turn):
            yield before, turn


def first_answers(turns: Sequence[TurnRecord]) -> dict[str, TurnRecord]:
    """Agent -> its first answer, of agents that answer before they hear anybody."""
    firsts: dict[str, TurnRecord] = {}
    for turn in turns:
        if turn["role"] == "solution" and _opens(turn) and _answers(turn):
            firsts.setdefault(turn["agent"], turn)
    return firsts


def _answers(turn: TurnRecord) -> bool:
    """Whether a reply answers the question, and does not call a tool for it."""
    return turn["role"] in ANSWERS and not turn.get("info", {}).keys() & {"call", "unanswered"}


def _opens(turn: TurnRecord) -> bool:
    """Whether nothing was said before it that it could be about."""
    return turn["about"] is None and turn.get("round", 0) == 0


def _verdicts(
    task: Task, question: Question, turns: Sequence[TurnRecord], known: Mapping[str, str]
) -> dict[str, str]:
    """Turn id -> verdict; equal texts are judged once, and a cut reply is wrong."""
    of_text = dict(known)
    verdicts: dict[str, str] = {}
    for turn in turns:
        text = turn["text"]
        if not turn["finished"]:
            verdicts[turn["id"]] = "wrong"
            continue
        if text not in of_text:
            of_text[text], _ = judged(task, question, text)
        verdicts[turn["id"]] = of_text[text]
    return verdicts


def _quoting(task: Task, question: Question, turns: Sequence[TurnRecord]) -> int:
    """How many turns have a reply of another agent in their prompt, as peers see it.

    What stands in the opening prompts as well (a letter of a question's choices, say) is no
    quotation, nor is what may be a part of the author's own reply.
    """
    later = [turn for turn in turns if not _opens(turn)]
    if not later:
        return 0
    opening = "\n".join(turn["prompt"] for turn in turns if _opens(turn))
    told: list[tuple[str, str]] = []
    for turn in turns:
        with own_file(task.shown, f"task {task.name}: shown"):
            shown = defuse(task.shown(question, turn["text"])).strip()
        if shown and shown not in opening:
            told.append((turn["agent"], shown))

    def quotes(turn: TurnRecord) -> bool:
        own = [text for agent, text in told if agent == turn["agent"]]
        others = [text for agent, text in told if agent != turn["agent"]]
        return any(
            text in turn["prompt"] and not any(text in mine and text != mine for mine in own)
            for text in others
        )

    return sum(map(quotes, later))


def _read_already(turns: Sequence[TurnRecord]) -> dict[str, str | None]:
    """Text of an answer -> what the game's own vote read in it (`game.votes`)."""
    known: dict[str, str | None] = {}
    for turn in turns:
        info = turn.get("info", {})
        if turn["role"] not in ANSWERS or not turn["finished"]:
            continue
        if "answer" in info:
            known[turn["text"]] = info["answer"]
    return known


def _numbered(
    task: Task,
    question: Question,
    texts: Mapping[str, str | None],
    known: Mapping[str, str | None],
) -> dict[str, int | None]:
    """Name -> a number for what the text says, the same for equal answers; None for unreadable
    ones. Texts whose answer is `known` are not read again.
    """

    def read(text: str) -> str | None:
        """The canonical answer in a text, or its ballot."""
        with own_file(task.extract, f"task {task.name}: extract"):
            said = task.extract(question, text)
        return said if said is None or task.ballot is None else task.ballot(question, said)

    answers: list[str] = []
    numbers: dict[str, int | None] = {}
    for name, text in texts.items():
        said = None
        if text is not None:
            said = known[text] if text in known else read(text)
        if said is None:
            numbers[name] = None
            continue
        equal = [place for place, known in enumerate(answers) if task.same(known, said)]
        if not equal:
            answers.append(said)
        numbers[name] = equal[0] if equal else len(answers) - 1
    return numbers
