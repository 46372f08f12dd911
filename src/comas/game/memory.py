"""Memory of a method between steps: its record begins, chooses questions, and goes on.

The record is JSON, so that a checkpoint holds it and a resumed run has the same one. Leaves out:
where it is written (`training.remembering`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from comas.game.agent import derive_seed
from comas.game.play import GameContext, brief, finished_of, options_of, own_file, unlabelled
from comas.types import Episode, Question, State, UserMistake


def first_state(context: GameContext, questions: Sequence[Question]) -> State:
    """The record before the first step."""
    start = context.method.memory.start
    if start is None:
        return {}
    with own_file(start, "start"):
        state = start(_seen(context, questions), context.permitted, **options_of(context, start))
    return as_json(state, "start")


def at_start(context: GameContext) -> GameContext:
    """The context with the record of before the first step, for games outside a run: nobody has
    learnt anything from questions there, so that `start` gets none.
    """
    if context.method.memory.start is None:
        return context
    return replace(context, state=first_state(context, []))


def draw(
    context: GameContext, questions: Sequence[Question], count: int, step: int
) -> list[Question]:
    """The questions that a method with `draw` chooses for a step, at most `count` of them."""
    choose = context.method.memory.draw
    assert choose is not None
    rng = random.Random(derive_seed(context.seed, "draw", step))
    with own_file(choose, "draw"):
        seen = _seen(context, questions)
        options = options_of(context, choose)
        drawn = choose(context.state, seen, count, rng, context.permitted, **options)
    if not drawn:
        raise UserMistake(f"step {step + 1}: draw chose no question: it has to return one at least")
    for question in drawn:
        if not isinstance(question, Question):
            raise UserMistake(
                f"step {step + 1}: draw returned {brief(question)}, which is no Question"
            )
    if len(drawn) > count:
        raise UserMistake(
            f"step {step + 1}: draw chose {len(drawn)} questions, and a step has {count}: return at"
            " most as many"
        )
    ids = [question.id for question in drawn]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise UserMistake(f"step {step + 1}: draw chose two questions with the id {twice!r}")
    if context.method.supervised:
        return list(drawn)
    # reports need the labels of those that are the task's own
    by_text = {(question.id, question.prompt): question for question in questions}
    return [by_text.get((question.id, question.prompt), question) for question in drawn]


def next_state(context: GameContext, episodes: Sequence[Episode]) -> State:
    """The record after a step that was settled and learnt from."""
    update = context.method.memory.update
    if update is None:
        return context.state
    with own_file(update, "update"):
        finished = finished_of(context, episodes)
        state = update(context.state, finished, context.permitted, **options_of(context, update))
    return as_json(state, "update")


def as_json(state: Any, function: str) -> State:
    """The record as a checkpoint would give it back; an error where JSON cannot hold it."""
    if not isinstance(state, dict):
        raise UserMistake(f"{function} returned {brief(state)}: the state of a method is a dict")
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserMistake(
            f"{function}: its state cannot be written as JSON: {error} (plain values, no NaN)"
        ) from error


def refuse_held_out(step: int, questions: Sequence[str], held_out: Collection[str]) -> None:
    """An error where the text of a question to be played, or that was posed, is a held-out one."""
    leaked = next((prompt for prompt in questions if prompt in held_out), None)
    if leaked is not None:
        raise UserMistake(
            f"step {step + 1}: the question {brief(leaked)} is a held-out one: pose has to return"
            " None for it"
        )


def posed_in(episodes: Sequence[Episode]) -> list[str]:
    """The texts of the questions that agents posed: what games note as `info["posed"]`."""
    noted = [turn.info.get("posed") for episode in episodes for turn in episode.turns]
    return [prompt for prompt in noted if isinstance(prompt, str)]


def _seen(context: GameContext, questions: Sequence[Question]) -> list[Question]:
    """Questions as the method may see them."""
    if context.method.supervised:
        return list(questions)
    return [unlabelled(question) for question in questions]
