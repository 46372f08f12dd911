"""KnowRL (arXiv 2510.11407): a model learns to say whether it can solve something, by agreeing with
itself.

The model writes a question, after examples of the rounds before, and assesses `votes` times whether
it can be solved: yes or no. Who agrees with the majority is rewarded with 1, others 0; questions on
which at least `consistent` of the assessments agree join the examples. Consensus alone is greatest
where the answer is always yes: watch the share of `yes`, and where the task has rules, the
agreement with them. The formula is our reading of the abstract (the paper's code is anonymous);
proposals are not rewarded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.game.prompts import defuse, words
from comas.game.votes import leading
from comas.methods.shared.judging import last_word
from comas.methods.shared.posing import unwritten, with_newest, written
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Memory, Method, Question, Role, Share, State, Task, Turn

ASSESSING = "{question}\n\nCan you solve this? Think about it, and end with one word: yes or no."
WORDING = {"assess": ASSESSING}
SAYINGS = ("yes", "no")


def start(questions: Sequence[Question], task: Task) -> State:
    """No examples yet."""
    return {"examples": []}


def draw(
    state: State, questions: Sequence[Question], count: int, rng: random.Random, task: Task
) -> list[Question]:
    """Proposals only, each after an example where there is one."""
    examples = state["examples"]
    return unwritten([rng.choice(examples) if examples else "" for _ in range(count)])


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, votes: Count = 8
) -> str | None:
    """Have a question proposed where it is a proposal, then assessed; the majority's word."""
    agent = choose(agents, rng, "assess")
    proposal, posed = await written(question, agents, rng, task)
    if posed is None:
        return None
    prompt = words(WORDING, task, "assess", question=defuse(posed.prompt))
    turns = await together(agent.ask("assess", prompt, about=proposal) for _ in range(votes))
    for turn in turns:
        turn.info["verdict"] = last_word(turn, SAYINGS)
    word, _ = consensus(turns)
    return word


def consensus(turns: Sequence[Turn]) -> tuple[str | None, float]:
    """The word that most assessments end with, the earlier of equals, and its share of all."""
    word, votes, _ = leading([turn.info["verdict"] for turn in turns])
    return word, votes / max(1, len(turns))


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 for the majority's word, 0 for the other and for none; a tie or a single vote is no
    majority, and rewards nobody.
    """
    for episode in episodes:
        turns = in_role(episode, "assess")
        word, votes, others = leading([turn.info["verdict"] for turn in turns])
        agreed = votes >= 2 and votes > others
        for turn in turns:
            turn.reward = float(agreed and turn.info["verdict"] == word)
            turn.group = f"{episode.id}/{turn.policy}"


def update(
    state: State,
    episodes: Sequence[Episode],
    task: Task,
    *,
    consistent: Share = 0.8,
    examples: Count = 200,
) -> State:
    """Questions with a stable assessment join the examples, each once; the oldest leave them."""
    stable: list[str] = []
    for episode in episodes:
        word, agreement = consensus(in_role(episode, "assess"))
        if word is not None and agreement >= consistent:
            stable += [turn.info["posed"] for turn in in_role(episode, "propose")]
    return {"examples": with_newest(state["examples"], stable, examples)}


ROLES = {
    "assess": Role("other", reward="1 for the word of the majority, 0 for the other and for none"),
    "propose": Role("other"),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"assess": 0.1},
    roles=ROLES,
    memory=Memory(start, draw, update),
    needs=("pose",),
    presets={"stable": {"questions": 48, "steps": 100}},
    base="tiny-pose",
    team={"a0": {}},
)
