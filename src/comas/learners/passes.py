"""Forward passes: which rows go into one together, and how they lie in it: apart, or behind one
copy of what they begin with.

Replies to one question differ, their prompt does not, and the prompts of its judges begin alike: in
a pack this beginning stands once, and every row sees it and the rest of itself. A mask holds
attention to that, and each token keeps the position that it had. Log-probs are the same but for
rounding, and so are gradients. Leaves out: families whose layers look back a limited way, or not by
attention (`can_share`); what is done in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from comas.seams import uploaded
from comas.types import Row

LONGEST = 1024
"""Tokens of a pack of several rows, at most: attention grows with the square of them."""
SAVED = 32
"""Rows of different prompts go into one pack where it has so many tokens less than they apart."""
PAD = -1
"""The segment of padding; that of the beginning is 0, those of rows are 1 and more."""


@dataclass(frozen=True)
class Layout:
    """A batch as a model reads it, and where the generated tokens of its rows are in it."""

    given: dict[str, torch.Tensor]
    """Arguments that the model is called with."""
    sources_N: torch.Tensor
    """Place, in the flattened batch, of the token before each generated one."""
    ids_N: torch.Tensor
    """The generated tokens."""
    rows_N: np.ndarray
    """The row of each."""
    places_N: torch.Tensor
    """Place of each generated token in the flattened log-probs (B, T)."""
    shape: tuple[int, int]
    """(B, T): rows, and tokens of the longest."""


def one_by_one(rows: Sequence[Row], pad_id: int, device: Any) -> Layout:
    """Every row apart, padded on the right."""
    lengths = [len(row.token_ids_T) for row in rows]
    shape = (len(rows), max(lengths))
    ids = np.full(shape, pad_id)
    mask = np.zeros(shape, dtype=bool)
    for i, row in enumerate(rows):
        ids[i, : lengths[i]] = row.token_ids_T
        mask[i, : lengths[i]] = row.mask_T
    places = np.flatnonzero(mask)
    attend = np.arange(shape[1]) < np.array(lengths)[:, None]
    places_N = uploaded(torch.from_numpy(places), device)
    return Layout(
        {
            "input_ids": uploaded(torch.from_numpy(ids), device),
            "attention_mask": uploaded(torch.from_numpy(attend.astype(int)), device),
        },
        places_N - 1,
        uploaded(torch.from_numpy(ids.reshape(-1)[places]), device),
        places // shape[1],
        places_N,
        shape,
    )


def in_packs(
    rows: Sequence[Row], packs: Sequence[Sequence[int]], pad_id: int, model: Any
) -> Layout:
    """Rows of each pack behind one copy of their beginning; packs are padded on the right."""
    shape = (len(rows), max(len(row.token_ids_T) for row in rows))
    lengths = [pack_length(rows, pack) for pack in packs]
    wide = (len(packs), max(lengths))
    ids = np.full(wide, pad_id)
    segments = np.full(wide, PAD)
    positions = np.zeros(wide, dtype=np.int64)
    sources: list[np.ndarray] = []
    places: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    for number, pack in enumerate(packs):
        shared = beginning(rows, pack)
        ids[number, :shared] = rows[pack[0]].token_ids_T[:shared]
        segments[number, :shared] = 0
        positions[number, :shared] = np.arange(shared)
        at = shared
        for segment, i in enumerate(pack, start=1):
            rest = rows[i].token_ids_T[shared:]
            own_positions = np.arange(at, at + len(rest))
            ids[number, own_positions] = rest
            segments[number, own_positions] = segment
            positions[number, own_positions] = shared + np.arange(len(rest))
            before = np.concatenate([[shared - 1], own_positions[:-1]])
            generated = np.flatnonzero(rows[i].mask_T[shared:])
            sources.append(number * wide[1] + before[generated])
            places.append(i * shape[1] + shared + generated)
            tokens.append(rest[generated])
            at += len(rest)
    # in the order of (B, T), as rows that stand apart have it
    all_places = np.concatenate(places)
    order = np.argsort(all_places, kind="stable")
    all_places = all_places[order]
    all_sources = np.concatenate(sources)[order]
    device = model.device
    return Layout(
        {
            "input_ids": uploaded(torch.from_numpy(ids), device),
            "attention_mask": _mask(segments, model),
            "position_ids": uploaded(torch.from_numpy(positions), device),
        },
        uploaded(torch.from_numpy(all_sources), device),
        uploaded(torch.from_numpy(np.concatenate(tokens)[order]), device),
        all_places // shape[1],
        uploaded(torch.from_numpy(all_places), device),
        shape,
    )


def _mask(segments_SL: np.ndarray, model: Any) -> torch.Tensor:
    """Return which tokens see which, (S, 1, L, L): the beginning and their own row, as far as it is
    before them; padding sees itself, so that its states are numbers.
    """
    of_tokens = uploaded(torch.from_numpy(segments_SL), model.device)
    queries = of_tokens[:, :, None]
    keys = of_tokens[:, None, :]
    width = of_tokens.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=model.device).tril()
    seen = causal & (keys != PAD) & ((keys == 0) | (keys == queries))
    seen = (seen | torch.eye(width, dtype=torch.bool, device=model.device))[:, None]
    if model.config._attn_implementation == "sdpa":
        return seen
    lowest = torch.finfo(model.dtype).min
    return torch.zeros(seen.shape, dtype=model.dtype, device=model.device).masked_fill(
        ~seen, lowest
    )


def prompt_length(row: Row) -> int:
    """Tokens before the first generated one."""
    return int(row.mask_T.argmax())


def beginning(rows: Sequence[Row], pack: Sequence[int]) -> int:
    """How many tokens the prompts of these rows have in common at their beginning."""
    first = rows[pack[0]]
    shared = prompt_length(first)
    for i in pack[1:]:
        shared = min(shared, prompt_length(rows[i]))
        different = first.token_ids_T[:shared] != rows[i].token_ids_T[:shared]
        if different.any():
            shared = int(different.argmax())
    return shared


def pack_length(rows: Sequence[Row], pack: Sequence[int]) -> int:
    """Tokens of a pack: of one beginning and what follows it in each row."""
    shared = beginning(rows, pack)
    return shared + sum(len(rows[i].token_ids_T) - shared for i in pack)


def packs_of(policies: Sequence[str], rows: Sequence[Row], most: int) -> list[list[int]]:
    """Rows of one policy that are read behind one copy of their beginning, up to `most` tokens (or
    LONGEST) together, in the order of the first of them: those of one prompt, and packs of
    different prompts where that saves `SAVED` tokens. A row whose reply is not its end stays alone.
    """
    most = min(most, LONGEST)
    packs = _packs_of_one_prompt(policies, rows, most)
    # after sorting, those stand side by side that have the longest beginning in common
    packs.sort(key=lambda pack: (policies[pack[0]], _prompt(rows[pack[0]]).tolist()))
    joined: list[list[int]] = []
    for pack in packs:
        last = joined[-1] if joined else None
        if last is not None and _saves(policies, rows, last, pack, most):
            joined[-1] = sorted(last + pack)
        else:
            joined.append(pack)
    return sorted(joined)


def _saves(
    policies: Sequence[str],
    rows: Sequence[Row],
    one: Sequence[int],
    other: Sequence[int],
    most: int,
) -> bool:
    """Whether two packs may be one, and that saves enough. Of a pack of several rows each is a
    prompt and then a reply, so that its first row tells.
    """
    if policies[one[0]] != policies[other[0]]:
        return False
    if not (_ends_in_reply(rows[one[0]]) and _ends_in_reply(rows[other[0]])):
        return False
    together = pack_length(rows, [*one, *other])
    apart = pack_length(rows, one) + pack_length(rows, other)
    return together <= min(most, apart - SAVED)


def _packs_of_one_prompt(
    policies: Sequence[str], rows: Sequence[Row], most: int
) -> list[list[int]]:
    packs: list[list[int]] = []
    open_packs: dict[tuple[str, bytes], tuple[list[int], int]] = {}
    """Policy and prompt -> the last pack of such rows, and its tokens."""
    for i, (policy, row) in enumerate(zip(policies, rows, strict=True)):
        if not _ends_in_reply(row):
            packs.append([i])
            continue
        prompt_T = _prompt(row)
        reply = len(row.token_ids_T) - len(prompt_T)
        key = policy, prompt_T.tobytes()
        pack, length = open_packs.get(key, ([], 0))
        if not pack or length + reply > most:
            pack = []
            length = len(prompt_T)
            packs.append(pack)
        pack.append(i)
        open_packs[key] = pack, length + reply
    return packs


def _prompt(row: Row) -> np.ndarray:
    return row.token_ids_T[: prompt_length(row)]


def _ends_in_reply(row: Row) -> bool:
    """Whether a row is a prompt and then a reply to its end."""
    prompt = prompt_length(row)
    return prompt > 0 and bool(row.mask_T[prompt:].all())


FAR = 300
"""Tokens of a reply before another one in a trial: more than a window that no config names."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Relative distance of hidden states, in a pack and apart."""


