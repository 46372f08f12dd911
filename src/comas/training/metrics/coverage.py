"""How varied the answers to one question are.

Of questions that were answered more than once in a step; nothing where there is none. Leaves out:
answers after a discussion (later rounds, revisions), which are not independent.
"""

from __future__ import annotations

from comas.game.judgements import is_work
from comas.training.metrics.record import Figures, StepRecord, grouped, mean
from comas.types import Turn


def metric(step: StepRecord) -> Figures | None:
    """The number of such `questions`, and the mean numbers of `answers` to each and of `distinct`
    ones among them: readable, by the game or the task, and not written alike.
    """
    first = [turn for turn in step.turns if turn.role == "solution" and turn.round == 0]
    solutions = [turn for turn in first if is_work(turn)]
    asked = grouped((step.questions[t.id].id, t) for t in solutions if t.id in step.questions)
    several = [turns for turns in asked.values() if len(turns) > 1]
    if not several:
        return None
    different = [{_answer(turn, step) for turn in turns} - {None} for turns in several]
    return {
        "questions": len(several),
        "answers": mean([len(turns) for turns in several]),
        "distinct": mean([len(answers) for answers in different]),
    }


def _answer(turn: Turn, step: StepRecord) -> str | None:
    noted = turn.info.get("answer")
    if isinstance(noted, str):
        return noted
    if "answer" in turn.info or not turn.finished:
        return None
    question = step.questions[turn.id]
    return step.task.extract(question, turn.text)
