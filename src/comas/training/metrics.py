"""Metrics of a step, computed from its episodes and what hosts learnt from them: functions of a
`StepRecord`, each called as it stands in metrics.jsonl.

What is None is left out. Those that ask for labels (`pay`, `judges`) are for reports only, no
method sees them, and are made where the task says that its verifier is `quick`. Leaves
out: accuracy (`evaluation`), what a step's tokens cost (`hosts`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from comas.game.cost import cost as cost_of
from comas.game.cost import tally
from comas.game.judgements import accepts, is_work, unreadable, work_judged
from comas.game.votes import alike
from comas.game.weighing import is_sampled
from comas.objective.rewards import earned
from comas.objective.spread import is_flat
from comas.seams import TIE
from comas.stats import auc
from comas.training.record import StepRecord as StepRecord
from comas.types import Task, Turn

Metric = Callable[[StepRecord], Any]
Key = TypeVar("Key")
Value = TypeVar("Value")
Figures = dict[str, float]
"""Name -> value, of those that are known."""


def summarise(step: StepRecord, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """The line of a step: its tokens, the metrics, and of each policy (`host/policy`) what its
    update came to.
    """
    line: dict[str, Any] = {"step_tokens": sum(turn.tokens for turn in step.all_turns)}
    for name, metric in metrics.items():
        value = metric(step)
        if value is not None:
            line[name] = value
    line["policies"] = {
        f"{host}/{policy}": statistics
        for host, learned in step.learned.items()
        for policy, statistics in learned.policies.items()
    }
    return line


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Key -> its values, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)


def mean_by_role(turns: Sequence[Turn], value: Callable[[Turn], Any]) -> dict[str, float]:
    """Role -> mean over its turns of `value(turn)`."""
    values = grouped((turn.role, value(turn)) for turn in turns)
    return {role: mean(values[role]) for role in sorted(values)}


# --- of all turns


def rewards(step: StepRecord) -> dict[str, float]:
    """Role -> mean reward of its rewarded turns."""
    return mean_by_role(step.rewarded, lambda turn: turn.reward)


def kl(step: StepRecord) -> dict[str, float]:
    """Role -> mean KL to the policy at the start of the run: over its rewarded turns of the mean
    log-ratio of their tokens, in nats.
    """
    with_kl = [turn for turn in step.rewarded if "kl" in turn.info]
    return mean_by_role(with_kl, lambda turn: turn.info["kl"])


def lengths(step: StepRecord) -> dict[str, float]:
    """Role -> mean number of generated tokens."""
    return mean_by_role(step.turns, lambda turn: turn.tokens)


def cost(step: StepRecord) -> list[dict[str, Any]]:
    """Tokens and seconds of waiting per agent, role and round (`game.cost`), failed discussions
    included: they have been computed.
    """
    return cost_of(step.all_turns)


def counts(step: StepRecord) -> dict[str, int | None]:
    """Discussions, turns, rewarded ones, failed discussions, cut replies, dropped pieces of
    history, near-ties; None of those where no host measures how near a draw came (a margin is 1
    then).
    """
    measured = not step.turns or any(turn.margin < 1 for turn in step.turns)
    near_ties = sum(turn.margin < TIE for turn in step.turns)
    return {
        "discussions": len(step.episodes),
        "turns": len(step.turns),
        "paid": len(step.rewarded),
        "failed": sum(episode.error is not None for episode in step.episodes),
        "unfinished": sum(not turn.finished for turn in step.turns),
        "dropped": sum(turn.dropped for turn in step.turns),
        "near_ties": near_ties if measured else None,
    }


def replies(step: StepRecord) -> list[dict[str, Any]]:
    """Per agent and role how many replies there were, how many were rewarded, cut for want of
    tokens, and unreadable (None: the game does not say); why is reported by
    `training.learning_signal`.
    """
    return tally(
        (
            {"agent": turn.agent, "role": turn.role},
            {
                "turns": 1,
                "paid": turn.reward is not None,
                "cut": not turn.finished,
                "unreadable": unreadable(turn.info),
            },
        )
        for turn in step.turns
    )


def signal(step: StepRecord) -> dict[str, dict[str, float]]:
    """Measure what there is to learn from: whether rewards that are compared differ
    (`signal_in`).
    """
    return signal_in(step.rewarded)


def signal_in(rewarded: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Role -> the number of groups whose rewards are compared (`groups`), of those in which all are
    equal but for rounding (`flat`), and the standard deviation of all its rewards (`spread`).
    Without a group of its own, a turn is compared with its policy's others.
    """
    of_roles: dict[str, dict[str, float]] = {}
    for role, turns in sorted(grouped((turn.role, turn) for turn in rewarded).items()):
        groups = grouped(((turn.policy, turn.group), turn.reward or 0.0) for turn in turns)
        compared = groups.values()
        flat = sum(map(is_flat, compared))
        spread = statistics.pstdev([reward for group in compared for reward in group])
        of_roles[role] = {"groups": len(groups), "flat": flat, "spread": spread}
    return of_roles


