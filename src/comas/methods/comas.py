"""CoMAS (arXiv 2510.08529): agents solve, criticise and score each other; the game itself is the
reward.

One round: a solution, `evaluations` criticisms of it, one score per criticism (3 right, 2 minor
flaws, 1 fatally wrong). Unlike the paper (preset `paper`): nobody judges its own work, work without
a readable answer is rewarded with 0 and not judged, rewards are normalised per role, a KL holds the
judges. A scorer need not say anything: `score = "expected"` takes the expected value over the three
marks by its probabilities of them, `score = "p_true"` that over yes and no, which needs no format
and is always there (P(True), Kadavath et al. 2022). With `answer_first = true` a critic, or the
scorer where nobody criticises, answers the question itself before it sees the work. Leaves out: the
published code's synchronous rounds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, takers, together
from comas.game.prompts import Quoted, common_of, defuse, fill, template_of, words
from comas.game.votes import given
from comas.game.weighing import is_weighing
from comas.methods.shared.judging import WEIGHING, Score, read_score, weigh_score
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import by_id, in_role, mean
from comas.types import Count, Episode, Method, Question, Role, Task, Turn, Whole

SCALE = (
    "How good is the solution? 3: right; 2: right, with minor flaws; 1: fatally wrong. End with"
    " <score>N</score>."
)
WORDING = {
    "solution": "{question}\n\n{history}\nGive your own solution, and end with the answer.",
    "history": "A colleague wrote:\n{work}\nIt was criticised:\n{evaluation}\n",
    "history_bare": "A colleague wrote:\n{work}\n",
    "evaluation": (
        "Question:\n{question}\n\nA proposed solution:\n{work}\n\nCheck it step by step and name"
        " every error."
    ),
    "scoring": (
        "Question:\n{question}\n\nA proposed solution:\n{work}\n\nCriticism of"
        " it:\n{evaluation}\n\n" + SCALE
    ),
    "scoring_bare": "Question:\n{question}\n\nA proposed solution:\n{work}\n\n" + SCALE,
    "beside": "{work}\n\nYour own solution, written before you saw it:\n{own}",
    **WEIGHING,
}
Judged = tuple[Turn | None, Turn]
"""An evaluation, where there is one, and the scoring of it."""
Round = tuple[Turn, list[Judged]]
"""A solution, and what judges wrote about it."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    rounds: Count = 1,
    evaluations: Count = 1,
    kappa: Whole = 2,
    references: Whole = 1,
    avoid_self: bool = True,
    format_check: bool = True,
    evaluate: bool = True,
    score: Score = "text",
    answer_first: bool = False,
) -> str | None:
    """Play `rounds` solutions in turn, and answer with the best-scored one.

    Each solution sees the last `kappa` rounds, and up to `references` criticisms of each.
    """
    past: list[Round] = []
    for at in range(rounds):
        seen = past[max(0, len(past) - kappa) :]
        history = _history(question, task, seen, references)

        def prompt(quotes: Sequence[str]) -> str:
            earlier = "\n".join(quotes)
            return words(WORDING, task, "solution", question=question.prompt, history=earlier)

        author = draw_judge(agents, rng, "solution")
        solution = await author.ask("solution", prompt, history=history, round=at)
        readable = given(question, solution, task) is not None
        solution.info["readable"] = readable
        judges = []
        for _ in range(evaluations if readable or not format_check else 0):
            barred = [solution.agent] if avoid_self else []
            critic = draw_judge(agents, rng, "evaluation", *barred) if evaluate else None
            if avoid_self and critic is not None:
                barred.append(critic.name)
            judges.append((critic, draw_judge(agents, rng, "scoring", *barred)))
        work = task.shown(question, solution.text)
        own: list[Quoted | None] = [None] * len(judges)
        if answer_first:  # all of them, or names and seeds would depend on who answers first
            own = await together(
                own_answer(question, solution, critic or scorer, task) for critic, scorer in judges
            )
        judged = await together(
            judge(question, solution, work, critic, scorer, task, score, answer)
            for (critic, scorer), answer in zip(judges, own, strict=True)
        )
        past.append((solution, judged))
    return _best(past).text


def _history(question: Question, task: Task, rounds: Sequence[Round], references: int) -> list[str]:
    """Quote earlier solutions, each with up to `references` of its criticisms."""
    quoted: list[str] = []
    for solution, judged in rounds:
        evaluations = [evaluation for evaluation, _ in judged[:references]] or [None]
        quoted += [_quote(task, question, solution, evaluation) for evaluation in evaluations]
    return quoted


def _best(rounds: Sequence[Round]) -> Turn:
    """The best-scored solution, the latest among equals; unscored ones come last."""
    best = rounds[0][0]
    highest = -1.0
    for solution, judged in rounds:
        scores = [scoring.info["score"] for _, scoring in judged]
        score = mean(scores) or 0.0
        if score >= highest:
            best = solution
            highest = score
    return best


async def judge(
    question: Question,
    about: Turn,
    work: str,
    critic: Agent | None,
    scorer: Agent,
    task: Task,
    score: Score = "text",
    own: Quoted | None = None,
) -> Judged:
    """Have work criticised, where there is a critic, and scored, as what `about` said; `own` is
    what the critic has answered before, or the scorer where nobody criticises.
    """
    quoted_work = defuse(work)
    evaluation = None
    if critic is not None:
        evaluation = await criticise(question, about, quoted_work, critic, task, own)
        own = None
    scoring = await score_work(
        question, about, quoted_work, evaluation, scorer, task, score, own=own
    )
    return evaluation, scoring


