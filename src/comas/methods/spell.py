"""SPELL (arXiv 2509.23863): one model asks about documents, answers, and judges answers.

A question of the task is a text of documents. The questioner sees them, with up to `memory` of the
questions that were solved about them before, and writes a question with its answer. It is dropped
where somebody answers it without the documents. `answers` responders see them; each answer is
compared with the questioner's by rule, and by `verifiers`, whose majority decides. A responder is
rewarded with 1 where the rule or that majority says that it is right, compared within the question;
what gives no answer is wrong, and nobody is asked about it. The questioner is rewarded with exp(-(p
- 1/2)^2 / (2 sigma^2)) for 0 < p < 1, p the share of right answers and sigma = `width`; 0 where p
is 0 or 1, -0.5 where its question needs no documents, -1 where there is none. A verifier is
rewarded for agreeing with its majority of all verifiers, where that is what the rule says and
between .51 and .99 of them agree, compared with the other verifiers of the answer; what cannot be
read accepts nothing, and is not rewarded (the released code: -1). Leaves out: documents that grow
in number as training goes on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.game.prompts import defuse, words
from comas.methods.shared.judging import last_word
from comas.methods.shared.posing import posed_by, solve
from comas.methods.shared.searching import gives, read
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.rewards import compare_turns, in_role
from comas.types import (
    Count,
    Episode,
    Memory,
    Method,
    Positive,
    Question,
    Role,
    State,
    Task,
    Turn,
    Whole,
)

WORDING = {
    "propose_within": (
        "Documents:\n{documents}\n\n{history}\nWrite a new question that can be answered from these"
        " documents alone, then = and its answer, and nothing else."
    ),
    "reference": "An earlier question:\n{question}",
    "comparing": (
        "One answer: {answer}\nAnother: {work}\nDo they say the same? End with one word: yes or no."
    ),
    "given": "{question}\n\nAnswer from the documents, and end with the answer.",
}


def start(questions: Sequence[Question], task: Task) -> State:
    """Nothing was solved yet: documents -> questions."""
    return {"solved": {}}


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    state: State,
    answers: Count = 8,
    verifiers: Count = 3,
    memory: Whole = 3,
) -> str | None:
    """Answer with the first responder's reply; None where nothing was asked about documents."""
    documents = defuse(question.prompt)
    questioner = choose(agents, rng, "propose")
    closed = choose(agents, rng, "solution")
    readers = [choose(agents, rng, "reading") for _ in range(answers)]
    judges = [[choose(agents, rng, "comparing") for _ in range(verifiers)] for _ in readers]
    earlier = state.get("solved", {}).get(question.prompt, [])  # none outside a run
    earlier = earlier[-memory:] if memory else []
    shown = [words(WORDING, task, "reference", question=defuse(text)) for text in earlier]
    facts = {"documents": documents, "history": "\n".join(shown)}
    proposal = await questioner.ask("propose", words(WORDING, task, "propose_within", **facts))
    posed = posed_by(proposal, task)
    if posed is None or posed.answer is None:
        proposal.info["posed"] = None
        return None
    guess = await solve(posed, closed, task, proposal)
    guess.info["closed_book"] = True
    proposal.info["grounded"] = not gives(posed, guess, posed.answer, task)
    if not proposal.info["grounded"]:
        return None
    works = await together(read(posed, documents, reader, task, proposal) for reader in readers)
    pairs = zip(works, judges, strict=True)
    await together(_judged(posed, posed.answer, work, board, task) for work, board in pairs)
    return works[0].text


async def _judged(
    posed: Question, answer: str, work: Turn, judges: Sequence[Agent], task: Task
) -> None:
    """Compare an answer with the questioner's, by rule and by judges; `info["solves"]` is what
    either says.
    """
    ruled = gives(posed, work, answer, task)
    if work.info["answer"] is None:
        work.info |= {"ruled": False, "solves": False}
        return
    shown = defuse(work.info["answer"])
    prompt = words(WORDING, task, "comparing", answer=defuse(answer), work=shown)
    turns = await together(judge.ask("comparing", prompt, about=work) for judge in judges)
    for turn in turns:
        turn.info["verdict"] = last_word(turn, ("yes", "no"))
    yes = sum(turn.info["verdict"] == "yes" for turn in turns)
    no = sum(turn.info["verdict"] == "no" for turn in turns)
    accepted = 2 * yes > len(turns)  # of all: one that cannot be read accepts nothing
    work.info |= {"ruled": ruled, "solves": ruled or accepted}
    share = max(yes, no) / len(turns)
    for turn in turns:
        taught = accepted == ruled and 0.51 <= share <= 0.99 and turn.info["verdict"] is not None
        turn.info["agreed"] = (turn.info["verdict"] == "yes") == accepted if taught else None


def settle(episodes: Sequence[Episode], task: Task, *, width: Positive = 1 / 6) -> None:
    """Reward responders within their question, verifiers within the answer that they compare, and
    questioners over the step.
    """
    proposals: list[Turn] = []
    worths: list[float] = []
    for episode in episodes:
        works = in_role(episode, "reading")
        right = [float(work.info["solves"]) for work in works]
        compare_turns(works, right)
        for proposal in in_role(episode, "propose"):
            proposals.append(proposal)
            worths.append(worth_of(proposal, right, width))
        for work in works:
            taught = [
                turn
                for turn in in_role(episode, "comparing")
                if turn.about == work.id and turn.info["agreed"] is not None
            ]
            compare_turns(taught, [float(turn.info["agreed"]) for turn in taught])
    compare_turns(proposals, worths)


def worth_of(proposal: Turn, right: Sequence[float], width: float) -> float:
    """Value a question: most where half of the answers are right."""
    if proposal.info["posed"] is None:
        return -1.0
    if not proposal.info["grounded"]:
        return -0.5
    share = sum(right) / len(right)
    proposal.info["share"] = share
    if share in (0.0, 1.0):
        return 0.0
    widths = (share - 0.5) / width
    return math.exp(-widths * widths / 2)


def update(state: State, episodes: Sequence[Episode], task: Task, *, memory: Whole = 3) -> State:
    """Remember the last questions about each text that somebody solved."""
    solved: dict[str, list[str]] = dict(state["solved"])
    for episode in episodes:
        if any(turn.info["solves"] for turn in in_role(episode, "reading")) and memory:
            (proposal,) = in_role(episode, "propose")
            earlier = solved.get(episode.question.prompt, [])
            fresh = dict.fromkeys([*earlier, proposal.info["posed"]])
            solved[episode.question.prompt] = list(fresh)[-memory:]
    return {"solved": solved}


async def measure(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Answer a question that has its documents before it."""
    prompt = words(WORDING, task, "given", question=question.prompt)
    turn = await agents[0].ask("reading", prompt)
    return turn.text if turn.finished else None


KL = {"propose": 0.1, "reading": 0.1, "comparing": 0.5}
PAPER = {"kl": dict.fromkeys(KL, 0.0)}
ROLES = {
    "propose": Role("other", reward="being solved by half of the answers"),
    "reading": Role("other", reward="the right answer"),
    "comparing": Role("other", reward="agreeing with the other verifiers"),
    "solution": Role("answer"),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    KL,
    roles=ROLES,
    memory=Memory(start, update=update),
    needs=("pose",),
    base="tiny-facts",
    task="facts",
    task_options={"form": "pages"},
    team={"a0": {}},
    measure=measure,
    presets={"stable": {"questions": 32}, "paper": PAPER},
)
