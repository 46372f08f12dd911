"""eva, Evolving Alignment via Asymmetric Self-Play (arXiv 2411.00062): a creator evolves the
prompts from which a solver learns most.

The pool of prompts begins with `seeds` training questions. A prompt's informativeness is the gap
between the best and the worst judged of its `votes` answers; prompts are drawn in proportion to it,
and a share `evolve` of a step is rewritten by the creator, whose new prompts join the pool. The
solver learns by GRPO from the scores of a judge. The creator is not rewarded, as in the released
form. Unlike the paper, a step is a round, and judge and creator are agents of the team.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.methods.shared import posing
from comas.methods.shared.judging import JUDGING, judge
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Memory, Method, Question, Role, State, Task, Turn

EVOLVING = (
    "A question:\n{question}\n\nRewrite it as a new, more demanding question that can be solved"
    " from its own text. Write only the question."
)
WORDING = {**posing.WORDING, "evolve": EVOLVING, "judging": JUDGING}
UNKNOWN = 1.0
"""Informativeness of prompts that were not asked yet: that of the widest gap."""


def start(questions: Sequence[Question], task: Task, *, seeds: Count = 64) -> State:
    """A pool of training questions that nobody has asked yet."""
    return {"pool": {question.prompt: UNKNOWN for question in questions[:seeds]}}


def draw(
    state: State,
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    task: Task,
    *,
    evolve: float = 0.5,
) -> list[Question]:
    """Prompts in proportion to their gap: some to be asked as they are, some to be evolved."""
    pool: dict[str, float] = dict(sorted(state["pool"].items()))
    left = {prompt: gap for prompt, gap in pool.items() if gap > 0}
    chosen: list[str] = []
    while left and len(chosen) < count:
        (prompt,) = rng.choices(list(left), list(left.values()))
        chosen.append(prompt)
        del left[prompt]
    evolving = int(evolve * len(chosen))
    evolved = [
        Question(id=f"evolve-{index}", prompt=prompt, kind="evolve")
        for index, prompt in enumerate(chosen[:evolving])
    ]
    return evolved + posing.posed_again(chosen[evolving:], task, questions)


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, votes: Count = 6
) -> str | None:
    """Have a prompt evolved where it is to be, then solved and judged; the first answers."""
    evolved = None
    posed: Question | None = question
    if question.kind == "evolve":
        creator = choose(agents, rng, "evolve")
        evolved, posed = await posing.rewritten(question, creator, "evolve", task, WORDING)
    if posed is None:
        return None
    solver = choose(agents, rng, "solution")
    judges = [choose(agents, rng, "judging") for _ in range(votes)]
    answers = [_answer(posed, solver, its_judge, task, evolved) for its_judge in judges]
    solutions = await together(answers)
    return solutions[0].text


async def _answer(
    posed: Question, solver: Agent, its_judge: Agent, task: Task, about: Turn | None
) -> Turn:
    """Have it solved, and the solution judged."""
    solution = await posing.solve(posed, solver, task, about)
    judging = await judge(its_judge, posed, solution, task, WORDING)
    solution.info["score"] = judging.info["score"]
    return solution


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward solutions with their score, compared within the prompt."""
    for episode in episodes:
        for turn in _scored(episode):
            turn.reward = turn.info["score"]
            turn.group = f"{episode.id}/{turn.policy}"


def _scored(episode: Episode) -> list[Turn]:
    """The solutions whose score can be read."""
    solutions = in_role(episode, "solution")
    return [turn for turn in solutions if turn.info["score"] is not None]


def update(state: State, episodes: Sequence[Episode], task: Task, *, pool: Count = 500) -> State:
    """Prompts get the gap that was measured; evolved ones join, and the least informative leave."""
    gaps: dict[str, float] = dict(state["pool"])
    for episode in episodes:
        scores = [turn.info["score"] for turn in _scored(episode)]
        evolved = in_role(episode, "evolve")
        prompt = evolved[0].info["posed"] if evolved else episode.question.prompt
        if prompt is not None:
            # what no judge can score teaches nothing
            gaps[prompt] = max(scores) - min(scores) if scores else 0.0
    ranked = sorted(gaps, key=lambda prompt: (-gaps[prompt], prompt))
    best = {prompt: gaps[prompt] for prompt in ranked[:pool]}
    # where nothing is informative any more, everything is asked again
    return {"pool": best if any(best.values()) else dict.fromkeys(best, UNKNOWN)}


ROLES = {
    "solution": Role("answer", reward="its score, compared with the other answers to the prompt"),
    "evolve": Role("other"),
    "judging": Role("judge"),
}
TEAM = {
    "solver": {"roles": ["solution"]},
    "creator": {"roles": ["evolve"], "frozen": True},
    "judge": {"roles": ["judging"], "frozen": True},
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"solution": 0.1},
    roles=ROLES,
    memory=Memory(start, draw, update),
    needs=("pose",),
    presets={"stable": {"questions": 32}},
    base="tiny-pose",
    team=TEAM,
)
