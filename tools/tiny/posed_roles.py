"""Measure the roles of tiny models that pose puzzles, judge in one reply or spoil right work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from comas.game.agent import TeamMember
from comas.methods.comas import read_score
from comas.stats import Interval, wilson
from comas.tasks import pick
from comas.types import Question, Turn
from tools.tiny.exercises import (
    ask_all,
    ask_each,
    puzzles_to_judge,
    work_to_judge,
    work_to_spoil,
)
from tools.tiny.posing import is_solvable
from tools.tiny.wording import prompt_of

Rows = dict[str, Interval]
"""What was measured -> the share."""


def share(outcomes: Iterable[bool]) -> Interval:
    """The share of true outcomes."""
    counted = list(outcomes)
    return wilson(sum(counted), len(counted))


def by_fault(exercises: Sequence[Question], accepted: Sequence[bool], role: str) -> Rows:
    """Per fault class the share of work that a judge accepts."""
    outcomes = defaultdict(list)
    for exercise, outcome in zip(exercises, accepted, strict=True):
        fault = exercise.meta["fault"]
        outcomes[fault].append(outcome)
    return {f"{role} accepts work with fault `{k}`": share(v) for k, v in sorted(outcomes.items())}


async def judging(member: TeamMember, count: int) -> Rows:
    """A check and a score in one reply, about held-out work; what cannot be read is not right."""
    exercises = work_to_judge("three", count)
    prompts = [prompt_of("judging", question=e.prompt, work=e.meta["work"]) for e in exercises]
    right = []
    accepted = []
    turns = await ask_each(member, "judging", prompts)
    for exercise, turn in zip(exercises, turns, strict=True):
        score = read_score(turn)
        honest = 3 if exercise.meta["right"] else 1
        right.append(score == honest)
        accepted.append(score == 3)
    rows = {"checks: score in one reply with its check, right in, T 1.0": share(right)}
    return rows | by_fault(exercises, accepted, "score in one reply")


async def rating(member: TeamMember, count: int) -> Rows:
    """Whether puzzles of held-out numbers can be solved, by score and by yes or no."""
    rows = await _puzzles_judged(member, "rating", "score", count)
    return rows | await _puzzles_judged(member, "assess", "yes or no", count)


async def _puzzles_judged(member: TeamMember, role: str, name: str, count: int) -> Rows:
    puzzles = puzzles_to_judge(count)
    prompts = [prompt_of(role, question=text) for text, _ in puzzles]
    right = []
    accepted = {True: [], False: []}
    turns = await ask_each(member, role, prompts)
    for (_, solvable), turn in zip(puzzles, turns, strict=True):
        verdict = says_solvable(turn)
        right.append(verdict is solvable)
        accepted[solvable].append(verdict is True)
    return {
        f"judges puzzles: {name}, right in, T 1.0": share(right),
        f"{name} accepts puzzles that can be solved": share(accepted[True]),
        f"{name} accepts puzzles that cannot be solved": share(accepted[False]),
    }


def says_solvable(turn: Turn) -> bool | None:
    """What a judge of a puzzle says; None where it cannot be read."""
    if turn.role == "rating":
        return {3: True, 1: False}.get(read_score(turn) or 0)
    if not turn.finished:
        return None
    last = turn.text.rpartition(" ")[2]
    return {"yes": True, "no": False}.get(last)


async def proposing(member: TeamMember, count: int) -> Rows:
    """Puzzles that are proposed from nothing, and with one of the `train` split in view."""
    bare = prompt_of("propose", history="")
    [from_nothing] = await ask_all(member, "propose", [bare], count)
    in_view = pick.load("train", limit=count, seed=8)
    prompts = [prompt_of("evolve", question=q.prompt) for q in in_view]
    changed = await ask_each(member, "evolve", prompts)
    rows = _proposals(from_nothing, "proposes from nothing")
    rows |= _proposals(changed, "proposes with one in view")
    another = []
    related = []
    for before, turn in zip(in_view, changed, strict=True):
        after = _posed(turn)
        if after is not None:
            common = set(before.meta["numbers"]) & set(after.meta["numbers"])
            another.append(after.prompt != before.prompt)
            related.append(len(common) >= 3)
    rows["of these, another puzzle than that in view"] = share(another)
    rows["of these, with three or four of its numbers"] = share(related)
    return rows


def _posed(turn: Turn) -> Question | None:
    return pick.pose(turn.text) if turn.finished else None


def _proposals(turns: Sequence[Turn], name: str) -> Rows:
    in_form = [turn.finished and pick.read_proposal(turn.text) is not None for turn in turns]
    posed = [question for turn in turns if (question := _posed(turn)) is not None]
    solvable = [is_solvable(q.meta["numbers"], q.meta["target"]) for q in posed]
    return {
        f"{name}: keeps to the form, T 1.0": share(in_form),
        f"{name}: `pose` accepts (no held-out numbers)": wilson(len(posed), len(turns)),
        f"{name}: of those accepted, can be solved": share(solvable),
        f"{name}: of those accepted, the first like it": share(_first_alike(posed)),
    }


def _first_alike(posed: Sequence[Question]) -> list[bool]:
    """For each puzzle whether nobody posed one of the same numbers and target before."""
    seen = set()
    outcomes = []
    for question in posed:
        key = (frozenset(question.meta["numbers"]), question.meta["target"])
        outcomes.append(key not in seen)
        seen.add(key)
    return outcomes


async def spoiling(member: TeamMember, count: int) -> Rows:
    """Right work rewritten, and what the model's own evaluation says of what became wrong."""
    exercises = work_to_spoil(count)
    prompts = [prompt_of("sabotage", question=q.prompt, work=text) for q, text in exercises]
    readable = []
    spoilt = []
    turns = await ask_each(member, "sabotage", prompts)
    for (question, _), turn in zip(exercises, turns, strict=True):
        can_be_read = turn.finished and pick.extract(question, turn.text) is not None
        readable.append(can_be_read)
        if can_be_read and pick.check(question, turn.text) == "wrong":
            shown = pick.shown(question, turn.text)
            spoilt.append(prompt_of("evaluation", question=question.prompt, work=shown))
    evaluations = await ask_each(member, "evaluation", spoilt)
    return {
        "spoils right work: readable, T 1.0": share(readable),
        "spoils right work: really wrong": wilson(len(spoilt), len(exercises)),
        "its own evaluation catches what is really wrong": share(
            turn.text.endswith("wrong") for turn in evaluations
        ),
    }
