"""Which work of a step is right, for reports: no method and no reward ever sees it.

The task's labels say it of its own questions, and its rules (`Task.check`) of questions that agents
posed. Leaves out: what is made of it (`training.metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from comas.evaluation.accuracy import judged
from comas.game.judgements import is_work
from comas.types import Episode, Question, Task, Turn


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