async def score_work(
    question: Question,
    about: Turn,
    work: Quoted,
    evaluation: Turn | None,
    scorer: Agent,
    task: Task,
    score: Score,
    own: Quoted | None = None,
) -> Turn:
    """Have work scored, as what `about` said, with its criticism or beside the scorer's own answer
    where there is one; `info["score"]` is None where it cannot be read.
    """
    role = "scoring" if score == "text" else score
    if evaluation is None:
        prompt, common = _about_work(question, work, own, task, f"{role}_bare")
    else:
        criticism = defuse(evaluation.text)
        prompt, common = _about_work(question, work, own, task, role, evaluation=criticism)
    judged = evaluation or about
    if score != "text":
        return await weigh_score(scorer, "scoring", prompt, score, task, WORDING, judged, common)
    scoring = await scorer.ask("scoring", prompt, about=judged)
    scoring.info["score"] = read_score(scoring)
    return scoring


async def criticise(
    question: Question, about: Turn, work: Quoted, critic: Agent, task: Task, own: Quoted | None
) -> Turn:
    """Have work criticised, beside the critic's own answer where there is one."""
    prompt, _ = _about_work(question, work, own, task, "evaluation")
    return await critic.ask("evaluation", prompt, about=about)


async def own_answer(question: Question, about: Turn, judge: Agent, task: Task) -> Quoted | None:
    """Have a judge answer the question without the work that `about` said; None where the answer
    cannot be read. `info["agrees"]` tells whether it is that of the work.
    """
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    own = await judge.ask("blind", prompt, about=about)
    answer = given(question, own, task)
    own.info["readable"] = answer is not None
    if answer is None:
        return None
    work = given(question, about, task)
    own.info["agrees"] = work is not None and task.same(answer, work)
    return defuse(task.shown(question, own.text))


def _about_work(
    question: Question, work: Quoted, own: Quoted | None, task: Task, role: str, **facts: str
) -> tuple[str, int]:
    """Write the prompt of a judge: its own answer, where it has one, stands beside the work. Return
    also how many characters other works of the question have in common (`Ask.common`).
    """
    template = template_of(WORDING, task, role)
    facts = {"question": defuse(question.prompt), "work": work, **facts}
    if own is not None:
        template = template.replace("{work}", template_of(WORDING, task, "beside"))
        # with a mark before it, a judge that answers first told right from wrong less well
        facts["own"] = own.continuing()
    return fill(template, facts), common_of(template, "work", facts)


def _quote(task: Task, question: Question, solution: Turn, evaluation: Turn | None) -> str:
    """Quote a solution for those who come after it, with its criticism where there is one."""
    work = defuse(task.shown(question, solution.text))
    if evaluation is None:
        return words(WORDING, task, "history_bare", work=work)
    return words(WORDING, task, "history", work=work, evaluation=defuse(evaluation.text))


def draw_judge(agents: Sequence[Agent], rng: random.Random, role: str, *barred: str) -> Agent:
    """Draw an agent for a role, uniformly; of `barred` only if the team is too small."""
    able = takers(agents, role)
    for most in (2, 1):
        others = [agent for agent in able if agent.name not in barred[:most]]
        if others:
            return rng.choice(others)
    return rng.choice(able)


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Reward a solution and its criticism against each other.

    An unreadable score gives its scorer -1 and settles nothing else; one that is weighed can
    always be read, and has no reward.
    """
    for episode in episodes:
        turns = by_id(episode)
        solutions = in_role(episode, "solution")
        scores: dict[str, list[float | None]] = {solution.id: [] for solution in solutions}
        for scoring in in_role(episode, "scoring"):
            score = scoring.info["score"]
            if not is_weighing(scoring):  # weighings are not learnt: all have the same reward
                scoring.reward = -1.0 if score is None else 0.0
            judged = turns[scoring.about or ""]
            if judged.role == "evaluation":
                judged.reward = None if score is None else 1.0 - (score - 1) / 2
                judged = turns[judged.about or ""]
            scores[judged.id].append(score)
        for solution in solutions:
            score = mean(scores[solution.id])
            if score is not None:
                solution.reward = (score - 1) / 2
            elif format_check and not solution.info["readable"]:
                solution.reward = 0.0


KL = {"solution": 0.1, "evaluation": 0.5, "scoring": 0.5}
PAPER = {
    "options": {"avoid_self": False, "format_check": False},
    "credit": {"normalise": "all"},
    "kl": {},
}
P_TRUE = {
    "questions": 24,
    "samples": 8,
    "options": {"evaluate": False, "score": "p_true", "answer_first": True},
}
"""Settings that teach pretrained models (docs/pretrained.md): a judge that answers first, and is
then read by its probability of yes.
"""
ROLES = {
    "solution": Role(
        "answer",
        reward="the mean of its readable scores, from 0 to 1: 3 is +1, 2 is +0.5, 1 is 0; with"
        " score=p_true the probability of yes",
    ),
    "evaluation": Role("judge", reward="the opposite: 1 minus the score"),
    "scoring": Role("judge", reward="0; -1 for a score that cannot be read; none if weighed"),
    "blind": Role("other"),
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    presets={"stable": {}, "paper": PAPER, "p_true": P_TRUE},
    pretrained="p_true",
)
