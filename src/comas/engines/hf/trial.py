"""A trial of a base before it is used: rows that run together must say what each says alone.

Some families have no cache of keys and values, or count positions from the first column, so that
padding moves them (decoders of Bart, TrOCR, RoBERTa); some turn all rows by the longest one. A few
tokens show all of that. Leaves out: what only shows in long rows, weights that are broken (the
first reply tells).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache

from comas.engines.hf.lanes import Lanes, Piece, joined
from comas.seams import in_float64
from comas.types import UserMistake

ROWS = 3
"""Rows that are compared; one more is the long one in whose company they are."""
SHORT = 5
"""Tokens of those."""
LONG = 12
"""Tokens of the long row: the others have so many columns, with padding in front."""
TOLERANCE = {torch.float64: 0.01, torch.float32: 0.01}
"""Largest difference between what a row says alone and in company, as a share of the difference
between two rows.
"""
COARSE = 0.15
"""Tolerance for half precision, where rounding alone was seen to make 0.02."""

LARGE = 50_000_000
"""Numbers of a model whose trial takes seconds: that it passed is noted for later processes."""

_tried: set[tuple[Any, ...]] = set()
"""Shapes of models that passed in this process: the trial is about their code, not about their
weights.
"""


@torch.no_grad()
def try_rows(model: Any, context: int, base: str, notes: Path | None = None) -> None:
    """Refuse a model whose rows depend on their company. Once per shape of model and process; of a
    large one once, until torch or transformers change: the folder `notes` tells later processes.
    """
    facts = model.config.to_dict()
    facts.pop("_name_or_path", None)
    described = json.dumps(facts, sort_keys=True, default=str)
    attention = model.config._attn_implementation
    key = (type(model), model.dtype, str(model.device), context, attention, described)
    if key in _tried:
        return
    noted = None
    # a large one, and not where its code came with it, which may change under its name
    known_code = type(model).__module__.startswith("transformers.")
    if notes is not None and known_code and model.num_parameters() >= LARGE:
        versions = (torch.__version__, transformers.__version__)
        noted = notes / sha256(repr((key, versions)).encode()).hexdigest()
        if noted.exists():
            return
    name = f"base {base!r} ({type(model).__name__})"
    _check_cache(model, name)
    long = min(LONG, context - 1)
    short = min(SHORT, long - 1)
    if short < 1:
        return
    ids_RT = _tokens(model, long + 1)
    short_RT = ids_RT[:ROWS, -short - 1 :]
    with _blamed(name):
        alone_RV = model(input_ids=short_RT, use_cache=False).logits[:, -1]
        together_RV = _in_company(model, ids_RT, short, context)
    apart = _apart(in_float64(alone_RV), in_float64(together_RV))
    if apart > TOLERANCE.get(model.dtype, COARSE):
        raise UserMistake(
            f"{name} says something else with other rows in its batch than alone (by {apart:.0%} of"
            " the difference between two texts): its positions or its masks do not allow for"
            " padding on the left, and such models cannot be sampled here: take another"
        )
    _tried.add(key)
    if noted is not None:
        with suppress(OSError):  # nothing is lost but the time of the next trial
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.touch()


def _check_cache(model: Any, name: str) -> None:
    """Refuse models without a cache of keys and values: rows in a batch are kept apart by it."""
    try:
        DynamicCache(config=model.config).get_seq_length()
    except ValueError as error:
        raise UserMistake(
            f"{name} has no layer with attention, and such models cannot be sampled here: take"
            " another"
        ) from error


def _tokens(model: Any, width: int) -> Tensor:
    """Different ordinary tokens, the same in every process."""
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    first = min(7, vocabulary - 1)
    places = torch.arange((ROWS + 1) * width)
    ids = places * 7919 % max(1, vocabulary - 8) + first
    return ids.view(ROWS + 1, width).to(model.device)


def _in_company(model: Any, ids_RT: Tensor, short: int, context: int) -> Tensor:
    """Logits behind the last tokens of the short rows, (R, V), by the lanes of the engine.

    All but the last tokens are read beside a row at the end of the context, as prompts are; that
    row then leaves, as rows do that have ended, a part of the padding goes with it, and the last
    tokens follow.
    """
    ids = ids_RT.cpu().numpy()
    width = ids.shape[1] - 1
    lanes = Lanes(model, None, 0, context)
    lanes.cache = lanes.empty_cache()
    policies = np.zeros(len(ids), dtype=np.int64)
    empty = np.array([0] * ROWS + [width - context])  # which puts the long row at the end
    lanes.read([*ids[:ROWS, -short - 1 : -1], ids[ROWS, :-1]], policies, empty, lanes.cache)
    if lanes.cache.get_seq_length() != width:
        raise TypeError("it does not use the cache that it is given")
    staying = list(range(ROWS))
    if lanes.mixes:
        lanes.cache = joined([Piece(lanes.cache, staying, staying)], ROWS, width - 1)
    else:
        lanes.cache.reorder_cache(torch.tensor(staying, device=model.device))
    lanes.policy_B = policies[:ROWS]
    lanes.empty_B = np.full(ROWS, lanes.cache.get_seq_length() - short)
    lanes.drawn_B = ids[:ROWS, -1]
    return lanes.step()


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """In here forward passes run; where one fails, the model is at fault, unless there is too
    little memory for anything.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever it is, this family fails in a way of its own
        if "memory" in str(error).lower():
            raise
        words = " ".join(str(error).split())[:160]
        raise UserMistake(
            f"{name} cannot be sampled here ({type(error).__name__}: {words}): rows of different"
            " length are decoded together with a cache of keys and values, which not every family"
            " can do: take another"
        ) from error


def _apart(alone_RV: Tensor, together_RV: Tensor) -> float:
    """Median over rows of the distance between what each says alone and in company, as a share of
    that between two rows.

    The median, since one row's rounding may choose another expert. Not a number where the weights
    are broken.
    """
    alone_RV = alone_RV - alone_RV.mean(1, keepdim=True)
    together_RV = together_RV - together_RV.mean(1, keepdim=True)
    between_R = (alone_RV - alone_RV.roll(1, 0)).norm(dim=1)
    return float(((alone_RV - together_RV).norm(dim=1) / between_R).median())
