"""Run games side by side, and sum up rewards.

An infrastructure failure ends one episode, not the run; a bug in a game is raised. Leaves out:
batching (hosts), rewards (settlements), learning (hosts).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import re
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, cast

from comas.game.agent import Agent, EpisodeRecord, TeamMember, derive_seed
from comas.types import (
    TRUTH,
    CannotBePlayed,
    Episode,
    HostFailure,
    Method,
    Question,
    Refused,
    State,
    Task,
    ToldToWait,
    Turn,
    TurnReward,
    UserMistake,
)

HERE = Path(__file__).parents[1]
"""The package's own files."""
HELPERS = ("answers", "game", "methods", "objective", "tasks", "types.py")
"""Folders and files with functions for games and settlements to call."""
_NUMBERS = re.compile(r"(\d+)")
TRIES = 2
"""How often an episode is played before an infrastructure failure is recorded."""


@dataclass(frozen=True)
class GameContext:
    """Everything but the questions: who plays what, by which rules, from which seed."""

    method: Method
    task: Task
    members: Sequence[TeamMember]
    seed: int
    """The run's seed."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The method's options; each of its functions is given those that it takes (`options_of`)."""
    state: State = field(default_factory=dict[str, Any])
    """State that the method remembers of the steps before."""
    keep: bool = False
    on_turn: Callable[[Turn], None] | None = None
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens per reply, by role, that the user sets; the task's own otherwise."""

    @cached_property
    def permitted(self) -> Task:
        """The task as the method may see it; made once, since every episode asks for it."""
        method = self.method
        return self.task if method.supervised else self.task.without_labels(method.grounded)

    @cached_property
    def room(self) -> dict[str, int]:
        """Tokens per reply and role, where somebody sets them."""
        return room_of(self.task, self.max_tokens)


def room_of(task: Task, own: Mapping[str, int]) -> dict[str, int]:
    """Role -> tokens of a reply, where the task or the user's `own` sets them; a blind answer is a
    solution that nobody is going to see.
    """
    room = {**task.max_tokens, **own}
    if "solution" in room:
        room.setdefault("blind", room["solution"])
    return room


async def play_all(
    context: GameContext, questions: Sequence[Question], step: int | str, samples: int = 1
) -> list[Episode]:
    """Play `samples` games of each question, all at once; episodes in the order of the questions,
    then samples.

    `step` names the occasion: it goes into turn ids and seeds.
    """
    episodes = [Episode(f"{step}/{q.id}/{s}", q) for q in questions for s in range(samples)]
    async with asyncio.TaskGroup() as group:
        for episode in episodes:
            group.create_task(play_one(context, episode))
    return episodes


async def play_one(context: GameContext, episode: Episode) -> None:
    """Play one game into `episode`; sets its turns, answer and, where machines failed twice,
    refused a request or want to be left alone, error.
    """
    method = context.method
    task = context.permitted
    question = episode.question if method.supervised else unlabelled(episode.question)
    settings = options_of(context, method.play)
    for _ in range(TRIES):
        seen = Episode(episode.id, question)  # all that a game can reach: without labels
        episode.turns = seen.turns
        episode.error = failure = None
        record = EpisodeRecord(
            seen, context.seed, context.keep, context.room, context.on_turn, roles=method.roles
        )
        agents = [Agent(m, record) for m in context.members]
        rng = random.Random(derive_seed(context.seed, episode.id))
        try:
            with own_file(method.play, "play"):
                answer = await method.play(question, agents, rng, task, **settings)
            episode.answer = _checked_answer(answer)
            _check_notes(episode.turns)
        except* HostFailure as failures:  # bare, or out of the game's own task groups
            failure = first(failures)
            episode.error = str(failure)
        episode.turns.sort(key=_place)  # the order of completion may depend on batching
        if episode.error is None or isinstance(failure, Refused | ToldToWait):
            return


OWN = "comas_user_"
"""How the names of modules begin that are files of the user's own."""


