"""The contract of methods, for those who write one: `check_method`, which `comas.testing` offers.

A broken contract is an AssertionError that says which. Leaves out: anything that judges how good a
method is.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from comas.game import memory
from comas.game.play import GameContext, settle_all, turn_rewards
from comas.game.prompts import check_holes
from comas.testing.scripted import (
    Script,
    cut,
    discuss,
    play_step,
    records,
    repeating,
    scripted_context,
)
from comas.types import Episode, Method, Question, Row, State, Task, Turn, UserMistake


@contextmanager
def contract() -> Generator[None]:
    """Tell a UserMistake as what it is here: a broken contract."""
    try:
        yield
    except UserMistake as mistake:
        raise AssertionError(str(mistake)) from mistake


@contract()
def check_method(
    method: Method, task: Task, questions: Sequence[Question], script: Script, **setting: Any
) -> None:
    """The contract of a method: named turns, declared roles, finite rewards, determinism, and no
    look at the labels.
    """
    _check_wording_of(method)
    episodes, before, after = play_step(method, task, script, questions, **setting)
    _check_turns(method, episodes)
    turns = [turn for episode in episodes for turn in episode.turns]
    assert any(turn.reward is not None for turn in turns), "no turn has a reward"
    _check_kl(method)
    played = records(episodes)
    again = play_step(method, task, script, questions, **setting)
    assert records(again[0]) == played, "the same seed: another discussion"
    assert again[1:] == (before, after), "the same seed: another state"
    _check_order(method, task, questions, script, played, **setting)
    seated = {key: value for key, value in setting.items() if key != "samples"}
    context, _ = scripted_context(method, task, script, **seated)
    _check_settling(dataclasses.replace(context, state=before), episodes, after)
    if not method.supervised:
        poisoned = [dataclasses.replace(q, answer="poison", meta={}) for q in questions]
        unseen = records(discuss(method, task, script, poisoned, **setting))
        assert unseen == played, "answers leaked into the game"
    if not method.supervised and not method.grounded and task.check is not None:
        blind = dataclasses.replace(task, check=None)
        unruled = records(discuss(method, blind, script, questions, **setting))
        assert unruled == played, (
            "the task's rules leaked into the game: set grounded=True on the Method"
        )
    _check_credit(method, sorted({turn.role for turn in turns if turn.reward is not None}))
    if setting.get("samples", 1) >= method.samples:
        # a reply that this script made unreadable is compared where its place in a game is rewarded
        places = {_place_of(turn) for turn in turns if turn.reward is not None}
        of_places = [turn for turn in turns if _place_of(turn) in places]
        _check_compared(method, [t for t in of_places if t.reward is not None or t.group])
    joined = turn_rewards(episodes, context.members)
    counts = [len(rewards) for by_policy in joined.values() for rewards in by_policy.values()]
    assert sum(counts) == sum(turn.reward is not None for turn in turns), "rewards got lost"
    # what models do say: it may cost, never raise
    for reply in ("", " \n", "\x00<score>3", "?" * 999, cut(""), cut("1 + 2 =")):
        _check_turns(method, discuss(method, task, repeating(reply), questions, **setting))


def _place_of(turn: Turn) -> str:
    """Place of a turn in its game, whatever the question."""
    return turn.id.split("/")[-1]


def _check_kl(method: Method) -> None:
    """Roles that have a KL are rewarded; without a reward nothing is trained on."""
    if not method.rewarded:  # questions name them
        return
    for role in (role for role, beta in method.kl.items() if beta and role not in method.rewarded):
        raise AssertionError(
            f"kl: {role} has one, and the method does not say that it rewards that role: write"
            f" roles={{{role!r}: Role(kind, reward=...)}}, or leave it out of kl"
        )


def _check_credit(method: Method, roles: Sequence[str]) -> None:
    """Advantages are finite, one per token and 0 outside the mask, also where all rewards are
    equal.
    """
    mask_T = np.array([False, True, True])
    flat_T = np.where(mask_T, np.float32(-1.0), np.float32(0.0))
    for rewards in ((1.0, 0.0, 0.5, 0.5), (0.0, 0.0, 0.0, 0.0)):
        rows = [
            Row(
                f"0/q/0/{role}{index}",
                role,
                1.0,
                np.arange(3),
                mask_T,
                flat_T,
                group=f"{role} {index // 2}",
                reward=reward,
                ref_logprobs_T=flat_T,
                now_T=flat_T,
            )
            for role in roles
            for index, reward in enumerate(rewards)
        ]
        advantages = method.credit(rows, method.kl)
        assert len(advantages) == len(rows), "credit: not an array per row"
        for advantages_T in advantages:
            assert advantages_T.shape == mask_T.shape, "credit: not an advantage per token"
            assert np.isfinite(advantages_T).all(), f"credit: not finite for {rewards}"
            assert not advantages_T[~mask_T].any(), "credit: an advantage outside of the mask"


ALONE = (
    "nobody would learn, whatever is rewarded: each rewarded turn is the only one of its policy"
    " in its group, so that there is nothing to compare; give several turns one `group`, play"
    " samples of a question, or take the credit reinforce_pp"
)


def _check_compared(method: Method, rewarded: Sequence[Turn]) -> None:
    assert not compares_nothing(method, rewarded), ALONE


def compares_nothing(method: Method, rewarded: Sequence[Turn]) -> bool:
    """Whether every advantage is 0 although every reward differs: no policy would ever learn.

    Turns without a group are compared with all of their policy, of which a step has more than here.
    """
    if not rewarded or any(turn.group is None for turn in rewarded):
        return False
    mask_T = np.array([False, True])
    flat_T = np.where(mask_T, np.float32(-1.0), np.float32(0.0))
    rows: dict[str, list[Row]] = {}
    for index, turn in enumerate(rewarded):
        row = Row(
            turn.id,
            turn.role,
            1.0,
            np.arange(2),
            mask_T,
            flat_T,
            group=turn.group,
            reward=float(index),
            ref_logprobs_T=flat_T,
            now_T=flat_T,
        )
        rows.setdefault(turn.policy, []).append(row)
    advantages = [a for of_policy in rows.values() for a in method.credit(of_policy, method.kl)]
    return not any(a.any() for a in advantages)


def _check_order(
    method: Method,
    task: Task,
    questions: Sequence[Question],
    script: Script,
    played: Sequence[str],
    **setting: Any,
) -> None:
    """The order of questions changes no discussion; nor does that of drawn ones."""
    choose = method.memory.draw
    turned = method
    if choose is not None:
        drawing = dataclasses.replace(method.memory, draw=_reversed(choose))
        turned = dataclasses.replace(method, memory=drawing)
    order = questions if choose else list(reversed(questions))
    reordered = discuss(turned, task, script, order, **setting)
    assert sorted(records(reordered)) == sorted(played), (
        "the order of questions changed a discussion"
    )


def _reversed(draw: Callable[..., list[Question]]) -> Callable[..., list[Question]]:
    """Wrap a draw so that its questions come the other way round."""

    @functools.wraps(draw)
    def reversed_draw(*arguments: Any, **options: Any) -> list[Question]:
        return draw(*arguments, **options)[::-1]

    return reversed_draw


def _check_settling(context: GameContext, episodes: Sequence[Episode], after: State) -> None:
    """Settling and updating again give the same, and leave the record of before as it was."""
    settled = records(episodes)
    before = copy.deepcopy(context.state)
    settle_all(context, episodes)
    assert records(episodes) == settled, "settling a recorded discussion again gave other rewards"
    if context.method.memory.update is not None:
        assert memory.next_state(context, episodes) == after, (
            "update gave another state the second time"
        )
    assert context.state == before, "the state was changed: play, settle and update only read it"


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
        ids = {t.id for t in episode.turns}
        assert all(t.about is None or t.about in ids for t in episode.turns), (
            "a turn is about one that was not said"
        )
    for turn in turns:
        if turn.reward is not None:
            assert turn.role in method.rewarded or not method.rewarded, (
                f"role {turn.role!r} has a reward, and those that may are {method.rewarded}"
            )
            assert abs(turn.reward) < float("inf"), f"turn {turn.id} has reward {turn.reward}"
