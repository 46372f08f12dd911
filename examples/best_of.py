"""A method of one's own: best of n, chosen by peers.  comas train method=./examples/best_of.py
options.drafts=6

One agent drafts `drafts` solutions, a peer checks each, and the first that passes is the answer. A
draft has reward 1 if its check ends with the word `right`, 0 if with `wrong`, and none otherwise;
checks have no reward.
"""

import asyncio

from comas.game.prompts import defuse, words
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Method

WORDING = {
    "solution": "{question}\n\nSolve it and end with the answer.",
    "evaluation": "{question}\n\nProposed:\n{work}\n\nCheck it. End with one word: right or wrong.",
}


async def play(question, agents, rng, task, *, drafts: int = 4):
    author = rng.choice(agents)
    peers = [rng.choice([a for a in agents if a is not author] or agents) for _ in range(drafts)]
    # side by side: the host decodes all of them as one batch
    async with asyncio.TaskGroup() as group:
        drafted = [group.create_task(draft(question, task, author, peer)) for peer in peers]
    solutions = [d.result() for d in drafted]
    return next((s for s in solutions if s.info["verdict"] == "right"), solutions[0]).text


async def draft(question, task, author, peer):
    solution = await author.ask(
        "solution", words(WORDING, task, "solution", question=question.prompt, history="")
    )
    work = defuse(task.shown(question, solution.text))
    check = await peer.ask(
        "evaluation",
        words(WORDING, task, "evaluation", question=defuse(question.prompt), work=work),
        about=solution,
    )
    verdict = check.text.split()[-1] if check.text.strip() else None
    check.info["verdict"] = verdict  # metrics and monitors read it
    solution.info["verdict"] = verdict
    return solution


def settle(episodes, task):
    for episode in episodes:
        for turn in (t for t in episode.turns if t.role == "solution"):
            turn.reward = {"right": 1.0, "wrong": 0.0}.get(turn.info["verdict"])
            turn.group = episode.id  # drafts of one question are compared with each other


method = Method(play, settle, grpo, clipped, kl={"solution": 0.1})
