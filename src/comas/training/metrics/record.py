"""What a metric is given: a step that was played, paid and learnt from, and which work of it is
right; no method and no reward ever sees that.

The task's labels say it of its own questions, and its rules (`Task.check`) of questions that agents
posed. Leaves out: what is made of it (the other files here).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from comas.evaluation.accuracy import judged
from comas.game.judgements import accepts, is_work
from comas.game.roles import JUDGES
from comas.types import Episode, Learned, Question, Task, Turn


@dataclass(frozen=True)
class StepRecord:
    """A step; labels may be looked at here, in reports, and nowhere on the way to a reward."""

    episodes: Sequence[Episode]
    learned: Mapping[str, Learned]
    """Host -> what its learning step came to; mean advantage and mean KL are on the turns."""
    task: Task
    """With its labels."""

    @cached_property
    def all_turns(self) -> list[Turn]:
        """Those of failed discussions included."""
        return [turn for episode in self.episodes for turn in episode.turns]

    @cached_property
    def turns(self) -> list[Turn]:
        """Those of discussions that did not fail."""
        played = [episode for episode in self.episodes if episode.error is None]
        return [turn for episode in played for turn in episode.turns]

    @cached_property
    def paid(self) -> list[Turn]:
        """Those that were paid, 0.0 included."""
        return [turn for turn in self.turns if turn.reward is not None]

    @cached_property
    def questions(self) -> dict[str, Question]:
        """Id of a piece of work -> the question that it answers."""
        return questions_of(self.episodes, self.task)

    @cached_property
    def labels(self) -> dict[str, bool]:
        """Id of a piece of work -> whether it is right; asks the verifier, which takes
        microseconds only where the task is `quick`.
        """
        return labels_of(self.episodes, self.questions, self.task)


Key = TypeVar("Key")
Value = TypeVar("Value")
Figures = dict[str, float]
"""Name -> value, of those that are known."""


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Key -> its values, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        group = groups.setdefault(key, [])
        group.append(value)
    return groups


def mean_by_role(turns: Sequence[Turn], value: Any) -> dict[str, float]:
    """Role -> mean over its turns of `value(turn)`."""
    values = grouped((turn.role, value(turn)) for turn in turns)
    return {role: mean(values[role]) for role in sorted(values)}


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)


# --- which work is right


def work_of(episodes: Sequence[Episode]) -> Iterator[tuple[Episode, Turn]]:
    """Pieces of work of discussions that did not fail, each with its discussion."""
    for episode in episodes:
        for turn in episode.turns if episode.error is None else ():
            if is_work(turn):
                yield episode, turn


def questions_of(episodes: Sequence[Episode], task: Task) -> dict[str, Question]:
    """Id of a piece of work -> the question that it answers: that of its discussion, or the one
    that was posed there.
    """
    posed: dict[str, Question | None] = {}
    found: dict[str, Question] = {}
    for episode, turn in work_of(episodes):
        turns = {other.id: other for other in episode.turns}
        text = _posed_before(turn, turns)
        if text is None:
            found[turn.id] = episode.question
            continue
        if text not in posed:
            posed[text] = task.pose(text) if task.pose else None
        question = posed[text]
        if question is not None:
            found[turn.id] = question
    return found


def _posed_before(turn: Turn, turns: Mapping[str, Turn]) -> str | None:
    """The question that was posed in the turn that this work goes back to; None where none was."""
    place: Turn | None = turn
    while place is not None:
        text = place.info.get("posed")
        if isinstance(text, str):
            return text
        place = turns.get(place.about) if place.about is not None else None
    return None


def labels_of(
    episodes: Sequence[Episode], questions: Mapping[str, Question], task: Task
) -> dict[str, bool]:
    """Id of a piece of work -> whether it is right; a cut reply is wrong, as everywhere.

    Work is left out whose verifier broke down, or whose question has neither label nor rules.
    """
    by_rule = replace(task, verify=task.check) if task.check is not None else None
    found: dict[str, bool] = {}
    for episode, turn in work_of(episodes):
        question = questions.get(turn.id)
        if question is None:
            continue
        its_task = by_rule if question.answer is None and by_rule is not None else task
        if its_task is task and question is not episode.question:
            continue
        verdict = "wrong"
        if turn.finished:
            verdict, _ = judged(its_task, question, turn.text)
        if verdict != "failed":
            found[turn.id] = verdict == "right"
    return found


def note_truth(step: StepRecord) -> None:
    """Note (`types.TRUTH`) `info["right"]` of work whose label is known, where the task's
    verifier is quick, and `info["accepts"]` of judgements: None where they cannot be read.

    Noted when the step has been paid, learnt from and remembered: neither a game, a settlement nor
    a method that remembers has seen it.
    """
    labels = step.labels if step.task.quick else {}
    for turn in step.turns:
        if turn.id in labels:
            turn.info["right"] = labels[turn.id]
        elif turn.role in JUDGES and ("score" in turn.info or "said" in turn.info):
            turn.info["accepts"] = accepts(turn)
