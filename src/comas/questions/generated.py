"""Generated questions: what they can be asked for, and their splits by their numbers, disjoint by
construction.

Leaves out: splits of questions that are read from files (`sources`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from comas.questions.sources import split_of_text
from comas.types import UserMistake


def check_asked(
    task: str,
    split: str,
    splits: Collection[str],
    path: str | None,
    form: str = "",
    forms: Collection[str] = ("",),
) -> None:
    """An error for a file, since nothing is read, and for a split or form that there is not."""
    if path is not None:
        raise UserMistake(
            f"task {task} generates its questions and reads no file: leave out path={path!r}"
        )
    if split not in splits:
        raise UserMistake(f"task {task} has no split {split!r}: one of {', '.join(splits)}")
    if form not in forms:
        raise UserMistake(f"task {task} has no form {form!r}: one of {', '.join(forms)}")


def split_of_numbers(task: str, numbers: Sequence[int], shares: Mapping[str, float]) -> str:
    """The split of a task that numbers belong to, whatever their order.

    `shares` has the share of each split, in the order in which the hash is cut.
    """
    written = " ".join(map(str, sorted(numbers)))
    return split_of_text(task, written, shares)
