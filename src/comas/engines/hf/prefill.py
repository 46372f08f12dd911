"""Which tokens of waiting prompts are computed, and in which forward passes: what prompts of one
policy share only once.

Leaves out: prefixes of earlier calls (weights change between them), trees of prefixes (one split
for all prompts of a call).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

PREFILL = 8192
"""Padded prompt tokens in one forward pass, more where there are more rows: bounds memory."""
ENOUGH = 1024
"""Tokens that keep a forward pass busy: with so many, shorter prompts get a pass of their own
instead of padding.
"""
SAVED = 0.25
"""Share of the tokens that a common prefix must save to be computed apart."""

Prompt = tuple[int, np.ndarray]
"""Policy number and token ids."""


def distinct(prompts: Sequence[Prompt]) -> tuple[list[int], list[int]]:
    """Where each different prompt is first, and for each prompt its place among those."""
    places: dict[tuple[int, bytes], int] = {}
    first = []
    of = []
    for i, prompt in enumerate(prompts):
        key = _key(prompt, 0)
        if key not in places:
            places[key] = len(first)
            first.append(i)
        of.append(places[key])
    return first, of


@dataclass(frozen=True)
class Split:
    """All prompts but their last `suffix` tokens, where many of them are the same."""

    suffix: int
    heads: list[int]
    """Prompts whose prefixes are computed."""
    of: list[int]
    """For each prompt the place among `heads` of the one that it begins like."""


def split(prompts: Sequence[Prompt]) -> Split | None:
    """The suffix length with which the fewest tokens are computed; None where that saves little."""
    least = (1 - SAVED) * sum(len(ids) for _, ids in prompts)
    best = None
    suffix = 1
    longest = max(len(ids) for _, ids in prompts)
    while suffix < longest and suffix * len(prompts) < least:
        made = _split(prompts, suffix)
        prefixes = sum(len(prompts[h][1]) - suffix for h in made.heads)
        computed = suffix * len(prompts) + prefixes
        if computed < least:
            least = computed
            best = made
        suffix = math.ceil(suffix * 1.25)
    return best


def _split(prompts: Sequence[Prompt], suffix: int) -> Split:
    keys = [_key(p, suffix) for p in prompts]
    heads: list[int] = []
    of = [0] * len(prompts)
    # in this order what begins alike is neighbours
    for i in sorted(range(len(prompts)), key=keys.__getitem__, reverse=True):
        policy, mine = keys[i]
        if mine and not (
            heads and keys[heads[-1]][0] == policy and keys[heads[-1]][1].startswith(mine)
        ):
            heads.append(i)
        of[i] = max(0, len(heads) - 1)
    return Split(suffix, heads, of)


def _key(prompt: Prompt, suffix: int) -> tuple[int, bytes]:
    policy, ids = prompt
    prefix = ids[: max(0, len(ids) - suffix)]
    return policy, np.ascontiguousarray(prefix, dtype=np.int64).tobytes()


def passes(lengths: Sequence[int], policies: Sequence[int]) -> Iterator[list[int]]:
    """Prompts of similar length for one forward pass each, sorted by policy."""
    part: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if part:
            width = lengths[part[0]]
            if (len(part) + 1) * width > PREFILL or (
                lengths[i] < 0.75 * width and len(part) * width >= ENOUGH
            ):
                yield sorted(part, key=policies.__getitem__)
                part = []
        part.append(i)
    yield sorted(part, key=policies.__getitem__)