def is_own(function: Callable[..., Any]) -> bool:
    """Whether a function, perhaps with options bound, stands in a file of the user's own."""
    return getattr(bare(function), "__module__", "").startswith(OWN)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without the options that are bound to it."""
    while isinstance(function, partial):
        function = function.func
    return function


@contextmanager
def own_file(function: Callable[..., Any], doing: str) -> Generator[None]:
    """Tell what goes wrong in here, in a file of the user's own or in a helper that it called, in a
    line with its place; any other error keeps its traceback.
    """
    try:
        yield
    except (UserMistake, HostFailure):
        raise
    except Exception as error:
        cause = first(error)
        file = inspect.getsourcefile(inspect.unwrap(bare(function)))
        if not is_own(function) or isinstance(cause, UserMistake | HostFailure):
            raise
        frames = traceback.extract_tb(cause.__traceback__)
        theirs = [index for index, frame in enumerate(frames) if frame.filename == file]
        if file is None or not theirs:
            raise
        # what a library raises is the doing of whoever called it
        later = [f for f in frames[theirs[-1] + 1 :] if Path(f.filename).is_relative_to(HERE)]
        called = [(Path(frame.filename).relative_to(HERE), frame.lineno) for frame in later]
        if any(place.parts[0] not in HELPERS for place, _ in called):
            raise  # it happened in a host or an engine
        location = f"{Path(file).name} line {frames[theirs[-1]].lineno}"
        if called:
            place, line = called[-1]
            location += f" (in comas, {place.as_posix()} line {line})"
        hint = " (is an `await` missing?)" if "coroutine" in str(cause) else ""
        raise UserMistake(
            f"{doing} failed in {location}: {type(cause).__name__}: {cause}{hint}"
        ) from error


def _checked_answer(answer: Any) -> str | None:
    """Check that a game returned a text or None."""
    if answer is None or isinstance(answer, str):
        return answer
    hint = "return its text" if isinstance(answer, Turn) else "return one of these"
    raise CannotBePlayed(
        f"play returned {brief(answer)}; wanted is the text that answers, or None: {hint}"
    )


def _check_notes(turns: Sequence[Turn]) -> None:
    """An error where a game takes a key for itself that is kept for labels."""
    for turn in turns:
        for key in TRUTH:
            if key in turn.info:
                raise UserMistake(
                    f'play notes info["{key}"] of turn {turn.id} ({turn.role}): after a step is'
                    " learnt from, what its label says is noted there; choose another name"
                )


def brief(value: object) -> str:
    """A value as it prints, on one line of at most 60 characters: for messages about what is not as
    it should be.
    """
    printed = " ".join(repr(value).split())
    return printed if len(printed) <= 60 else f"{printed[:60]} ..."


def first(error: BaseException) -> BaseException:
    """The first error out of groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _place(turn: Turn) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(turn.id)]


def unlabelled(question: Question) -> Question:
    """Return what a label-free game may see of a question."""
    return Question(id=question.id, prompt=question.prompt, kind=question.kind)


def options_of(context: GameContext, function: Callable[..., Any]) -> dict[str, Any]:
    """The options that a function of the method takes, and the method's record where it has a
    keyword `state`.
    """
    available = {**context.options, "state": context.state}
    return {name: available[name] for name in _keywords(function) if name in available}


@lru_cache(maxsize=64)
def _keywords(function: Callable[..., Any]) -> list[str]:
    """The keyword-only parameters of a function, and `state` where it need not be given; asked once
    an episode, so that they are kept.
    """
    parameters = inspect.signature(function).parameters.values()
    optional = [p for p in parameters if p.name == "state" and p.default is not p.empty]
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p in optional]


def settle_all(context: GameContext, episodes: Sequence[Episode]) -> None:
    """Let the method reward the turns of a step's finished episodes."""
    for episode in episodes:
        for turn in episode.turns:  # a recorded run may be settled again
            turn.reward = turn.group = None
    finished = finished_of(context, episodes)
    task = context.task
    settle = context.method.settle
    verifying = own_file(task.verify, f"task {task.name}: verify")
    with verifying, own_file(settle, "settle"):
        settle(finished, context.permitted, **options_of(context, settle))
    for episode in finished:
        for turn in episode.turns:
            turn.reward = _amount(turn)


def finished_of(context: GameContext, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that no machine let down, as the method may see them.

    They come in the order of their ids, so that the order of questions says nothing.
    """
    finished = [episode for episode in episodes if episode.error is None]
    finished.sort(key=lambda episode: episode.id)
    if context.method.supervised:
        return finished
    return [replace(episode, question=unlabelled(episode.question)) for episode in finished]


def _amount(turn: Turn) -> float | None:
    """Return the reward of a turn as a plain number; UserMistake for what is none."""
    reward: Any = turn.reward
    if reward is None:
        return None
    who = f"turn {turn.id} ({turn.role})"
    try:
        amount = float(reward) if not isinstance(reward, str | bytes) else None
    except (TypeError, ValueError):
        amount = None
    if amount is None or not math.isfinite(amount):
        raise UserMistake(
            f"{who} has reward {brief(reward)}: settle has to give a finite number, or None for"
            " none"
        )
    return amount


def turn_rewards(
    episodes: Sequence[Episode], members: Sequence[TeamMember]
) -> dict[str, dict[str, list[TurnReward]]]:
    """Host name -> policy -> rewards of turns that have one, but for frozen members."""
    frozen = {m.name for m in members if m.frozen}
    rewards: dict[str, dict[str, list[TurnReward]]] = {}
    for episode in episodes:
        if episode.error is not None:
            continue
        for turn in episode.turns:
            amount = _amount(turn)
            if amount is None or turn.agent in frozen:
                continue
            host, policy = turn.policy.split("/", 1)
            rewards.setdefault(host, {}).setdefault(policy, []).append(
                TurnReward(turn.id, amount, turn.group)
            )
    return rewards
