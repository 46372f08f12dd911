"""Lessons in posing, judging in one reply and spoiling: well-formed by the rules of the task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game.agent import TeamMember
from comas.hosts.local import make_local_host
from comas.methods.comas import read_score
from comas.models.sources import shipped_models
from comas.tasks import pick
from comas.team.build import run_sync
from comas.types import COMMON_KINDS, Question, Sampling, Turn
from tools.tiny import teach
from tools.tiny.course import Course
from tools.tiny.demonstrations import demonstration
from tools.tiny.exercises import (
    ask_each,
    puzzles_to_judge,
    work_to_judge,
    work_to_spoil,
)
from tools.tiny.measure import measure_folders
from tools.tiny.posed_roles import says_solvable
from tools.tiny.posing import is_solvable, solvability, unreachable
from tools.tiny.voting import pass_at
from tools.tiny.wording import prompt_of
from tools.tiny.work import check_carelessly, is_right, solve

MODELS = shipped_models()["tiny"].parent
POSE = teach.COURSES["tiny-pose"]
CRITIC = teach.COURSES["tiny-critic"]
VOTERS = [course for name, course in teach.COURSES.items() if name.startswith("tiny-vote")]
WARM = pick.load("warm", form="three")


def demonstrations(role: str, course: Course = POSE, count: int = 1000) -> list[tuple[str, str]]:
    rng = random.Random(role)
    return [demonstration(rng, role, WARM, course) for _ in range(count)]


def puzzle(text: str) -> Question:
    posed = pick.pose(text.strip())
    assert posed is not None
    return posed


def share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def turn(role: str, text: str) -> Turn:
    return Turn(
        "t",
        "a",
        "home/a",
        role,
        "",
        text,
        finished=True,
        version=0,
        kind=COMMON_KINDS.get(role, "other"),
    )


def test_proposals_are_posed_and_six_in_ten_can_be_solved() -> None:
    posed = []
    for prompt, reply in demonstrations("propose"):
        attempt, _, text = reply.rpartition(" ; ")
        assert pick.pose(reply) == pick.pose(text)
        posed.append(puzzle(reply))
        assert pick.split_of(tuple(posed[-1].meta["numbers"])) == "warm"
        sum_of_attempt = int(attempt.split()[-1])
        reached = sum_of_attempt == posed[-1].meta["target"]
        assert reached == is_solvable(posed[-1].meta["numbers"], posed[-1].meta["target"])
        assert set(prompt.split()) <= {*POSE.vocabulary}
    solvable = [is_solvable(q.meta["numbers"], q.meta["target"]) for q in posed]
    assert 0.50 < share(solvable) < 0.60
    assert len({q.id for q in posed}) > 900


def test_a_puzzle_in_view_is_changed_and_stays_in_the_lessons_numbers() -> None:
    changed = []
    for prompt, reply in demonstrations("propose"):
        in_view = [puzzle(text) for text in prompt.split("peers")[1:]]
        for question in in_view:
            assert pick.split_of(tuple(question.meta["numbers"])) == "warm"
        if in_view:
            before = set(in_view[-1].meta["numbers"])
            after = set(puzzle(reply).meta["numbers"])
            assert len(before & after) >= 3
            changed.append(in_view[-1].prompt != puzzle(reply).prompt)
    assert 550 < len(changed) < 650
    assert share(changed) > 0.95


@pytest.mark.parametrize("role", ["rating", "assess"])
def test_judges_of_puzzles_write_the_check_and_are_honest_but_for_slips(role: str) -> None:
    honest = []
    for prompt, reply in demonstrations(role):
        question = puzzle(prompt.partition(" ")[2])
        solvable = is_solvable(question.meta["numbers"], question.meta["target"])
        check, found = solvability(question.meta["numbers"], question.meta["target"])
        assert found is solvable
        assert reply.startswith(check)
        honest.append(says_solvable(turn(role, reply)) is solvable)
    assert 0.955 < share(honest) < 0.985


@given(st.integers(0, len(WARM) - 1), st.integers(0, 2**32))
def test_what_is_called_unreachable_is(index: int, seed: int) -> None:
    numbers = WARM[index].meta["numbers"]
    target = unreachable(random.Random(seed), numbers, near=WARM[index].meta["target"])
    assert not is_solvable(numbers, target)
    assert 3 <= target <= 60


def test_the_check_of_a_puzzle_is_true() -> None:
    for question in WARM[:300]:
        numbers = question.meta["numbers"]
        check, solvable = solvability(numbers, question.meta["target"])
        assert solvable
        total, last = check.split(" ; ")
        assert total.split()[-1] == str(sum(numbers))
        target, _, left_out, *_ = last.split()
        assert int(target) + int(left_out) == sum(numbers)
    assert solvability([1, 2, 3, 4], 10) == ("1 + 2 = 3 + 3 = 6 + 4 = 10 ; 10 out", False)


def test_work_to_spoil_is_right_and_half_of_it_is_spoilt() -> None:
    wrong = []
    for prompt, reply in demonstrations("sabotage"):
        words = prompt.split()
        question = puzzle(" ".join(words[1:7]))
        given_work = " ".join(words[7:])
        before = " + ".join(given_work[2:].split()) if given_work[0] == "#" else given_work
        assert pick.check(question, before) == "right"
        assert pick.extract(question, reply) is not None
        assert reply != before
        wrong.append(pick.check(question, reply) == "wrong")
    assert 0.50 < share(wrong) < 0.60


@pytest.mark.parametrize(("course", "low", "high"), [(POSE, 0.955, 0.985), (CRITIC, 0.68, 0.76)])
@pytest.mark.parametrize("role", ["evaluation", "judging"])
def test_judges_are_as_honest_as_their_course(
    course: Course, low: float, high: float, role: str
) -> None:
    honest: dict[bool, list[bool]] = {True: [], False: []}
    for prompt, reply in demonstrations(role, course, 2000):
        text, _, work = prompt.partition(" ")[2].partition(" #")
        right = pick.check(puzzle(text), " + ".join(work.split())) == "right"
        check = reply
        if role == "judging":
            check = reply.partition(" <score>")[0]
            assert read_score(turn(role, reply)) == (3 if check.endswith("right") else 1)
        honest[right].append(check.endswith("right") == right)
    for outcomes in honest.values():
        assert low < share(outcomes) < high


def test_a_careless_check_bears_out_its_verdict() -> None:
    rng = random.Random(5)
    for exercise in work_to_judge("three", 400):
        chosen = [int(n) for n in exercise.meta["work"].split()[1:]]
        words = check_carelessly(rng, exercise, chosen).split()
        assert (words[-1] == "right") != is_right(exercise, chosen)
        faults = [word for word in words if word in ("out", "again")]
        if words[-1] == "right":
            assert not faults
            assert len(chosen) == 1 or words[-2] == str(exercise.meta["target"])
        else:
            assert faults or words[-2] != str(exercise.meta["target"])


def test_voters_list_in_orders_of_their_own() -> None:
    rng = random.Random(6)
    question = pick.make_question((10, 5, 6, 9), 24, "three")
    firsts = {pick.extract(question, solve(rng, question, c).split(" ; ")[0]) for c in VOTERS}
    assert len(firsts) == 4


def test_voters_stop_more_often_at_a_try_that_fits() -> None:
    rng = random.Random(7)
    for course in VOTERS:
        right = [
            pick.verify(q, solve(rng, q, course)) == "right" for q in rng.choices(WARM, k=1500)
        ]
        assert 0.38 < share(right) < 0.45


def test_four_voters_know_more_together_than_one_with_as_many_votes() -> None:
    folders = [MODELS / f"tiny-vote-{i}" for i in range(4)]
    rows = measure_folders(folders, VOTERS[0], 32)
    own = rows["majority of 32 of its own answers"]
    together = rows["majority of 4 models together, 8 answers each"]
    assert rows["single answers, T 1.0"].mean < own.mean
    assert own.mean + 0.15 < together.mean
    assert rows["pass@16"].mean > 0.95


def test_pass_at_k_is_that_of_draws_without_replacement() -> None:
    assert pass_at(32, 0, 16) == 0
    assert pass_at(32, 17, 16) == 1
    assert pass_at(4, 1, 2) == pytest.approx(0.5)


def test_exercises_are_held_out_and_half_of_each_kind() -> None:
    puzzles = puzzles_to_judge(100)
    assert sum(solvable for _, solvable in puzzles) == 50
    for text, solvable in puzzles:
        assert pick.pose(text) is None
        numbers, target = pick.read_proposal(text) or ([], 0)
        assert is_solvable(numbers, target) is solvable
    for question, work in work_to_spoil(100):
        assert pick.pose(question.prompt) is None
        assert pick.verify(question, work) == "right"


PROMPTS = {
    "solution": [prompt_of("solution", question=q.prompt, history="") for q in WARM[:24]],
    "propose": [prompt_of("propose", history="")] * 24,
    "evolve": [prompt_of("evolve", question=q.prompt) for q in WARM[:24]],
    "rating": [prompt_of("rating", question=q.prompt) for q in WARM[:24]],
    "assess": [prompt_of("assess", question=q.prompt) for q in WARM[:24]],
    "sabotage": [
        prompt_of("sabotage", question=q.prompt, work=work) for q, work in work_to_spoil(24)
    ],
} | {
    role: [
        prompt_of(role, question=q.prompt, work=q.meta["work"]) for q in work_to_judge("three", 24)
    ]
    for role in ("evaluation", "judging")
}


def readable(role: str, reply: Turn) -> bool:
    if role in ("propose", "evolve"):
        return pick.read_proposal(reply.text) is not None
    if role in ("rating", "assess"):
        return says_solvable(reply) is not None
    if role == "judging":
        return read_score(reply) is not None
    if role == "evaluation":
        return reply.text.split()[-1] in ("right", "wrong")
    return pick.extract(WARM[0], reply.text) is not None


PUZZLERS = [name for name, course in teach.COURSES.items() if course.world is None]


@pytest.mark.parametrize("name", PUZZLERS)
def test_shipped_models_speak_their_roles(name: str) -> None:
    batch = teach.COURSES[name].batch
    roles = {*batch, "evolve"} if "propose" in batch else set(batch)
    with closing(make_local_host(name, {"model": str(MODELS / name)})) as host:
        member = TeamMember(name, host, "model", sampling=Sampling(1.0, 1.0, 64))
        for role in sorted(roles & PROMPTS.keys()):
            replies = run_sync(ask_each(member, role, PROMPTS[role]))
            assert share([r.finished and readable(role, r) for r in replies]) > 0.6, role
