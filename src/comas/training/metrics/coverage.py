"""How varied the answers to one question are, and whether a right one is among them.

Of questions that were answered more than once in a step; nothing where there is none. pass@k needs
labels, for reports only, and is there where the task says that its verifier is `quick`. Leaves out:
answers after a discussion (later rounds, revisions), which are not independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from comas.game.judgements import is_work
from comas.stats import pass_at
from comas.training.metrics.record import Figures, StepRecord, grouped, mean
from comas.types import Turn

DRAWS = (1, 2, 4, 8, 16)
"""k of pass@k."""


def metric(step: StepRecord) -> Figures | None:
    """The number of such `questions`, the mean number of `answers` to each, and over them the means
    of `distinct` answers, their `entropy` in bits, and `pass@k` (where a question has k answers).
    """
    first = [turn for turn in step.turns if turn.role == "solution" and turn.round == 0]
    solutions = [turn for turn in first if is_work(turn)]
    asked = grouped((step.questions[t.id].id, t) for t in solutions if t.id in step.questions)
    several = [turns for turns in asked.values() if len(turns) > 1]
    if not several:
        return None
    numbers = [len(turns) for turns in several]
    found: Figures = {"questions": len(several), "answers": mean(numbers)}
    readable = [_answers(turns, step) for turns in several]
    numbers = [len(set(answers)) for answers in readable]
    found["distinct"] = mean(numbers)
    entropies = [entropy(answers) for answers in readable if answers]
    if entropies:
        found["entropy"] = mean(entropies)
    if step.task.quick:
        outcomes = [_known(turns, step) for turns in several]
        found |= passes(outcomes)
    return found


def _answers(turns: Sequence[Turn], step: StepRecord) -> list[str]:
    """Readable canonical answers, by the game or the task; equal is what is written alike."""
    answers = [_answer(turn, step) for turn in turns]
    return [answer for answer in answers if answer is not None]


def _answer(turn: Turn, step: StepRecord) -> str | None:
    noted = turn.info.get("answer")
    if isinstance(noted, str):
        return noted
    if "answer" in turn.info or not turn.finished:
        return None
    question = step.questions[turn.id]
    return step.task.extract(question, turn.text)


def _known(turns: Sequence[Turn], step: StepRecord) -> list[bool]:
    """Whether each is right, of those of which it is known."""
    return [step.labels[turn.id] for turn in turns if turn.id in step.labels]


def entropy(answers: Sequence[str]) -> float:
    """Entropy of the shares of the distinct answers, in bits."""
    counts = Counter(answers).values()
    shares = [count / len(answers) for count in counts]
    return math.fsum(share * math.log2(1 / share) for share in shares)


def passes(outcomes: Sequence[Sequence[bool]]) -> Figures:
    """`pass@k` -> its mean over the questions with at least k answers, of whether each is right."""
    found: Figures = {}
    for k in DRAWS:
        enough = [each for each in outcomes if len(each) >= k]
        chances = [pass_at(len(each), sum(each), k) for each in enough]
        if chances:
            found[f"pass@{k}"] = mean(chances)
    return found
