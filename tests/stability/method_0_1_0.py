"""A method as a user of 0.1.0 wrote it, by docs/extending.md: a solution and a check of it."""

import asyncio

from comas.game.prompts import defuse, words
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Method

WORDING = {
    "solution": "{question}\n\nSolve it and end with the answer.",
    "evaluation": "{question}\n\nProposed:\n{work}\n\nEnd with one word: right or wrong.",
}


async def play(question, agents, rng, task, *, drafts: int = 2):
    """Have drafts written and checked, side by side."""
    author = rng.choice(agents)
    async with asyncio.TaskGroup() as group:
        drafted = [group.create_task(draft(question, task, author)) for _ in range(drafts)]
    return drafted[0].result().text


async def draft(question, task, author):
    """Ask for a solution, and for a check of it."""
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    solution = await author.ask("solution", prompt)
    work = defuse(task.shown(question, solution.text))
    prompt = words(WORDING, task, "evaluation", question=question.prompt, work=work)
    check = await author.ask("evaluation", prompt, about=solution)
    solution.info["said"] = len(check.text) % 2
    return solution


def settle(episodes, task):
    """Pay solutions by what was said of them."""
    for episode in episodes:
        for turn in episode.turns:
            if turn.role == "solution":
                turn.reward = float(turn.info["said"])
                turn.group = f"{episode.id}/{turn.policy}"


method = Method(play, settle, grpo, clipped, kl={"solution": 0.1})
