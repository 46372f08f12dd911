"""SPC, Self-Play Critic (arXiv 2504.19162): a sneaky generator spoils right work, a critic judges
it, and whoever wins is rewarded.

A solver answers; where its work is right by the task's own rules, `spoilt` generators rewrite it so
that it is wrong and looks right, and critics check all of it, unlabelled. Spoilt work that a critic
accepts gives the generator 1 and the critic -1, and the reverse where it is caught; "spoilt" work
that is still right, or unreadable, gives the generator -1 and is not judged. On the right work the
critic is rewarded with 1 or -1 alone. Opponents of earlier rounds are agents with `lag`, as in the
default team. Unlike the paper, work is a whole answer rather than a step, rules say whether it is
wrong (the paper: a solver's success rate), and learning is on-policy, without the supervised first
round.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.game.prompts import defuse, solving, words
from comas.methods.shared import judging
from comas.methods.shared.judging import evaluate, ruled
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import by_id
from comas.types import Count, Episode, Method, Question, Role, Task, Turn

SPOILING = (
    "Question:\n{question}\n\nA right solution:\n{work}\n\nRewrite it so that it is wrong, and"
    " nobody notices."
)
WORDING = {**judging.WORDING, "sabotage": SPOILING}


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    spoilt: Count = 2,
) -> str | None:
    """Have it solved, the work spoilt where it is right, and all of it judged; the solver's work
    is the answer.
    """
    duels: list[tuple[Agent, Agent]] = []
    for _ in range(spoilt):
        generator = choose(agents, rng, "sabotage")
        duels.append((generator, choose(agents, rng, "evaluation")))
    critic = choose(agents, rng, "evaluation")
    solver = choose(agents, rng, "solution")
    solution = await solver.ask("solution", solving(question, task))
    solution.info["verdict"] = ruled(question, solution, task)
    if solution.info["verdict"] == "right":
        spoiling = [_spoil(question, solution, *duel, task) for duel in duels]
        await together([evaluate(question, solution, critic, task), *spoiling])
    return solution.text


async def _spoil(
    question: Question, solution: Turn, generator: Agent, critic: Agent, task: Task
) -> None:
    """Have right work rewritten, and judged where it is wrong now."""
    work = defuse(solution.text)
    prompt = words(WORDING, task, "sabotage", question=defuse(question.prompt), work=work)
    turn = await generator.ask("sabotage", prompt, about=solution)
    turn.info["verdict"] = ruled(question, turn, task)
    if turn.info["verdict"] == "wrong":
        await evaluate(question, turn, critic, task)


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 to the winner and -1 to the loser; a critic without a verdict has lost, and nobody has
    won.
    """
    for episode in episodes:
        turns = by_id(episode)
        for turn in episode.turns:
            if turn.role == "sabotage" and turn.info["verdict"] != "wrong":
                turn.reward = None if turn.info["verdict"] == "failed" else -1.0
            elif turn.role == "evaluation":
                work = turns[turn.about or ""]
                caught = turn.info["verdict"] == work.info["verdict"]
                turn.reward = 1.0 if caught else -1.0
                if work.role == "sabotage" and turn.info["verdict"] is not None:
                    work.reward = -turn.reward


KL = {"sabotage": 0.1, "evaluation": 0.1}
ROLES = {
    "sabotage": Role(
        "spoilt", reward="1 for wrong work that a critic accepts, -1 if caught or not wrong"
    ),
    "evaluation": Role("judge", reward="1 for the verdict that the rules give, -1 for any other"),
    "solution": Role("answer"),
}
TEAM = {
    "solver": {"roles": ["solution"], "frozen": True},
    "generator": {"roles": ["sabotage"]},
    "critic": {"roles": ["evaluation"]},
    "past_generator": {"policy": "generator", "lag": 20, "roles": ["sabotage"]},
    "past_critic": {"policy": "critic", "lag": 20, "roles": ["evaluation"]},
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    grounded=True,
    needs=("check",),
    presets={"stable": {"questions": 96, "steps": 160}},
    base="tiny-critic",
    team=TEAM,
)
