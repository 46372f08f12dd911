"""Notes of games on their turns: whether a reply can be read, and what judges say of a piece of
work: whether it is accepted, and which work that is.

Leaves out: how a score is read (`methods.shared.judging`), and whether a judge is right
(`training.metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from comas.types import WORK, Turn

SAYINGS = {"right": True, "wrong": False}
"""Verdict of an evaluation -> whether it accepts the work."""
JUDGEMENT = {"belief", "verdict", "said", "score"}
"""Notes on a judge's turn, `Turn.info`, of which `accepts` reads the first that is there."""
POINTS = (1, 2, 3)
"""The scale of comas."""


def is_work(turn: Turn) -> bool:
    """Whether a reply answers a question in words of its agent, rather than to call a tool on the
    way, to be told what to say, or to guess without what the question is about.
    """
    if turn.kind not in WORK or "call" in turn.info:
        return False
    return not turn.info.get("told") and not turn.info.get("closed_book")


def accepts(turn: Turn) -> bool | None:
    """Whether a judge accepts the work; None where it cannot be read.

    `info["belief"]` is the expected share of a scale, of which a half accepts. `info["verdict"]` is
    right or wrong. `info["score"]` is a whole number of comas's scale, of which only 1 is fatally
    wrong, or a share of a scale, from 0 to 1, of which a half accepts.
    """
    belief = turn.info.get("belief")
    if isinstance(belief, float):
        return belief >= 0.5
    verdict = verdict_of(turn)
    if isinstance(verdict, str):
        return SAYINGS.get(verdict)
    score = turn.info.get("score")
    if isinstance(score, Integral) and not isinstance(score, bool):
        return int(score) > 1 if score in POINTS else None
    if isinstance(score, float) and 0.0 <= score <= 1.0:
        return score >= 0.5
    return None


def acceptance(turn: Turn) -> float | None:
    """How far a judge accepts the work, from 0 to 1: its `info["belief"]` where it has one, which
    may lie below a half for all work; None where its verdict cannot be read.
    """
    belief = turn.info.get("belief")
    if isinstance(belief, float):
        return belief
    accepted = accepts(turn)
    return None if accepted is None else float(accepted)


def verdict_of(turn: Turn) -> Any:
    """Return what a judge said in words, None of nothing; methods written for 0.1 note it as
    `info["said"]`.
    """
    return turn.info.get("verdict", turn.info.get("said"))


def unreadable(info: Mapping[str, Any]) -> bool | None:
    """Whether the game noted of a turn (`Turn.info`) that it could not read the reply; None where
    it notes nothing of the kind.

    Games note it as `info["readable"] = False`, or as an `answer` or a `score` that is None. Not so
    of a guess without what the question is about (`closed_book`), which may well be nothing.
    """
    if info.get("closed_book"):
        return None
    noted = [info[fact] is None for fact in ("answer", "score") if fact in info]
    if "readable" in info:
        noted.append(not info["readable"])
    return any(noted) if noted else None


def work_judged(turn: Turn, turns: Mapping[str, Turn]) -> Turn | None:
    """The work that a judgement is about, also by way of another judgement; None where other work
    was shown in its place (`info["known"]`), or where it is about none.
    """
    if turn.info.get("known") == "wrong":
        return None
    work = turns.get(turn.about) if turn.about is not None else None
    while work is not None and work.kind == "judge":
        work = turns.get(work.about) if work.about is not None else None
    return work