@torch.no_grad()
def can_share(model: Any) -> bool:
    """Whether this family reads a pack as it reads its rows: all layers see everything before them
    by attention, from positions of their own. Tried on a few tokens, and far from the prompt.

    Rows in a pack must come out as they do alone, and what one reply says must not change another's
    states by a single bit.
    """
    text = model.config.get_text_config()
    if getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None):
        return False
    if set(getattr(text, "layer_types", None) or ("full_attention",)) != {"full_attention"}:
        return False
    body = model._modules.get(model.base_model_prefix)
    if body is None:
        return False
    try:
        return _reads_packs(model, body)
    except Exception:  # noqa: BLE001 - whatever fails, this family takes no mask of packs
        return False


def _reads_packs(model: Any, body: Any) -> bool:
    rows = [_trial([5, 6, 7], [8, 9]), _trial([5, 6, 7], [10, 11, 12])]
    others = [_trial([5, 6, 7], [13, 4]), rows[1]]
    apart = one_by_one(rows, 0, model.device)
    expected = _states(body, apart)
    packed = in_packs(rows, [[0, 1]], 0, model)
    states = _states(body, packed)
    changed = _states(body, in_packs(others, [[0, 1]], 0, model))
    second = packed.rows_N == 1
    unmoved = torch.equal(states[second], changed[second])
    if not unmoved or not _near(states, expected, model.dtype):
        return False
    # windows of tokens, or distances between them, may go by places in the pack
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or FAR
    long = [5 + i % 8 for i in range(max(2, min(FAR, positions - 8)))]
    layout = in_packs([_trial([5, 6, 7], long), rows[1]], [[0, 1]], 0, model)
    behind = _states(body, layout)[layout.rows_N == 1]
    return _near(behind, expected[apart.rows_N == 1], model.dtype)