def facts(step: StepRecord) -> dict[str, dict[str, float]]:
    """Role -> the means of the numbers (truth counts as 0 and 1) that games and settlements noted
    in `Turn.info`; not of what the loop notes, which other metrics average.
    """
    noted: dict[str, dict[str, list[float]]] = {}
    for turn in step.turns:
        for name, value in turn.info.items():
            is_number = isinstance(value, Real | np.bool_) and _is_finite(value)
            if is_number and name not in ("advantage", "kl"):
                noted.setdefault(turn.role, {}).setdefault(name, []).append(float(value))
    return {
        role: {name: mean(values) for name, values in sorted(named.items())}
        for role, named in sorted(noted.items())
    }


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number beyond what a float can hold
        return False


def tools(step: StepRecord) -> list[dict[str, Any]] | None:
    """How dialogues called tools: per role and tool `calls`, `per_dialogue`, how many `failed` and
    were `cut`, and `seconds` of all calls together; None where nobody called any.
    """
    talking = [turn for turn in step.turns if "dialogue" in turn.info]
    dialogues = grouped((turn.role, turn.info["dialogue"]) for turn in talking)
    calls = [(turn.role, turn.info["call"]) for turn in talking if "call" in turn.info]
    rows = tally(
        (
            {"role": role, "tool": call["tool"]},
            {
                "calls": 1,
                "per_dialogue": None,
                "failed": call["failed"] is not None,
                "cut": call["cut"] > 0,
                "seconds": call["seconds"],
            },
        )
        for role, call in calls
    )
    for row in rows:
        row["per_dialogue"] = row["calls"] / len(set(dialogues[row["role"]]))
    return rows or None


# --- of answers and questions


def variety(step: StepRecord) -> Figures | None:
    """How varied the work of a step is: nothing can be learnt by comparing works that are one.

    `entropy` is the mean entropy per sampled token of the policies that learn, in nats: that of the
    engine's own distribution at the agent's temperature, estimated without bias by the mean of
    -log p over the tokens that were drawn. Of `questions` that were answered more than once in the
    step: the mean numbers of `answers` to each and of `distinct` readable ones among them, as the
    task tells answers apart, or else as texts. Later rounds and revisions are left out of these,
    since they have seen others. None of what is not known.
    """
    solutions = [turn for turn in step.answers if turn.round == 0 and is_work(turn)]
    by_question = grouped((step.questions[t.id].id, t) for t in solutions if t.id in step.questions)
    several = [turns for turns in by_question.values() if len(turns) > 1]
    figures: Figures = {}
    if several:
        figures["questions"] = len(several)
        figures["answers"] = mean([len(turns) for turns in several])
        answers = [[_answer(turn, step) for turn in turns] for turns in several]
        figures["distinct"] = mean([len(alike(of_question, step.task)) for of_question in answers])
    learning = {f"{host}/{policy}" for host, one in step.learned.items() for policy in one.policies}
    sampled = [turn for turn in step.turns if turn.policy in learning and is_sampled(turn)]
    if tokens := sum(turn.tokens for turn in sampled):
        figures["entropy"] = -math.fsum(turn.logprob for turn in sampled) / tokens
    return figures or None


def _answer(turn: Turn, step: StepRecord) -> str | None:
    noted = turn.info.get("answer")
    if isinstance(noted, str):
        return noted
    if "answer" in turn.info or not turn.finished:
        return None
    if not callable(step.task.extract):
        return turn.text
    return step.task.extract(step.questions[turn.id], turn.text)


def posed(step: StepRecord) -> Figures | None:
    """Describe the questions that agents posed. Of proposals (`n`: turns whose game notes
    `info["posed"]`, a text, or None where it was no question) the share that are questions
    (`valid`); of these the share of different ones (`distinct`); and of those that were answered
    the share with a right answer among them (`solvable`: others may be, and nobody has found out)
    and with .3 to .8 of right answers (`frontier`), by the task's rules where its verifier is
    `quick`. None where there is no proposal.
    """
    noted = [turn for turn in step.turns if "posed" in turn.info]
    proposed = {t.id: t.info["posed"] for t in noted if isinstance(t.info["posed"], str | None)}
    if not proposed:
        return None
    texts = [text for text in proposed.values() if text is not None]
    figures: Figures = {"n": len(proposed), "valid": len(texts) / len(proposed)}
    if texts:
        figures["distinct"] = len(set(texts)) / len(texts)
    if step.task.quick and step.task.check is not None:
        about = {turn.id: turn.about for turn in step.turns}
        solutions = [turn for turn in step.answers if turn.id in step.labels]
        answering = {t.id: about.get(t.info.get("dialogue", t.id)) for t in solutions}
        outcomes = grouped((answering[turn.id], step.labels[turn.id]) for turn in solutions)
        shares = [mean(right) for asked, right in outcomes.items() if asked in proposed]
        if shares:
            figures["solvable"] = mean([share > 0 for share in shares])
            figures["frontier"] = mean([at_frontier(share) for share in shares])
    return figures


def at_frontier(share: float) -> bool:
    """Whether a question with this share of right answers is one from which there is most to learn:
    neither too easy nor too hard.
    """
    return 0.3 <= share <= 0.8


