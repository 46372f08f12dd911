"""Questions that are asked after training and were, exactly or nearly, trained on.

Exactly: the same text but for case and spaces. Nearly: half or more of a question's runs of five
words stand in one training question, numbers counting as the same word, so that a problem with
other numbers is found too. Leaves out: what a base model saw before, and questions of fewer than
eight words, which share runs by chance.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from comas.types import Question

RUN = 5
SHARE = 0.5
SHORT = 8
"""Words of a run; share of runs that makes two questions near; words below which nothing is said.
"""
_WORD = re.compile(r"[^\W\d_]+|\d[\d.,]*")


@dataclass(frozen=True)
class Overlap:
    """Pairs (test question's id, training question's id)."""

    exact: list[tuple[str, str]]
    near: list[tuple[str, str]]
    """Those that are not exact."""
    tested: int

    def __str__(self) -> str:
        exact = f"{len(self.exact)} of {self.tested} test questions were trained on"
        counts = f"{exact}, and {len(self.near)} nearly"
        pairs = self.exact or self.near
        if not pairs:
            return counts
        tested, trained = pairs[0]
        return f"{counts} (such as {tested}, trained on as {trained})"


def overlap(train: Sequence[Question], test: Sequence[Question]) -> Overlap:
    """Which test questions were trained on; of several training questions the one that shares most,
    the first among equals.
    """
    texts = {_plain(question.prompt): question.id for question in reversed(train)}
    index: dict[int, list[int]] = defaultdict(list)
    for place, question in enumerate(train):
        for run in set(_runs(question.prompt)):
            index[run].append(place)
    exact: list[tuple[str, str]] = []
    near: list[tuple[str, str]] = []
    for question in test:
        same = texts.get(_plain(question.prompt))
        if same is not None:
            exact.append((question.id, same))
            continue
        runs = set(_runs(question.prompt))
        shared = Counter(place for run in runs for place in index.get(run, ()))
        most = max(shared.values(), default=0)
        if most and most >= SHARE * len(runs):
            place = min(place for place, count in shared.items() if count == most)
            near.append((question.id, train[place].id))
    return Overlap(exact, near, len(test))


def _plain(text: str) -> str:
    """The text without case, its words divided by one space."""
    return " ".join(text.casefold().split())


def _runs(text: str) -> Iterator[int]:
    found = _WORD.findall(text.casefold())
    words = ["#" if word[0].isdigit() else word for word in found]
    if len(words) >= SHORT:
        for i in range(len(words) - RUN + 1):
            yield hash(tuple(words[i : i + RUN]))
