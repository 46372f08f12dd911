"""SSP, Search Self-Play (arXiv 2510.18821): a proposer searches for a question whose answer is
given, solvers search for the answer; no labels but the answers that are asked for.

A question of the task is an answer. The proposer searches, in up to `turns` replies, and writes a
question; it is kept if a reader who sees only what the proposer found, among `noise` other pages,
answers it rightly. Then `answers` solvers search. A solver is rewarded with 1 for the given answer,
compared within its question; a proposer 1 - their success rate, 0 for a question that does not
hold, compared over the step. A dialogue counts once. Unlike the paper, answers are compared by the
task rather than by a judge, and no pool stands in for questions that do not hold. Leaves out: the
released code's filters of questions that are short, name their answer, or were searched for once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.dialogue import converse
from comas.game.prompts import defuse, words
from comas.game.votes import is_answer
from comas.methods.shared.searching import (
    gives,
    listed,
    pages_of,
    posed_at_end,
    read,
    solve_with_tools,
    some_pages,
)
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.rewards import Dialogue, compare, dialogues
from comas.setups import tools
from comas.types import Count, Episode, Method, Question, Role, Task, Whole

WORDING = {
    "propose_for": (
        "Write a question whose only answer is: {answer}\nFinding it should take several searches."
        " When you have searched enough, write only the question."
    ),
}


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 5,
    turns: Count = 6,
    noise: Whole = 4,
    reading: bool = True,
) -> str | None:
    """Answer with the first solver's reply; None where the question did not hold."""
    proposer = choose(agents, rng, "propose")
    reader = choose(agents, rng, "reading")
    solvers = [choose(agents, rng, "solution") for _ in range(answers)]
    seeds = [str(rng.random()) for _ in range(noise)]
    asked = words(WORDING, task, "propose_for", answer=defuse(question.prompt))
    proposal = await converse(proposer, "propose", asked, task, turns=turns)
    last = proposal[-1]
    posed = posed_at_end(proposal, task)
    last.info["valid"] = posed is not None
    if posed is None:
        return None
    if reading:
        pages = [*pages_of(proposal), *some_pages(task, seeds)]
        rng.shuffle(pages)  # nobody else draws: the dialogue is over
        answer = await read(posed, listed(pages, task), reader, task, last)
        last.info["valid"] = gives(posed, answer, question.prompt, task)
    if not last.info["valid"]:
        return None
    ends = await solve_with_tools(posed, solvers, task, turns, last)
    for end in ends:
        end.info["solves"] = gives(posed, end, question.prompt, task)
    return ends[0].text if is_answer(ends[0]) else None


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward solvers against each other, and proposers against those of the step."""
    proposals: list[Dialogue] = []
    difficulties: list[float] = []
    for episode in episodes:
        solving = dialogues(episode, "solution")
        right = [float(dialogue.end.info["solves"]) for dialogue in solving]
        compare(solving, right)
        for proposal in dialogues(episode, "propose"):
            proposals.append(proposal)
            difficulties.append(1.0 - sum(right) / len(right) if right else 0.0)
    compare(proposals, difficulties)


KL = {"propose": 0.1, "solution": 0.1}
PAPER = {"kl": {"propose": 0.01, "solution": 0.01}, "loss": {"clip_high": 0.285}}
ROLES = {
    "propose": Role("other", reward="being hard and valid"),
    "solution": Role("answer", reward="the given answer"),
    "reading": Role("other"),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    KL,
    roles=ROLES,
    needs=("pose", "tools"),
    base="tiny-facts",
    task="facts",
    task_options={"form": "answers"},
    team={"a0": {}},
    measure=tools.play,
    presets={"stable": {"questions": 32}, "paper": PAPER},
)
