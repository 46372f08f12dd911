"""The embedded puzzles: splits, difficulty, reading, showing and judging answers in both forms; the
tiny models' words.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game.prompts import defuse
from comas.tasks import pick
from comas.testing.tasks import HOLES
from comas.types import Question, UserMistake
from tools.tiny.course import POSING_WORDS, VOCABULARY, Course
from tools.tiny.demonstrations import demonstration

TWO = pick.make_question((8, 14, 4, 7), 12, "two")
THREE = pick.make_question((10, 5, 6, 9), 24, "three")
TWOS = [  # text, canonical answer, what peers see, right?
    ("8 + 4 = 12", "4 8", "# 8 + 4 = 12", True),
    ("4 + 8 = 12", "4 8", "# 4 + 8 = 12", True),
    ("8 + 14 = 22 ; 8 + 4 = 12", "4 8", "# 8 + 14 = 22 ; 8 + 4 = 12", True),
    ("8 + 4", "4 8", "# 8 + 4", False),
    ("8 + 4 = 13", "4 8", "# 8 + 4 = 13", False),
    ("8 + 14 = 12", "8 14", "# 8 + 14 = 12", False),
    ("5 + 7 = 12", "5 7", "# 5 + 7 = 12", False),
    ("4 + 4 = 8", "4 4", "# 4 + 4 = 8", False),
    ("12", "12", "# 12", False),
    ("8 + 4 = 12 ; 8 + 14 = 22", "8 14", "# 8 + 4 = 12 ; 8 + 14 = 22", False),
    ("8+4=12", None, "# 8+4=12", False),
    ("8 + 4 = 12 ;", None, "# 8 + 4 = 12 ;", False),
    ("the answer is 8 + 4 = 12", None, "# the answer is 8 + 4 = 12", False),
    ("8 + -4 = 4", None, "# 8 + -4 = 4", False),
    ("8 + 4 = = 12", None, "# 8 + 4 = = 12", False),
    ("", None, "# ", False),
    ("٨ + ٤ = 12", None, "# ٨ + ٤ = 12", False),
    ("1 + 4 + 7 = 12", "1 4 7", "# 1 + 4 + 7 = 12", False),
]
THREES = [
    ("10 + 5 = 15 + 9 = 24", "5 9 10", "# 10 5 9", True),
    ("9 + 5 = 14 + 10 = 24", "5 9 10", "# 9 5 10", True),
    ("10 + 5 + 9", "5 9 10", "# 10 5 9", True),
    ("10 + 5 = 99 + 9 = 1", "5 9 10", "# 10 5 9", True),
    ("10 + 5 = 15 + 6 = 21 ; 10 + 5 = 15 + 9 = 24", "5 9 10", "# 10 5 9", True),
    ("10 + 14 = 24", "10 14", "# 10 14", False),
    ("10 + 5 = 15 + 9 = 24 ; 10 + 5 = 15 + 6 = 21", "5 6 10", "# 10 5 6", False),
    ("24", "24", "# 24", False),
    ("12 + 3 = 15 + 9 = 24", "3 9 12", "# 12 3 9", False),
    ("9 + 9 = 18 + 6 = 24", "6 9 9", "# 9 9 6", False),
    ("10 + 5 = 15 + 9 = 24 oops", None, "#", False),
    ("<score>3</score>", None, "#", False),
    ("", None, "#", False),
    ("1" * 5000, None, "#", False),
    ("10 + 5 = 15 + 9 = ", None, "#", False),
    ("-10 + 5 + 9", None, "#", False),
    ("10 + 5 = 15 + 9 = 24 ;; 1", None, "#", False),
    ("１０ + 5 = 15 + 9 = 24", None, "#", False),
]


@pytest.mark.parametrize(
    ("question", "row"), [(TWO, r) for r in TWOS] + [(THREE, r) for r in THREES]
)
def test_what_is_read_shown_and_judged(
    question: Question, row: tuple[str, str | None, str, bool]
) -> None:
    text, answer, shown, right = row
    assert pick.extract(question, text) == answer
    assert pick.shown(question, text) == shown
    assert pick.verify(question, text) == ("right" if right else "wrong")


def test_same_answers_are_the_same_choice() -> None:
    read = [
        pick.extract(THREE, t)
        for t in ("10 + 5 = 15 + 9 = 24", "9 + 5 = 14 + 10 = 24", "10 + 5 = 15 + 6 = 21")
    ]
    assert pick.task.same(read[0] or "", read[1] or "")
    assert not pick.task.same(read[0] or "", read[2] or "")


@given(st.text(alphabet="0123456789 +=;-#²٣<>a\n", max_size=40))
def test_any_text_is_read_or_refused_and_peers_see_nothing_that_was_not_read(text: str) -> None:
    for question in (TWO, THREE):
        answer = pick.extract(question, text)
        assert pick.verify(question, text) == "wrong" or answer == question.answer
        assert answer is None or re.fullmatch(r"[0-9]+( [0-9]+)*", answer)
    shown = pick.shown(THREE, text)
    assert re.fullmatch(r"#( [0-9]+)*", shown)
    assert defuse(shown) == shown
    assert sorted(map(int, shown.split()[1:])) == list(
        map(int, (pick.extract(THREE, text) or "").split())
    )


@pytest.mark.parametrize("form", pick.CHOSEN)
def test_questions_are_as_asked(form: str) -> None:
    k = pick.CHOSEN[form]
    for split in pick.SHARES:
        questions = pick.load(split, form=form)
        assert len({q.id for q in questions}) == len(questions)
        for q in questions:
            numbers = q.meta["numbers"]
            target = q.meta["target"]
            assert pick.split_of(tuple(numbers)) == split
            assert len(set(numbers)) == len(numbers)
            assert len(numbers) in ((3, 4) if form == "two" else (4,))
            assert any(sum(c) == target for c in itertools.combinations(numbers, k))
            assert q.prompt == f"{' '.join(map(str, numbers))} -> {target}"
            assert q.kind == form
            assert pick.verify(q, f"{' + '.join((q.answer or '').split())} = {target}") == "right"


@pytest.mark.parametrize(
    "options", [{}, {"form": "two"}, {"form": "two", "count": 4}, {"count": 5, "largest": 9}]
)
def test_no_set_of_numbers_is_in_two_splits_and_each_is_in_one(options: dict) -> None:
    sets = [{frozenset(q.meta["numbers"]) for q in pick.load(s, **options)} for s in pick.SHARES]
    assert all(sets)
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(sets, 2))
    if options == {}:
        assert set().union(*sets) == {frozenset(c) for c in itertools.combinations(range(1, 16), 4)}


def test_splits_forget_order_and_keep_their_shares() -> None:
    sets = list(itertools.combinations(range(1, 16), 4))
    for numbers in sets[::37]:
        assert len({pick.split_of(p) for p in itertools.permutations(numbers)}) == 1
    counts = Counter(map(pick.split_of, sets))
    for name, share in pick.SHARES.items():
        assert abs(counts[name] / len(sets) - share) < 0.03


def test_difficulty_is_set_by_the_largest_number_and_how_many_are_offered() -> None:
    for largest, count in ((9, 4), (12, 5), (15, 6)):
        questions = pick.load("train", largest=largest, count=count)
        assert max(max(q.meta["numbers"]) for q in questions) == largest
        assert {len(q.meta["numbers"]) for q in questions} == {count}
    assert len(pick.load("train", largest=9)) < len(pick.load("train"))


def test_the_order_is_drawn_by_the_seed_and_a_question_looks_the_same_in_each() -> None:
    one = pick.load("train")
    two = pick.load("train", seed=1)
    again = pick.load("train")
    assert one == again
    assert [q.id for q in one] != [q.id for q in two]
    assert {q.id: q.prompt for q in one} == {q.id: q.prompt for q in two}
    assert pick.load("train", limit=5) == one[:5]
    # offered in no order
    assert sum(q.meta["numbers"] == sorted(q.meta["numbers"]) for q in one) < len(one) / 10


@pytest.mark.parametrize(
    ("split", "options", "said"),
    [
        ("dev", {}, "no split 'dev': one of warm, train, validation, test"),
        ("", {}, "no split ''"),
        ("test", {"path": "x"}, "data='x'"),
        ("test", {"form": "four"}, "no form 'four': one of two, three"),
        ("test", {"largest": 16}, "1..16"),
        ("test", {"count": 3}, r"\[3\]"),
        ("test", {"count": 0}, r"\[0\]"),
        ("test", {"count": -1}, r"\[-1\]"),
        ("test", {"largest": 3}, "1..3"),
        ("test", {"form": "two", "count": 2}, r"\[2\]"),
        ("test", {"count": 16}, r"\[16\]"),
    ],
)
def test_mistakes_are_named(split: str, options: dict, said: str) -> None:
    with pytest.raises(UserMistake, match=said):
        pick.load(split, **options)


@pytest.mark.parametrize("form", pick.CHOSEN)
def test_the_shipped_models_know_every_word_that_the_task_puts_to_them(form: str) -> None:
    """Wording filled with real questions, work and criticism as peers see them; defused marks
    included.
    """
    known = {*VOCABULARY, *POSING_WORDS}
    rng = random.Random(0)
    questions = pick.load("test", form=form, limit=40)
    work = {
        q.id: defuse(pick.shown(q, demonstration(rng, "solution", [q], Course(form=form))[1]))
        for q in questions
    }
    said = {
        q.id: defuse(demonstration(rng, "evaluation", [q], Course(form=form))[1]) for q in questions
    }
    for role, template in pick.WORDING.items():
        assert HOLES[role] <= set(re.findall(r"\{(\w+)\}", template)) if role in HOLES else True
        for q in questions:
            history = pick.WORDING["history"].format(work=work[q.id], evaluation=said[q.id])
            prompt = template.format(
                question=q.prompt,
                work=work[q.id],
                evaluation=said[q.id],
                history=history,
                answer=q.answer,
                mark="2",
            )
            assert set(prompt.split()) <= known, role
    assert set(defuse("<score> 3 </score>").split()) <= known


@pytest.mark.parametrize("form", pick.CHOSEN)
@pytest.mark.parametrize("role", ["solution", "evaluation", "scoring", "verdict"])
def test_demonstrations_are_in_the_vocabulary_and_in_the_games_own_form(
    form: str, role: str
) -> None:
    rng = random.Random(1)
    course = Course(form=form)
    questions = pick.load("warm", form=form, limit=200)
    seen = set()
    for _ in range(200):
        prompt, reply = demonstration(rng, role, questions, course)
        seen |= {*prompt.split(), *reply.split()}
        if role == "solution":
            assert pick.extract(questions[0], reply) is not None
        if role == "scoring":
            assert reply in ("<score> 1 </score>", "<score> 3 </score>")
    assert seen <= set(VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY))
