"""How varied the answers to one question are, and whether a right one is among them.

Of questions that were answered more than once in a step; nothing where there is none. pass@k needs
labels, for reports only, and is there where the task says that its verifier is `quick`. Leaves out:
answers after a discussion (later rounds, revisions), which are not independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from comas.stats import pass_at
from comas.training.metrics.record import StepRecord, mean
from comas.types import Turn

DRAWS = (1, 2, 4, 8, 16)
"""k of pass@k."""


def metric(step: StepRecord) -> dict[str, float] | None:
    """The number of such `questions`, the mean number of `answers` to each, and over them the means
    of `distinct` answers, their `entropy` in bits, and `pass@k` (where a question has k answers).
    """
    asked: dict[str, list[Turn]] = {}
    for turn in step.turns:
        if turn.role == "solution" and turn.round == 0 and turn.id in step.questions:
            asked.setdefault(step.questions[turn.id].id, []).append(turn)
    several = [turns for turns in asked.values() if len(turns) > 1]
    if not several:
        return None
    found: dict[str, float] = {
        "questions": len(several),
        "answers": mean([len(turns) for turns in several]),
    }
    readable = [[a for a in _answers(turns, step) if a is not None] for turns in several]
    found["distinct"] = mean([len(set(answers)) for answers in readable])
    entropies = [entropy(answers) for answers in readable if answers]
    if entropies:
        found["entropy"] = mean(entropies)
    if step.task.quick:
        found |= passes([_known(turns, step) for turns in several])
    return found


def _answers(turns: Sequence[Turn], step: StepRecord) -> list[str | None]:
    """Canonical answers, as the game read them or by the task; equal is what is written alike."""
    answers: list[str | None] = []
    for turn in turns:
        noted = turn.info.get("answer")
        if isinstance(noted, str):
            answers.append(noted)
        elif turn.finished and "answer" not in turn.info:
            answers.append(step.task.extract(step.questions[turn.id], turn.text))
        else:
            answers.append(None)
    return answers


def _known(turns: Sequence[Turn], step: StepRecord) -> list[bool]:
    """Whether each is right, of those of which it is known."""
    return [step.labels[turn.id] for turn in turns if turn.id in step.labels]


def entropy(answers: Sequence[str]) -> float:
    """Entropy of the shares of the distinct answers, in bits."""
    shares = [count / len(answers) for count in Counter(answers).values()]
    return math.fsum(share * math.log2(1 / share) for share in shares)


def passes(outcomes: Sequence[Sequence[bool]]) -> dict[str, float]:
    """`pass@k` -> its mean over the questions with at least k answers, of whether each is right."""
    found: dict[str, float] = {}
    for k in DRAWS:
        chances = [pass_at(len(o), sum(o), k) for o in outcomes if len(o) >= k]
        if chances:
            found[f"pass@{k}"] = mean(chances)
    return found