# --- rewards and judges, against labels

PAID = 0.5
"""Worth from which a solution counts as rewarded: shipped methods reward from 0 to 1, or compare
what they would give so.
"""


def pay(step: StepRecord) -> dict[str, float | int | None]:
    """Whether rewards went to right answers. Over rewarded solutions whose verdict is known (`n`):
    the share that is right (`accuracy`), the share of right ones among those that were worth at
    least 0.5 (`precision`), the share of right ones that got it (`recall`), and how likely right
    ones are rewarded more than wrong ones (`auc`); None of none.
    """
    solutions = [
        turn for turn in step.answers if turn.reward is not None and turn.id in step.labels
    ]
    pairs = [(earned(turn) >= PAID, step.labels[turn.id]) for turn in solutions]

    def share(values: list[bool]) -> float | None:
        return mean(values) if values else None

    return {
        "n": len(pairs),
        "accuracy": share([right for _, right in pairs]),
        "precision": share([right for is_rewarded, right in pairs if is_rewarded]),
        "recall": share([is_rewarded for is_rewarded, right in pairs if right]),
        "auc": auc([(turn.reward or 0.0, step.labels[turn.id]) for turn in solutions]),
    }


def acceptance(step: StepRecord) -> list[dict[str, Any]] | None:
    """Who accepts whose work: a row per role, judge and author, of how many judgements that can be
    read (`n`) of work of this author, of which `accepted`; and of right and of wrong work, where
    labels are to be had, how many (`right`, `wrong`), of which accepted (`accepted_right`,
    `accepted_wrong`). A team whose members spare each other shows here.
    """
    labels = step.labels if step.task.quick else {}
    judged = [(turn, work, accepts(turn)) for turn, work in _judgements(step)]
    rows = tally(
        (
            {"role": turn.role, "judge": turn.agent, "author": work.agent},
            {
                "n": 1,
                "accepted": accepted,
                "right": labels.get(work.id) is True,
                "accepted_right": accepted and labels.get(work.id) is True,
                "wrong": labels.get(work.id) is False,
                "accepted_wrong": accepted and labels.get(work.id) is False,
            },
        )
        for turn, work, accepted in judged
        if accepted is not None
    )
    return rows or None


def judges(step: StepRecord) -> dict[str, Figures] | None:
    """Role -> whether its judgements that can be read, of work whose label is known, tell right
    from wrong: `balanced`, and of judges whose score is expected the area under the curve (`auc`),
    which no threshold moves. Judgements of questions (`rating`, `assess`) are left out, and
    evaluations that no program reads, such as those of comas, whose scores are counted.
    """
    labelled = [
        (t, step.labels[work.id]) for t, work in _judgements(step) if work.id in step.labels
    ]
    verdicts = grouped(
        (turn.role, (accepted, right))
        for turn, right in labelled
        if (accepted := accepts(turn)) is not None
    )
    beliefs = grouped(
        (turn.role, (turn.info["belief"], right))
        for turn, right in labelled
        if turn.info.get("belief") is not None
    )
    figures = {role: balanced(verdicts[role]) for role in sorted(verdicts)}
    for role, pairs in beliefs.items():
        area = auc(pairs)
        if area is not None:
            figures[role]["auc"] = area
    return figures or None


def _judgements(step: StepRecord) -> Iterator[tuple[Turn, Turn]]:
    """Each turn of a judge, and the work that it is about."""
    turns = {turn.id: turn for turn in step.turns}
    for turn in step.turns:
        work = work_judged(turn, turns) if turn.kind == "judge" else None
        if work is not None:
            yield turn, work


def balanced(judgements: Sequence[tuple[bool, bool]]) -> Figures:
    """Count judgements (`n`: whether the work was accepted, and whether it is right), and return
    the shares of right and of wrong work that are accepted, and `balanced`: the mean of the shares
    of either kind that are judged rightly, .5 being chance.

    What would be a mean of nothing is left out.
    """
    figures: Figures = {"n": len(judgements)}
    of_right = [accepted for accepted, right in judgements if right]
    of_wrong = [accepted for accepted, right in judgements if not right]
    if of_right:
        figures["accepts_right"] = mean(of_right)
    if of_wrong:
        figures["accepts_wrong"] = mean(of_wrong)
    if of_right and of_wrong:
        rejects_wrong = 1.0 - figures["accepts_wrong"]
        figures["balanced"] = (figures["accepts_right"] + rejects_wrong) / 2
    return figures


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        *(rewards, kl, lengths, cost, counts, replies, signal, facts),
        *(acceptance, variety, posed, tools, pay, judges),
    )
}
"""All metrics, by name."""
LABELLED = ("pay", "judges")
"""Metrics that ask the task's verifier about every piece of work."""


def metrics_of(task: Task) -> dict[str, Metric]:
    """Name in metrics.jsonl -> function; those that ask for labels only where the task's verifier
    is quick.
    """
    return {name: metric for name, metric in METRICS.items() if task.quick or name not in LABELLED}
