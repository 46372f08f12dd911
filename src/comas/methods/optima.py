"""Optima (arXiv 2410.08115): two agents that talk learn to need fewer tokens for the same answers.

The game is `setups/autogen`: an assistant answers, its partner checks and asks on, until one of
them ends the talk. R of a talk is 1 if its answer is right, else 0, minus `length` times its tokens
over those of the longest of the `samples` talks about the question. The best is learnt, by both
agents, if its R is at least `least`: fine-tuning on what was kept, the paper's iterative SFT with a
step as an iteration. Unlike the paper, R has no term for readability (the loss of the base model on
the talk), and `least` is .3 (the paper: .6, of the R with that term). Leaves out: the variant on
pairs from a tree of talks (iDPO).
"""

from __future__ import annotations

from collections.abc import Sequence

from comas.objective.credit import filtered
from comas.objective.losses import plain
from comas.setups.autogen import play
from comas.types import Episode, Method, NotNegative, Positive, Role, Task


def settle(
    episodes: Sequence[Episode], task: Task, *, length: NotNegative = 0.5, least: Positive = 0.3
) -> None:
    """Reward the turns of the best talk about each question with its R; others are not learnt."""
    talks: dict[str, list[Episode]] = {}
    for episode in episodes:
        of_question = talks.setdefault(episode.question.id, [])
        of_question.append(episode)
    for of_question in talks.values():
        longest = max(tokens_of(episode) for episode in of_question)
        worth = [_worth(episode, task, length, longest) for episode in of_question]
        if max(worth) < least:
            continue
        best = of_question[worth.index(max(worth))]
        for turn in best.turns:
            turn.reward = max(worth)


def tokens_of(episode: Episode) -> int:
    """Generated tokens of a talk."""
    return sum(turn.tokens for turn in episode.turns)


def _worth(episode: Episode, task: Task, length: float, longest: int) -> float:
    """R of a talk; an answer whose verifier broke down is no right one."""
    answer = episode.answer
    right = answer is not None and task.verify(episode.question, answer) == "right"
    return float(right) - length * tokens_of(episode) / max(1, longest)


BEST = "R of the talk, if it is the best about its question; others are not learnt"
ROLES = {
    "solution": Role("answer", BEST),
    "revision": Role("answer", BEST),
    "proxy": Role("other", BEST),
}
method = Method(
    play,
    settle,
    filtered,
    plain,
    supervised=True,
    roles=ROLES,
    samples=8,
    presets={"stable": {"questions": 12}},
    base="tiny",
    team={"a0": {"roles": ["solution", "revision"]}, "a1": {"roles": ["proxy"]}},
)
