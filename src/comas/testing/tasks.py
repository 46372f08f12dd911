"""The contract of tasks, for those who write one: `check_task`, which `comas.testing` offers.

A broken contract is an AssertionError that says which. Leaves out: the contracts of methods and
hosts (`testing`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from comas.game.prompts import FACTS, holes, meant_by
from comas.questions.checked import checked
from comas.types import Question, Task, UserMistake

HOLES = {
    "solution": {"question"},
    "history": {"work"},
    "history_bare": {"work"},
    "evaluation": {"question", "work"},
    "revision": {"question", "history"},
    "scoring": {"question", "work", "evaluation"},
    "scoring_bare": {"question", "work"},
    "verdict": {"question", "work"},
    "verdict_bare": {"question", "work"},
}
"""Role -> holes that its wording must have; `question history work evaluation own` are those that
there are.
"""

JUNK = (
    "",
    "no answer",
    "1" * 9999,
    "\x00<score>3</score>",
    "٣ + ² = Ⅷ",
    "\ud800",
    "{work} %s \\1",
    ";;;",
    "\n" * 50,
)
"""What an extractor has to survive."""

VERDICTS = ("right", "wrong", "failed")


def check_task(
    task: Task, names: Sequence[str] = ("train", "validation", "test"), **options: Any
) -> None:
    """The contract of a task: disjoint splits (those of `names`), stable loading, wording with its
    holes, functions that survive any text.
    """
    splits = {s: task.load(s, **options) for s in names}
    seen: set[str] = set()
    for name, questions in splits.items():
        try:
            checked(questions, task, name)
        except UserMistake as mistake:
            raise AssertionError(str(mistake)) from mistake
        ids = [q.id for q in questions]
        assert ids, f"split {name} is empty"
        for question in questions:
            _check_meta(question)
        assert not seen & set(ids), f"split {name} shares questions with another split"
        seen |= set(ids)
        first = task.load(name, limit=3, **options)
        assert [q.id for q in first] == ids[:3], "limit does not take the first"
    check_wording(task)
    for question in splits["test"][:20]:
        for text in (*JUNK, question.prompt, question.answer or ""):
            found = task.extract(question, text)
            readable = found is None or (isinstance(found, str) and task.same(found, found))
            assert readable, f"extract({text!r}) gave {found!r}"
            bare = dataclasses.replace(question, answer=None, meta={})  # what label-free games see
            assert task.extract(bare, text) == found, (
                f"extract({text!r}) looks at the answer or at meta"
            )
            if task.ballot is not None and found is not None:
                counted = task.ballot(bare, found)
                assert counted is None or task.same(counted, counted), (
                    f"ballot({found!r}) gave {counted!r}, which is not the same as itself"
                )
            verdict = task.verify(question, text)
            assert verdict in VERDICTS, "verify says right, wrong or failed"
            assert isinstance(task.shown(bare, text), str), "shown gives a text"
        assert task.verify(question, "") != "right", "an empty reply is right"
    _check_posing(task, splits)


RULED = 100
"""Questions of each split on which `check` has to agree with `verify`."""


def _check_posing(task: Task, splits: Mapping[str, Sequence[Question]]) -> None:
    """No held-out question can be posed, a posed one is what its text says, and `check` agrees with
    `verify`.
    """
    if task.pose is not None:
        for name in ("validation", "test"):
            for question in splits.get(name, ()):
                assert task.pose(question.prompt) is None, (
                    f"pose accepts {question.prompt!r}, which is held out ({name})"
                )
        for text in JUNK:
            posed = task.pose(text)
            assert posed == task.pose(text), f"pose({text!r}) gives another question each time"
        for question in splits.get("train", ())[:RULED]:
            posed = task.pose(question.prompt)
            assert posed is None or posed == task.pose(posed.prompt), (
                "a posed question, posed again, is another one: id and meta come from the text"
            )
    if task.check is None:
        return
    for questions in splits.values():
        for question in questions[:RULED]:
            bare = dataclasses.replace(question, answer=None, meta={})
            for text in (question.answer or "", question.prompt, *JUNK):
                ruled = task.check(bare, text)
                verdict = task.verify(question, text)
                assert ruled == verdict, (
                    f"check says {ruled} of {text!r}, and verify {verdict} ({question.id})"
                )


def _check_meta(question: Question) -> None:
    """Runs record their questions, and replays read them again."""
    try:
        json.dumps(dict(question.meta))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"question {question.id}: its meta is nothing that JSON can hold: {error}"
        ) from error


def _meaning(hole: str) -> str:
    """What is asked about a hole whose name is nearly that of a fact."""
    meant = meant_by(hole)
    return f"; did you mean {{{meant}}} by {{{hole}}}?" if meant else ""


def check_wording(task: Task) -> None:
    """Every template has the holes that its role needs, and none that nobody fills."""
    for role, template in task.wording.items():
        there = holes(template)
        unknown = sorted(there - set(FACTS))
        hint = "".join(map(_meaning, unknown))
        assert not unknown, f"wording {role!r} has holes that nobody fills: {unknown}{hint}"
        missing = HOLES.get(role, set()) - there
        assert not missing, f"wording {role!r} lacks {sorted(missing)}"
