"""Dr. Zero (arXiv 2601.07055): a proposer makes questions out of documents by searching, and a
solver who searches learns from those that are neither too easy nor too hard; in turn, in phases.

For `proposing` steps the proposer is shown a document and told how many hops its question has to
take, 1 to 4 as 4:3:2:1. It searches and writes a question with its answer, which the solver tries
`answers` times. A proposal with k of n right is rewarded with (n - k) / (n - 1) where 0 < k < n,
and half its form: that it can be read, took its searches, and has an answer that stands in its
pages. Proposals are compared with those of the step that had to take as many hops (`baseline =
"hops"`, the paper's HRPO), or with `"document"`, of which there have to be several `samples`. Then,
for `solving` steps, questions with 0 < k < n are solved: 1 for the proposer's answer, compared
within the question. Unlike the paper a solver learns while the next proposer is made only where
both are one policy.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from comas.game.agent import Agent, choose
from comas.game.dialogue import converse
from comas.game.prompts import defuse, words
from comas.game.votes import is_answer
from comas.methods.r_zero import TEAM, after_step, from_pool, start
from comas.methods.shared.searching import gives, pages_of, posed_at_end, solve_with_tools
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.rewards import Dialogue, compare, dialogues
from comas.setups import tools
from comas.types import Count, Episode, Memory, Method, Question, Role, State, Task, UserMistake

WORDING = {
    "propose_from": (
        "A document:\n{document}\n\nWrite a question that starts from it and takes {hops} hops:"
        " search for what is needed. When you have searched enough, write the question, = and its"
        " answer, and nothing else."
    ),
}
HOPS = {1: 4, 2: 3, 3: 2, 4: 1}
"""Hops -> how often, against the others."""


def draw(
    state: State, questions: Sequence[Question], count: int, rng: random.Random, task: Task
) -> list[Question]:
    """Documents of the task, or questions of the pool."""
    if state["phase"] == "propose":
        return rng.sample(list(questions), min(count, len(questions)))
    return from_pool(state, count, rng, task)


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    state: State,
    answers: Count = 5,
    turns: Count = 6,
) -> str | None:
    """Answer with the first solver's reply; None where nothing was asked that has an answer."""
    proposer = choose(agents, rng, "propose")
    solvers = [choose(agents, rng, "solution") for _ in range(answers)]
    hops = rng.choices(list(HOPS), list(HOPS.values()))[0]
    posed: Question | None = question
    label = state.get("pool", {}).get(question.prompt)  # outside a run there is no record
    about = None
    if label is None:
        facts = {"document": defuse(question.prompt), "hops": str(hops)}
        asked = words(WORDING, task, "propose_from", **facts)
        proposal = await converse(proposer, "propose", asked, task, turns=turns)
        about = proposal[-1]
        posed = posed_at_end(proposal, task)
        label = None if posed is None else posed.answer
        about.info |= {"hops": hops, "label": label, "form": 0.0}
        if posed is not None and label is not None:
            about.info["form"] = form(posed, label, pages_of(proposal), hops)
    if posed is None or label is None:
        return None
    ends = await solve_with_tools(posed, solvers, task, turns, about)
    for end in ends:
        end.info["solves"] = gives(posed, end, label, task)
    return ends[0].text if is_answer(ends[0]) else None


def form(posed: Question, label: str, pages: Sequence[str], hops: int) -> float:
    """The mean of: it can be read; the share of its searches that were made; its answer stands in
    what was found, where anything had to be. 0 where the answer stands in the question.
    """
    named = re.compile(rf"(?<!\w){re.escape(label.strip())}(?!\w)", re.IGNORECASE)
    if named.search(posed.prompt):
        return 0.0
    searches = 1.0 if hops == 1 else min(1.0, len(pages) / (hops - 1))
    stands = hops == 1 or any(named.search(page) for page in pages)
    return (1.0 + searches + stands) / 3


def settle(
    episodes: Sequence[Episode],
    task: Task,
    *,
    state: State,
    baseline: Literal["hops", "document"] = "hops",
) -> None:
    """Reward proposers in their phase, solvers in theirs."""
    peers: dict[str, list[tuple[Dialogue, float]]] = {}
    for episode in episodes:
        solving = dialogues(episode, "solution")
        right = [float(dialogue.end.info["solves"]) for dialogue in solving]
        if state["phase"] == "solve":
            compare(solving, right)
            continue
        for proposal in dialogues(episode, "propose"):
            info = proposal.end.info
            like = f"hop {info['hops']}" if baseline == "hops" else episode.question.id
            worth = 0.5 * info["form"] + difficulty(right)
            peers.setdefault(like, []).append((proposal, worth))
    if baseline == "document" and peers and all(len(same) == 1 for same in peers.values()):
        raise UserMistake(
            "options.baseline=document compares the proposals about a document, and each has one:"
            " set samples=4, or take options.baseline=hops"
        )
    for compared in peers.values():
        proposals = [proposal for proposal, _ in compared]
        compare(proposals, [worth for _, worth in compared])


def difficulty(right: Sequence[float]) -> float:
    """(n - k) / (n - 1) of k right answers among n; 0 where none is right, or all are."""
    correct = sum(right)
    if correct in (0, len(right)):
        return 0.0
    return (len(right) - correct) / (len(right) - 1)


def update(
    state: State,
    episodes: Sequence[Episode],
    task: Task,
    *,
    proposing: Count = 4,
    solving: Count = 8,
    least: Count = 16,
) -> State:
    """Count the steps of a phase, collect questions that some solvers solved, change phases."""
    labels = _collected(episodes) if state["phase"] == "propose" else {}
    return after_step(state, labels, proposing, solving, least)


def _collected(episodes: Sequence[Episode]) -> Mapping[str, str]:
    """Question -> the proposer's answer, where some solvers gave it and others did not."""
    labels: dict[str, str] = {}
    for episode in episodes:
        right = [float(d.end.info["solves"]) for d in dialogues(episode, "solution")]
        for proposal in dialogues(episode, "propose"):
            if difficulty(right) > 0:
                labels[proposal.end.info["posed"]] = proposal.end.info["label"]
    return labels


KL = {"propose": 0.1, "solution": 0.1}
PAPER = {"kl": {}, "grad_norm": 0.1}
ROLES = {
    "propose": Role("other", reward="form, and being solved by some"),
    "solution": Role("answer", reward="the answer that the question came with"),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    KL,
    roles=ROLES,
    memory=Memory(start, draw, update),
    needs=("pose", "tools"),
    base="tiny-facts",
    task="facts",
    task_options={"form": "documents"},
    team=TEAM,
    measure=tools.play,
    presets={"stable": {"questions": 32}, "paper": PAPER},
)
