"""CoMAS whose judges learn from votes, and whose critics are rewarded for what they mend.

The team answers a question `votes` times, its agents in turn and nobody seeing another's work. For
each solver the label is the majority of the others' answers (of other policies' answers, where
there are three policies or more); a tie rewards nobody. Where answers differ, up to `pairs` works
that give the majority's answer and as many that give the rarest other one go to a critic and a
scorer who are not their author, and then back to the author, who revises once.

- solution and revision: 1 for the label, 0 for another answer or none;
- scoring: its share of the scale for work of the majority, 1 minus that for the rarest other
  answer, -1 for a score that cannot be read;
- evaluation: the reward of the revision less that of the solution, so that a remark which spoils
  right work costs its critic.

Unless the judges hold with the majority, the question rewards nobody (`gate`): more than half of
the verdicts on its works have to accept them; of expected scores, which are worth something
relative to each other, the mean has to be above that of the rarest other answer. Solutions are
compared within their question, and in the whole step scorings of either kind, evaluations and
revisions each among themselves, so that a judge who says the same of everything is rewarded with
nothing for it.

After CoVerRL (arXiv 2603.17775: majority against the rarest other answer, gate, balanced verdicts),
Co-RL (arXiv 2608.17253: leave-one-out votes) and ICRL (arXiv 2605.15224: critics rewarded for what
they mend). Unlike CoVerRL there is a team, verdicts are scores, and a revision follows each
criticism, whatever it says. The options `negatives`, `balanced`, `gate`, `judges_learn` and
`critics` undo one of these each, for ablations. Leaves out: rounds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from comas.game.agent import Agent, takers, together
from comas.game.prompts import defuse, words
from comas.game.votes import agrees, by_answer, clear_majority, decide, in_turn, solved
from comas.methods import comas
from comas.methods.comas import draw_judge
from comas.methods.shared.judging import Score
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.objective.rewards import by_id, in_role, mean
from comas.types import Count, Episode, Method, Question, Role, Task, Turn

WORDING = {
    **comas.WORDING,
    "remark": "It was criticised:\n{evaluation}\n",
    "revision": (
        "{question}\n\nYour solution so far:\n{own}\n\n{history}\nGive your solution again, and end"
        " with the answer."
    ),
}
Judged = tuple[Turn, Agent, bool]
"""Work, its author, and whether it gives the majority's answer."""
POLICIES = 3
"""From so many policies on, a label is what the other ones say."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 8,
    pairs: Count = 1,
    negatives: Literal["rarest", "random"] = "rarest",
    balanced: bool = True,
    evaluate: bool = True,
    score: Score = "text",
) -> str | None:
    """Have the team solve it `votes` times, and works of two answers judged and, where they are
    criticised, revised; the majority answers.
    """
    able = takers(agents, "solution")
    rng.shuffle(able)
    authors = in_turn(able, votes)
    solutions = await solved(question, authors, task, WORDING)
    answer = await decide(question, solutions, task)
    works: list[Judged] = []
    for solution, side in chosen_works(solutions, rng, task, pairs, negatives, balanced):
        works.append((solution, authors[solutions.index(solution)], side))
    judges: list[tuple[Agent | None, Agent]] = []
    for solution, _, _ in works:
        critic = draw_judge(agents, rng, "evaluation", solution.agent) if evaluate else None
        barred = [solution.agent] if critic is None else [solution.agent, critic.name]
        judges.append((critic, draw_judge(agents, rng, "scoring", *barred)))
    revisions = await together(
        _judged(question, work, critic, scorer, task, score)
        for work, (critic, scorer) in zip(works, judges, strict=True)
    )
    await decide(question, [turn for turn in revisions if turn is not None], task)
    return answer


def chosen_works(
    solutions: Sequence[Turn],
    rng: random.Random,
    task: Task,
    pairs: int,
    negatives: str,
    balanced: bool,
) -> list[tuple[Turn, bool]]:
    """The works to be judged, each with whether it gives the majority's answer; none where there is
    no majority (`clear_majority`), or all readable answers are the same.
    """
    readable = [turn for turn in solutions if turn.info["answer"] is not None]
    best = clear_majority([turn.info["answer"] for turn in readable], task)
    if best is None:
        return []
    agreed = [turn for turn in readable if agrees(turn, best, task)]
    others = [turn for turn in readable if not agrees(turn, best, task)]
    if not others:
        return []
    if not balanced:
        drawn = rng.sample(readable, min(2 * pairs, len(readable)))
        return [(turn, agrees(turn, best, task)) for turn in drawn]
    if negatives == "rarest":
        groups = by_answer(others, task)
        fewest = min(map(len, groups))
        others = rng.choice([group for group in groups if len(group) == fewest])
    count = min(pairs, len(agreed), len(others))
    chosen = [(turn, True) for turn in rng.sample(agreed, count)]
    return chosen + [(turn, False) for turn in rng.sample(others, count)]


async def _judged(
    question: Question,
    work: Judged,
    critic: Agent | None,
    scorer: Agent,
    task: Task,
    score: Score,
) -> Turn | None:
    """Have work scored and, where there is a critic, criticised and revised: the revision."""
    solution, author, side = work
    shown = task.shown(question, solution.text)
    evaluation, scoring = await comas.judge(question, solution, shown, critic, scorer, task, score)
    scoring.info["side"] = side
    if evaluation is None:
        return None
    defused = defuse(shown)
    remark = words(WORDING, task, "remark", work=defused, evaluation=defuse(evaluation.text))
    facts = {"question": question.prompt, "own": defused, "history": remark}
    prompt = words(WORDING, task, "revision", **facts)
    return await author.ask("revision", prompt, about=evaluation)


def settle(
    episodes: Sequence[Episode],
    task: Task,
    *,
    gate: bool = True,
    judges_learn: bool = True,
    critics: Literal["mend", "lower"] = "mend",
) -> None:
    """Reward as above; `critics = "lower"` gives them 1 minus the score, as CoMAS does."""
    for episode in episodes:
        scorings = in_role(episode, "scoring")
        is_open = not gate or _is_open(scorings)
        for scoring in scorings if judges_learn else ():
            if is_open or scoring.info["score"] is None:  # which costs behind the gate too
                side = scoring.info["side"]
                scoring.reward = _scorers_reward(scoring, side)
                scoring.group = f"scoring {side}"
        if not is_open:
            continue
        turns = by_id(episode)
        solutions = in_role(episode, "solution")
        labels = {turn.id: label_of(turn, solutions, task) for turn in solutions}
        for turn in solutions:
            turn.reward = _worth(turn, labels[turn.id], task)
            turn.group = f"{episode.id}/{turn.policy}"
        for scoring in scorings:
            evaluation = turns[scoring.about or ""]
            if evaluation.role == "evaluation" and critics == "lower":
                score = scoring.info["score"]
                evaluation.reward = None if score is None else 1.0 - (score - 1) / 2
                evaluation.group = "evaluation"
        for revision in in_role(episode, "revision"):
            evaluation = turns[revision.about or ""]
            solution = turns[evaluation.about or ""]
            label = labels[solution.id]
            revision.reward = _worth(revision, label, task)
            revision.group = "revision"
            if critics == "mend" and label is not None:
                # what it has gained over the solution
                after = agrees(revision, label, task)
                evaluation.reward = float(after) - float(agrees(solution, label, task))
                evaluation.group = "evaluation"


def label_of(solution: Turn, solutions: Sequence[Turn], task: Task) -> str | None:
    """The clear majority of the answers without a solver's own, or without those of its policy
    where there are three policies or more; None where they have none.
    """
    policies = {turn.policy for turn in solutions}
    if len(policies) >= POLICIES:
        others = [turn for turn in solutions if turn.policy != solution.policy]
    else:
        others = [turn for turn in solutions if turn is not solution]
    return clear_majority([turn.info["answer"] for turn in others], task)


def _is_open(scorings: Sequence[Turn]) -> bool:
    """Whether the judges whose verdict can be read hold with the majority, or nobody has judged."""
    agreed = [turn for turn in scorings if turn.info["side"] and turn.info["score"] is not None]
    if not agreed:
        return True
    if "belief" not in agreed[0].info:
        accepted = [turn for turn in agreed if turn.info["score"] > 1]
        return len(accepted) > len(agreed) / 2
    rarest = mean([turn.info["belief"] for turn in scorings if not turn.info["side"]])
    for_majority = mean([turn.info["belief"] for turn in agreed])
    return rarest is None or for_majority is None or for_majority > rarest


def _worth(turn: Turn, label: str | None, task: Task) -> float | None:
    """1 for the label, 0 for another answer or none; None without a label."""
    return None if label is None else float(agrees(turn, label, task))


def _scorers_reward(scoring: Turn, side: bool) -> float:
    """The share of the scale that a scorer says of the majority's work, 1 minus that of the rarest
    other's; -1 for a score that cannot be read. Of an expected score the mark counts that it says.
    """
    mark = scoring.info.get("mark", scoring.info["score"])
    if mark is None:
        return -1.0
    share = (mark - 1) / 2
    return share if side else 1.0 - share


ROLES = {
    "solution": Role("answer", reward="1 for the answer of most others, 0 for any other"),
    "evaluation": Role(
        "judge", reward="1 if the revision after it mends the solution, -1 if it spoils it"
    ),
    "scoring": Role(
        "judge",
        reward="high scores for the majority's work, low ones for the rarest; -1 if unreadable",
    ),
    "revision": Role("answer", reward="1 for the answer of most others, 0 for any other"),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl=dict.fromkeys(ROLES, 0.1),
    roles=ROLES,
    presets={"stable": {"questions": 24}},
)
