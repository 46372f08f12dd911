"""The contract of tasks, for those who write one: `check_task`, which `comas.testing` offers.

A broken contract is an AssertionError that says which. Leaves out: the contracts of methods and
hosts (`testing`).
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from comas.game.prompts import FACTS, holes, meant_by
from comas.questions.checked import checked
from comas.testing.methods import contract
from comas.types import Question, Task, Verdict

HOLES = {
    "solution": {"question"},
    "history": {"work"},
    "history_bare": {"work"},
    "remark": {"evaluation"},
    "evaluation": {"question", "work"},
    "revision": {"question", "history"},
    "scoring": {"question", "work", "evaluation"},
    "scoring_bare": {"question", "work"},
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
"""Texts that an extractor has to survive."""

VERDICTS = get_args(Verdict)


def check_task(
    task: Task, names: Sequence[str] = ("train", "validation", "test"), **options: Any
) -> None:
    """The contract of a task: disjoint splits (those of `names`), stable loading, wording with its
    holes, functions that survive any text.
    """
    splits = {s: task.load(s, **options) for s in names}
    seen: set[str] = set()
    for name, questions in splits.items():
        with contract():
            checked(questions, task, name)
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
            answer = task.extract(question, text)
            readable = answer is None or (isinstance(answer, str) and task.same(answer, answer))
            assert readable, f"extract({text!r}) gave {answer!r}"
            bare = dataclasses.replace(question, answer=None, meta={})  # what label-free games see
            assert task.extract(bare, text) == answer, (
                f"extract({text!r}) looks at the answer or at meta"
            )
            if task.ballot is not None and answer is not None:
                counted = task.ballot(bare, answer)
                assert counted is None or task.same(counted, counted), (
                    f"ballot({answer!r}) gave {counted!r}, which is not the same as itself"
                )
            verdict = task.verify(question, text)
            assert verdict in VERDICTS, "verify says right, wrong or failed"
            assert isinstance(task.shown(bare, text), str), "shown gives a text"
        assert task.verify(question, "") != "right", "an empty reply is right"
    _check_posing(task, splits)
    _check_rephrasing(task, splits)


RULED = 100
"""Questions of each split on which `check` has to agree with `verify`, and that are rephrased."""


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


def _check_rephrasing(task: Task, splits: Mapping[str, Sequence[Question]]) -> None:
    """A rephrased question has another text and the same answer, follows from text and seed alone,
    and cannot be posed where the question itself cannot.
    """
    if task.rephrase is None:
        return
    for name, questions in splits.items():
        for question in questions[:RULED]:
            bare = dataclasses.replace(question, answer=None, meta={})
            changed = task.rephrase(question, random.Random(question.id))
            from_text = task.rephrase(bare, random.Random(question.id))
            if changed is None or from_text is None:
                assert changed is from_text, f"rephrase looks at answer or meta ({question.id})"
                continue
            prompt = changed.prompt
            assert prompt == from_text.prompt, (
                f"rephrase gives {prompt!r} and {from_text.prompt!r} from one text and seed: it"
                " looks at answer or meta, or draws from elsewhere"
            )
            assert prompt != question.prompt, f"rephrase leaves {prompt!r} as it is"
            assert changed == dataclasses.replace(question, prompt=prompt), (
                f"rephrase changes more than the prompt of {question.id}"
            )
            for text in (question.answer or "", question.prompt, prompt, *JUNK):
                answer = task.extract(from_text, text)
                assert answer == task.extract(bare, text), f"extract({text!r}) reads {prompt!r}"
                verdict = task.verify(question, text)
                again = task.verify(changed, text)
                assert again == verdict, (
                    f"verify says {verdict} of {text!r}, and {again} where {question.prompt!r} is"
                    f" {prompt!r}"
                )
                ruled = task.check(from_text, text) if task.check is not None else verdict
                assert ruled == verdict, f"check says {ruled} of {text!r} for {prompt!r}"
            held_out = task.pose is not None and task.pose(question.prompt) is None
            assert not held_out or task.pose is None or task.pose(prompt) is None, (
                f"pose accepts {prompt!r}, and not {question.prompt!r} ({name})"
            )


def _check_meta(question: Question) -> None:
    """Runs record their questions, and replays read them again."""
    try:
        json.dumps(dict(question.meta))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"question {question.id}: its meta is nothing that JSON can hold: {error}"
        ) from error


def check_wording(task: Task) -> None:
    """Every template has the holes that its role needs, and none that nobody fills."""
    for role, template in task.wording.items():
        named_holes = holes(template)
        unknown = sorted(named_holes - set(FACTS))
        meant = [(hole, fact) for hole in unknown if (fact := meant_by(hole))]
        hints = [f"; did you mean {{{fact}}} by {{{hole}}}?" for hole, fact in meant]
        hint = "".join(hints)
        assert not unknown, f"wording {role!r} has holes that nobody fills: {unknown}{hint}"
        missing = HOLES.get(role, set()) - named_holes
        assert not missing, f"wording {role!r} lacks {sorted(missing)}"
