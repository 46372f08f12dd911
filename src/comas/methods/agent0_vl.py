"""Agent0-VL (arXiv 2511.19900) in text: solve with tools, verify by what the tools returned, mend
where that leaves doubt; one model in three roles, and no labels.

An answer is verified by `checks` readers (`verify`). While its score x confidence is below `gate`,
its last step is written again, at most `repairs` times. The outcome of a question is the answer
with the greatest sum of positive score x confidence. An answer is rewarded with score x confidence,
`outcome` for giving the outcome, `tool` x the share of its calls that worked, less `cost` per
repair, compared within the question; a step that was written again is rewarded so by itself. A
reader is rewarded with 1 for confirming the outcome and nothing else, compared over the step.
Unlike the paper, confidence is how many readers agree, not a number that one states, and what is
surely wrong is mended too. Leaves out: images, the critique, the KL between roles.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Annotated

from annotated_types import Interval

from comas.game.agent import Agent, choose, together
from comas.game.dialogue import converse
from comas.game.prompts import SOLVING, words
from comas.game.votes import agrees
from comas.game.votes import given as answer_given
from comas.methods.shared.searching import gives, listed, pages_of, read
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.rewards import by_id, compare, compare_turns, dialogues, in_role, mean
from comas.setups import tools
from comas.types import Count, Episode, Method, Question, Role, Task, Turn, Whole

WORDING = {
    **SOLVING,
    "repair": "{question}\n\nFind what is missing, then solve it and end with the answer.",
}


Gate = Annotated[float, Interval(ge=-1, le=2)]
"""Bound of a score x confidence, which lies between -1 and 1: -1 is below all, 2 above all."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 5,
    turns: Count = 6,
    checks: Count = 3,
    repairs: Whole = 2,
    gate: Gate = 0.7,
) -> str | None:
    """Answer with the outcome; None where no answer is borne out."""
    solvers = [choose(agents, rng, "solution") for _ in range(answers)]
    reader = choose(agents, rng, "reading")

    async def attempt(
        solver: Agent, role: str, earlier: Sequence[Turn], about: Turn | None
    ) -> Turn:
        prompt = words(WORDING, task, role, question=question.prompt, history="")
        left = turns - len(earlier)
        later = await converse(solver, role, prompt, task, turns=left, about=about, after=earlier)
        replies = [*earlier, *later]
        for reply in replies:
            reply.info["dialogue"] = replies[0].id
        await verify(question, replies, reader, task, checks)
        end = replies[-1]
        end.info["repairs"] = 0 if about is None else about.info["repairs"] + 1
        end.info["final"] = end.info["sure"] >= gate or end.info["repairs"] >= repairs
        if end.info["final"]:
            return end
        end.info["dialogue"] = end.id  # what follows goes on from the replies before
        return await attempt(solver, "repair", replies[:-1], end)

    ends = await together(attempt(solver, "solution", [], None) for solver in solvers)
    best = outcome_of(ends, task)
    return next((end.text for end in ends if best is not None and agrees(end, best, task)), None)


def settle(
    episodes: Sequence[Episode],
    task: Task,
    *,
    outcome: float = 0.5,
    tool: float = 0.2,
    cost: float = 0.1,
) -> None:
    """Reward answers and steps against those to the same question, readers against the step's."""
    rewarded: list[Turn] = []
    verdicts: list[float] = []
    for episode in episodes:
        turns = by_id(episode)
        attempts = dialogues(episode, "solution", "repair")
        ends = [attempt.end for attempt in attempts if attempt.end.info["final"]]
        best = outcome_of(ends, task)
        worths: list[float] = []
        for attempt in attempts:
            end = attempt.end
            right = best is not None and agrees(end, best, task)
            process = end.info["sure"] + tool * attempt.worked - cost * end.info["repairs"]
            worths.append(process + outcome * right)
        compare(attempts, worths)
        for reading in in_role(episode, "reading") if best is not None else ():
            if reading.info["confirms"] is None:
                continue
            right = agrees(turns[reading.about or ""], best or "", task)
            rewarded.append(reading)
            verdicts.append(float(reading.info["confirms"] == right))
    compare_turns(rewarded, verdicts)


async def verify(
    question: Question, replies: Sequence[Turn], reader: Agent, task: Task, checks: int
) -> None:
    """Note on the last reply its `answer` and `sure`: score x confidence, -1 without an answer.

    The score is 1 where at least half of the readers give the same answer, else -1; the confidence
    is the share of them that bears the score out. Each of the `checks` readers notes whether it
    `confirms`; one whose answer cannot be read says nothing (None) and does not count. Where none
    can be read the confidence is 0.
    """
    end = replies[-1]
    answer = answer_given(question, end, task)
    end.info["answer"] = answer
    end.info["sure"] = -1.0
    if answer is None:
        return
    pages = listed(pages_of(replies), task)
    readings = await together(read(question, pages, reader, task, end) for _ in range(checks))
    for reading in readings:
        confirms = gives(question, reading, answer, task)
        reading.info["confirms"] = None if reading.info["answer"] is None else confirms
    share = mean([reading.info["confirms"] for reading in readings])
    if share is None:
        end.info["sure"] = 0.0
    else:
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


ROLES = {
    "solution": Role("answer", reward="what its tools said bears it out, and most others"),
    "repair": Role("other", reward="the same, less a cost"),
    "reading": Role("other", reward="confirming the outcome of the question and nothing else"),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    kl=dict.fromkeys(ROLES, 0.1),
    roles=ROLES,
    needs=("tools",),
    base="tiny-facts",
    task="facts",
    team={"a0": {}},
    measure=tools.play,
    presets={
        "stable": {"questions": 32, "steps": 80},
        "paper": {"kl": dict.fromkeys(ROLES, 0.01)},
    },
)
