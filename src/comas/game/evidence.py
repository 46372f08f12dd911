"""Answers of dialogues, verified by readers who see what the tools returned, and not the answer.

Leaves out: what that pays, and what is done about an answer in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from comas.game.agent import Agent
from comas.game.searching import gives, listed, pages_of, read
from comas.game.together import together
from comas.game.votes import agrees, given
from comas.types import Question, Task, Turn


async def verify(
    question: Question, replies: Sequence[Turn], reader: Agent, task: Task, checks: int
) -> None:
    """Note on the last reply its `answer` and `sure`: score x confidence, -1 without an answer.

    The score is 1 where at least half of `checks` readers give the same answer, else -1; the
    confidence is the share of them that bears the score out. Each notes whether it `confirms`.
    """
    end = replies[-1]
    answer = given(question, end, task)
    end.info["answer"] = answer
    end.info["sure"] = -1.0
    if answer is None:
        return
    pages = listed(pages_of(replies), task)
    readings = await together(read(question, pages, reader, task, end) for _ in range(checks))
    for reading in readings:
        reading.info["confirms"] = gives(question, reading, answer, task)
    share = sum(reading.info["confirms"] for reading in readings) / checks
    end.info["sure"] = share if share >= 0.5 else share - 1.0


def outcome_of(ends: Sequence[Turn], task: Task) -> str | None:
    """The answer with the greatest sum of positive score x confidence, the earliest among equals;
    None where no answer has any.
    """
    sums = dict.fromkeys((end.info["answer"] for end in ends if end.info["sure"] > 0), 0.0)
    for answer in sums:
        giving = [end for end in ends if agrees(end, answer, task)]
        sums[answer] = math.fsum(max(0.0, end.info["sure"]) for end in giving)
    return max(sums, key=lambda answer: sums[answer], default=None)