def _near(states: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether states of a model in this dtype are equal but for rounding."""
    return bool((states - expected).norm() / expected.norm() <= TOLERANCE[dtype])


def _trial(prompt: Sequence[int], reply: Sequence[int]) -> Row:
    ids = np.array([*prompt, *reply])
    mask = np.arange(len(ids)) >= len(prompt)
    return Row("trial", "trial", 1.0, ids, mask, np.zeros(len(ids), np.float32))


def _states(body: Any, layout: Layout) -> torch.Tensor:
    """Hidden states (N, D) that predict the generated tokens."""
    hidden = body(**layout.given, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, layout.sources_N)


SPREAD = 1.25
FULL = 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too
small to be worth its calls.
"""

Owned = tuple[str, Row]
"""A row and the policy that wrote it."""


Packs = list[list[int]] | None
"""The rows of a pass that are read behind one copy of their beginning, by their places in the pass;
None where every row is read alone.
"""


@dataclass(frozen=True)
class Pass:
    """Rows of a step that go through a model together; those of one policy stand side by side, as
    `Population` wants them.
    """

    rows: list[int]
    """Their places in the step."""
    packs: Packs
    padded: int
    """Tokens that are read, with padding."""


def passes(owned: Sequence[Owned], tokens_per_pass: int, shares: bool = False) -> list[Pass]:
    """Forward passes of at most `tokens_per_pass`, but for a longer row; similar lengths together,
    so that little is padding. With `shares` rows are read in packs.
    """
    units = [[i] for i in range(len(owned))]
    lengths = [len(row.token_ids_T) for _, row in owned]
    if shares:
        rows = [row for _, row in owned]
        units = packs_of([policy for policy, _ in owned], rows, tokens_per_pass)
        lengths = [pack_length(rows, unit) for unit in units]
    parts: list[list[int]] = []
    for unit in sorted(range(len(units)), key=lengths.__getitem__):
        if parts and _joins(parts[-1], unit, lengths, tokens_per_pass):
            parts[-1].append(unit)
        else:
            parts.append([unit])
    all_passes: list[Pass] = []
    for part in parts:
        padded = len(part) * max(lengths[unit] for unit in part)
        here = sorted((units[unit] for unit in part), key=lambda unit: owned[unit[0]][0])
        places = iter(range(len(owned)))
        packs = [[next(places) for _ in unit] for unit in here]
        alone = all(len(pack) == 1 for pack in packs)
        all_passes.append(
            Pass([i for unit in here for i in unit], None if alone else packs, padded)
        )
    return all_passes


def _joins(part: Sequence[int], unit: int, lengths: Sequence[int], tokens_per_pass: int) -> bool:
    """Whether a unit, which is no shorter than those of the pass, goes with them."""
    if (len(part) + 1) * lengths[unit] > tokens_per_pass:
        return False
    shortest = lengths[part[0]]
    return lengths[unit] <= SPREAD * shortest or len(part) * shortest < FULL


def pad(arrays: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """Rows of arrays -> a tensor of the shape, dtype and device of `like`, 0 on the right."""
    padded = np.zeros(like.shape, dtype=np.float64 if like.dtype == torch.float64 else np.float32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return uploaded(torch.from_numpy(padded), like.device)
