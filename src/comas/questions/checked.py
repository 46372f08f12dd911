"""Questions as a task's `load` returns them, held to what everything else relies on: each has an id
of its own.

A mistake in a task is one line that names it, before anything is asked. Leaves out: reading files
(`questions.sources`).
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from comas.config.schema import Config
from comas.game.play import brief, own_file
from comas.types import Question, Task, UserMistake


@dataclass(frozen=True)
class RunQuestions:
    """Questions that a training run asks."""

    train: Sequence[Question]
    validation: Sequence[Question]
    """Empty where nothing is measured on them."""
    test: Sequence[Question]
    """Held-out questions; empty where nothing is measured on them."""


def of_run(config: Config, task: Task, note: Callable[[str], None]) -> RunQuestions:
    """Load all questions of a run.

    Raises UserMistake; it needs no model, so that mistakes can be reported before one is loaded.
    """

    def measured(split: str, limit: int) -> list[Question]:
        """Questions to measure accuracy on; none where none can be judged."""
        if not limit:
            return []
        questions = of_split(config, task, split, limit)
        if judged := judged_of(task, questions, partial(of_split, config, task, split)):
            return judged
        note(
            f"task {config.task}: no {split} question has an `answer` to be judged by; none is"
            " measured"
        )
        return []

    train = of_split(config, task, "train")
    validation = measured("validation", config.eval_questions if config.eval_every else 0)
    test = measured("test", config.test_questions or 0)
    tested = {question.id for question in test}
    leaked = tested & {question.id for question in train}
    if leaked:
        raise UserMistake(
            f"task {config.task}: {len(leaked)} held-out questions are also trained on"
            f" ({min(leaked)}): give `data` a folder with a file per split, or set test_questions=0"
        )
    return RunQuestions(train, validation, test)


def of_split(config: Config, task: Task, split: str, limit: int | None = None) -> list[Question]:
    """The questions of a split as a config asks for them; an error where there are none."""
    options = config.task_options
    questions = loaded(task, split, path=config.data, limit=limit, seed=config.seed, **options)
    if not questions:
        of_data = f" of {config.data}" if config.data else ""
        raise UserMistake(f"task {config.task} has no questions in split {split!r}{of_data}")
    return questions


def loaded(task: Task, split: str, **options: Any) -> list[Question]:
    """Return the questions of `task.load(split, **options)`, checked; a failure in a file of one's
    own is one line.
    """
    try:
        questions = task.load(split, **options)
    except UserMistake:
        raise
    except Exception as error:
        if task.load.__module__.startswith("comas."):
            raise  # a mistake of ours is not its user's
        kind = type(error).__name__
        where = place_of(error, task.load)
        hint = " (data is not set)" if options.get("path") is None else ""
        raise UserMistake(
            f"task {task.name}, split {split!r}: load failed in {where}: {kind}: {error}{hint}"
        ) from error
    return checked(questions, task, split)


def place_of(error: Exception, function: Callable[..., Any]) -> str:
    """File and line in which an error arose: of the function's own file, if it came through it."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    own_frames = [
        frame for frame in frames if code is not None and frame.filename == code.co_filename
    ]
    frame = (own_frames or frames)[-1]
    return f"{Path(frame.filename).name} line {frame.lineno}"


def judged_of(
    task: Task, questions: Sequence[Question], load: Callable[..., list[Question]]
) -> list[Question]:
    """As many questions that can be judged as `questions` are, if there are so many: those of
    `load(limit=None)` are looked through where some of the first cannot.
    """

    def chosen(some: Sequence[Question]) -> list[Question]:
        with own_file(task.verify, f"task {task.name}: verify"):
            return [q for q in some if q.answer is not None or task.verify(q, "") != "failed"]

    judged = chosen(questions)
    return judged if len(judged) == len(questions) else chosen(load(limit=None))[: len(questions)]


def checked(loaded: Any, task: Task, split: str) -> list[Question]:
    """Return the questions, if they are such: records with an id and a prompt, no id twice.

    Raises UserMistake.
    """
    where = f"task {task.name}, split {split!r}"
    if not isinstance(loaded, Sequence) or isinstance(loaded, str | bytes):
        raise UserMistake(f"{where}: load returned {brief(loaded)}, wanted is a list of Question")
    questions: list[Question] = []
    for index, question in enumerate(loaded):
        if not isinstance(question, Question):
            raise UserMistake(
                f"{where}: item {index} is {brief(question)}, wanted is Question(id=...,"
                " prompt=...)"
            )
        _check_texts(question, f"{where}, question {index}")
        questions.append(question)
    ids = Counter(question.id for question in questions)
    for commonest, times in ids.most_common(1):
        if times > 1:
            raise UserMistake(
                f"{where}: {times} questions have the id {commonest!r}: each needs one of its own"
            )
    return questions


def _check_texts(question: Question, where: str) -> None:
    for name in ("id", "prompt", "kind"):
        value = getattr(question, name)
        if not isinstance(value, str):
            raise UserMistake(f"{where}: `{name}` is {brief(value)}, wanted is a text")
    if not question.id:
        raise UserMistake(f"{where}: its id is empty, and turns are named after it")
    answer: Any = question.answer
    if answer is not None and not isinstance(answer, str):
        raise UserMistake(f"{where}: `answer` is {brief(answer)}, wanted is a text or None")


@lru_cache(maxsize=2)  # asked for every question, and a step spans two passes at most
def order(n: int, seed: int) -> list[int]:
    """Shuffle 0 to n - 1: the order of a pass over n questions."""
    places = list(range(n))
    random.Random(seed).shuffle(places)
    return places
