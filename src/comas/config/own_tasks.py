"""A task from a file of the user's own, held to what a task returns: a verdict that is none would
count as a wrong answer otherwise, without a word.

What is wrong is a mistake in one line. An error in `verify` stays one: evaluations record it.
Leaves out: questions (`questions.checked`), the whole contract (`comas.testing.check_task`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, get_args

from comas.config.mistakes import note_former
from comas.game.play import brief, is_own, own_file
from comas.types import Task, UserMistake, Verdict

VERDICTS = get_args(Verdict)
_VERDICT = (lambda value: isinstance(value, str) and value in VERDICTS, "right, wrong or failed")
_ANSWER = (lambda value: value is None or isinstance(value, str), "a text, or None for no answer")
_TEXT = (lambda value: isinstance(value, str), "a text")
_ANYTHING = (lambda _: True, "")
RETURNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "verify": _VERDICT,
    "check": _VERDICT,
    "extract": _ANSWER,
    "ballot": _ANSWER,
    "shown": _TEXT,
    "same": _ANYTHING,
}
"""Function of a task -> whether a value is what it returns, and what that is in words."""


def held(task: Task) -> Task:
    """Return the task with functions that raise a UserMistake for what no task returns; an error
    for `max_tokens` and templates that are none.
    """
    for role, tokens in task.max_tokens.items():
        if type(tokens) is not int or tokens < 1:
            raise UserMistake(
                f"task {task.name}: max_tokens[{role!r}] is {brief(tokens)}, wanted is a whole"
                " number of tokens, 1 or more"
            )
    for role, template in task.wording.items():
        if not isinstance(template, str):
            raise UserMistake(
                f"task {task.name}: wording[{role!r}] is {brief(template)}, wanted is a text"
            )
    functions = {name: getattr(task, name) for name in RETURNS}
    own = {
        name: _held(task.name, name, function)
        for name, function in functions.items()
        if callable(function) and is_own(function)
    }
    wording = {_current_template(name): text for name, text in task.wording.items()}
    return replace(task, wording=wording, **own)


def _current_template(name: str) -> str:
    """The name of a template; those of P(True) had another one in 0.1."""
    current = name.replace("believed", "p_true")
    if current != name:
        note_former(f"template {name}", current)
    return current


def _held(task: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """One function of a task, which says what is wrong with what it returns."""
    is_right, wanted = RETURNS[name]
    where = f"task {task}: {name}"

    @functools.wraps(function)
    def checked(*arguments: Any) -> Any:
        with nullcontext() if name == "verify" else own_file(function, where):
            value = function(*arguments)
        if not is_right(value):
            raise UserMistake(f"{where} returned {brief(value)}, wanted is {wanted}")
        return value

    return checked
