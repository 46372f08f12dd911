"""Data that a metric gets: a step that was played, rewarded and learnt from, and which work of it
is right; no method and no reward ever sees that.

The task's labels say it of its own questions, and its rules (`Task.check`) of questions that agents
posed. Leaves out: what is made of it (`training.metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from comas.evaluation.accuracy import judged
from comas.game.judgements import accepts, is_work
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
        """Turns of all discussions, failed ones included."""
        return [turn for episode in self.episodes for turn in episode.turns]

    @cached_property
    def turns(self) -> list[Turn]:
        """Turns of discussions that did not fail."""
        played = [episode for episode in self.episodes if episode.error is None]
        return [turn for episode in played for turn in episode.turns]

    @cached_property
    def rewarded(self) -> list[Turn]:
        """Turns that were rewarded, 0.0 included."""
        return [turn for turn in self.turns if turn.reward is not None]

    @cached_property
    def answers(self) -> list[Turn]:
        """Turns that answer a question by themselves, whatever the method calls their role: kind
        `answer`, revisions left out.
        """
        return [turn for turn in self.turns if turn.kind == "answer" and turn.role != "revision"]

    @cached_property
    def questions(self) -> dict[str, Question]:
        """Id of a piece of work -> the question that it answers: that of its discussion, or the one
        that was posed there.
        """
        posed: dict[str, Question | None] = {}
        by_turn: dict[str, Question] = {}
        for episode, turn in self._work():
            text = _posed_before(turn, {other.id: other for other in episode.turns})
            if text is not None and text not in posed:
                posed[text] = self.task.pose(text) if self.task.pose else None
            question = episode.question if text is None else posed[text]
            if question is not None:
                by_turn[turn.id] = question
        return by_turn

    @cached_property
    def labels(self) -> dict[str, bool]:
        """Id of a piece of work -> whether it is right; a cut reply is wrong, as everywhere. Asks
        the verifier, which takes microseconds only where the task is `quick`.

        Work is left out whose verifier broke down, or whose question has neither label nor rules.
        """
        task = self.task
        by_rule = replace(task, verify=task.check) if task.check is not None else None
        labels: dict[str, bool] = {}
        for episode, turn in self._work():
            question = self.questions.get(turn.id)
            if question is None:
                continue
            its_task = by_rule if question.answer is None and by_rule is not None else task
            if its_task is task and question is not episode.question:
                continue
            verdict = "wrong"
            if turn.finished:
                verdict, _ = judged(its_task, question, turn.text)
            if verdict != "failed":
                labels[turn.id] = verdict == "right"
        return labels

    def _work(self) -> Iterator[tuple[Episode, Turn]]:
        """Pieces of work of discussions that did not fail, each with its discussion."""
        for episode in self.episodes:
            for turn in episode.turns if episode.error is None else ():
                if is_work(turn):
                    yield episode, turn


def _posed_before(turn: Turn, turns: Mapping[str, Turn]) -> str | None:
    """The question that was posed in the turn that this work goes back to; None where none was."""
    above: Turn | None = turn
    while above is not None:
        text = above.info.get("posed")
        if isinstance(text, str):
            return text
        above = turns.get(above.about) if above.about is not None else None
    return None


def note_truth(step: StepRecord) -> None:
    """Note (`types.TRUTH`) `info["right"]` of work whose label is known, where the task's
    verifier is quick, and `info["accepts"]` of judgements: None where they cannot be read.

    Noted when the step has been rewarded, learnt from and remembered: neither a game, a settlement
    nor a method that remembers has seen it.
    """
    labels = step.labels if step.task.quick else {}
    for turn in step.turns:
        if turn.id in labels:
            turn.info["right"] = labels[turn.id]
        elif turn.kind == "judge" and turn.info.keys() & {"score", "verdict", "said"}:
            turn.info["accepts"] = accepts(turn)
