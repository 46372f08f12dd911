"""The contract of methods, for those who write one: `check_method`, which `comas.testing` offers.

A broken contract is an AssertionError that says which. Leaves out: anything that judges how good a
method is.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from comas.config.resolve import split_options
from comas.game.play import payoffs, settle_all
from comas.game.prompts import check_holes
from comas.testing.scripted import Script, cut, discuss, records, scripted_scene
from comas.types import Episode, Method, Question, Task, UserMistake


def check_method(
    method: Method, task: Task, questions: Sequence[Question], script: Script, **setting: Any
) -> None:
    """The contract of a method: named turns, declared roles, finite pay, determinism, and no look
    at the labels.
    """
    try:
        _check_method(method, task, questions, script, **setting)
    except UserMistake as mistake:
        raise AssertionError(str(mistake)) from mistake


def _check_method(
    method: Method, task: Task, questions: Sequence[Question], script: Script, **setting: Any
) -> None:
    _check_wording_of(method)
    episodes = discuss(method, task, script, questions, **setting)
    _check_turns(method, episodes)
    assert any(t.reward is not None for e in episodes for t in e.turns), "nothing was paid"
    assert records(discuss(method, task, script, questions, **setting)) == records(episodes), (
        "the same seed: another discussion"
    )
    reordered = discuss(method, task, script, list(reversed(questions)), **setting)
    assert sorted(records(reordered)) == sorted(records(episodes)), (
        "the order of questions changed a discussion"
    )
    scene, _ = scripted_scene(
        method, task, script, **{k: v for k, v in setting.items() if k != "samples"}
    )
    before = records(episodes)
    settle_all(scene, episodes, split_options(setting.get("options") or {}, method.settle))
    assert records(episodes) == before, "settling a recorded discussion again gave other rewards"
    if not method.supervised:
        poisoned = [dataclasses.replace(q, answer="poison", meta={}) for q in questions]
        assert records(discuss(method, task, script, poisoned, **setting)) == before, (
            "answers leaked into the game"
        )
    paid = sum(
        len(p)
        for by_policy in payoffs(episodes, scene.members).values()
        for p in by_policy.values()
    )
    assert paid == sum(t.reward is not None for e in episodes for t in e.turns), "payoffs got lost"
    # what models do say: it may cost, never raise
    for said in ("", "\x00<score>3", "?" * 999, cut(""), cut("1 + 2 =")):
        _check_turns(
            method, discuss(method, task, lambda *_, said=said: said, questions, **setting)
        )


def _check_wording_of(method: Method) -> None:
    """Templates of the file that a method's game stands in, called WORDING: no hole that is a fact
    misspelt.
    """
    module = inspect.getmodule(inspect.unwrap(getattr(method.play, "func", method.play)))
    if module is None or not hasattr(module, "WORDING"):
        return
    try:
        code = inspect.getsource(module)
    except (OSError, TypeError):  # typed in by hand
        code = ""
    check_holes(module.WORDING, module.__name__, code)


def _check_turns(method: Method, episodes: Sequence[Episode]) -> None:
    turns = [t for e in episodes for t in e.turns]
    assert turns, "play asked nobody"
    assert len({t.id for t in turns}) == len(turns), "two turns have one id"
    for episode in episodes:
        assert episode.error is None, f"{episode.id} failed: {episode.error}"
        assert episode.answer is None or isinstance(episode.answer, str), (
            "play returns a text or None"
        )
        said = {t.id for t in episode.turns}
        assert all(t.about is None or t.about in said for t in episode.turns), (
            "a turn is about one that was not said"
        )
    for turn in turns:
        if turn.reward is not None:
            assert turn.role in method.paid, (
                f"role {turn.role!r} is paid, but Method.paid is {method.paid}"
            )
            assert abs(turn.reward) < float("inf"), f"turn {turn.id} is paid {turn.reward}"
