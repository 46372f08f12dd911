"""Keys and values of a running batch in buffers that are written in place: rows leave, enter and
share what is computed once.

All rows end at the same column and are padded on the left, so that a plain 2D attention mask says
everything, and any family whose layers attend to all tokens or to a sliding window works as it is.
Leaves out: recurrent states, compressed or chunked attention (`holds` says no to those), pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from comas.engines.rows import moved

AHEAD = 128
"""Columns by which a full buffer grows: it is copied once in so many tokens, not with each."""


def holds(config: Any) -> bool:
    """Whether models of this config keep nothing but keys and values, each layer its own."""
    text = config.get_text_config(decoder=True)
    layer_types = getattr(text, "layer_types", None) or ()
    if "chunked_attention" in layer_types or getattr(text, "attention_chunk_size", None):
        return False
    if getattr(text, "num_kv_shared_layers", None):
        return False
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    return kinds <= {DynamicLayer, DynamicSlidingWindowLayer}


class _Layer(CacheLayerMixin):
    """Buffers of one layer; the first `used` columns are in use."""

    def __init__(self, window: int | None, used: int = 0) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.used = used

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Buffers come with the first tokens (`update`)."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        first = self._first()
        end = self.used + key_states.shape[-2]
        if self.keys is None or end > self.keys.shape[-2]:
            self.keys, self.values = (
                _longer(self.keys, key_states, self.used),
                _longer(self.values, value_states, self.used),
            )
            self.is_initialized = True
        assert self.values is not None
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, first:end], self.values[:, :, first:end]

    def _first(self) -> int:
        """The first column that the next token sees."""
        return max(0, self.used - self.window + 1) if self.window else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length - self._first(), self._first()

    def get_seq_length(self) -> int:
        return self.used

    def get_max_length(self) -> int:
        return self.window or -1

    def get_max_cache_shape(self) -> int:  # its name in older releases
        return self.get_max_length()


def _longer(old: Tensor | None, new: Tensor, used: int) -> Tensor:
    """A buffer for `new` behind the used part of `old`, and for what may follow."""
    rows, heads, more, width = new.shape
    made = new.new_empty(rows, heads, used + more + AHEAD, width)
    if old is not None:
        made[:, :, :used] = old[:, :, :used]
    return made


@dataclass(frozen=True)
class Piece:
    """Rows of a cache that move into another one."""

    cache: Slots
    rows: Sequence[int]
    """Of `cache`; a row may be there several times."""
    places: Sequence[int]
    """Where they go."""
    less: Sequence[int] | None = None
    """Tokens at the end of each row that do not move."""


class Slots(Cache):
    """A cache of as many rows as the first tokens that it is given."""

    def __init__(self, windows: Sequence[int | None], used: int = 0) -> None:
        """`windows` are those of the layers, None where a layer sees everything."""
        self.windows = tuple(windows)
        super().__init__(layers=[_Layer(w, used) for w in self.windows])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in ascending order."""
        used = self.used
        layers: Any = self.layers
        for layer in layers:
            layer.keys = moved(layer.keys, rows, used)
            layer.values = moved(layer.values, rows, used)

    def drop(self, columns: int) -> None:
        """Forget the first columns of all rows; nothing is copied."""
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys = layer.keys[:, :, columns:]
            layer.values = layer.values[:, :, columns:]
            layer.used -= columns

    @property
    def used(self) -> int:
        """Columns in use."""
        return self.layers[0].get_seq_length()  # type: ignore[union-attr]


def windows_of(config: Any) -> list[int | None]:
    """Sliding windows of the layers of a model that `holds`."""
    return [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=config).layers]


def joined(pieces: Sequence[Piece], rows: int, columns: int) -> Slots:
    """A cache of these rows that ends where all of them end; `columns` is the length of the
    longest. Uses the pieces up.
    """
    made = Slots(pieces[0].cache.windows, columns)
    moves = [_move(piece, columns) for piece in pieces]
    for i, layer in enumerate(made.layers):
        assert isinstance(layer, _Layer)
        layer.keys, layer.values = (
            _filled([getattr(p.cache.layers[i], name) for p in pieces], moves, rows, columns)
            for name in ("keys", "values")
        )
        layer.is_initialized = True
        for piece in pieces:  # layer by layer, so that never more than one of them is there twice
            piece.cache.layers[i].keys = piece.cache.layers[i].values = None  # type: ignore[union-attr]
    return made


@dataclass(frozen=True)
class _Move:
    """A `Piece` as indices on the device; once for all layers, since a GPU is waited for with each
    list that it is given.
    """

    source: Tensor
    places: Tensor
    columns: range
    """Those of the old cache that move, where all rows end alike."""
    own_RN: Tensor | None
    """The same for each row, where they do not."""


def _move(piece: Piece, columns: int) -> _Move:
    used = piece.cache.used
    first: Any = piece.cache.layers[0]
    device = first.keys.device
    source, places = (torch.tensor(x, device=device) for x in (piece.rows, piece.places))
    moved = range(used - min(columns, used), used)
    if piece.less is None:
        return _Move(source, places, moved, None)
    less = torch.tensor(piece.less, device=device)
    own_RN = (torch.arange(moved.start, moved.stop, device=device) - less[:, None]).clamp(min=0)
    return _Move(source, places, moved, own_RN)


def _filled(buffers: Sequence[Tensor], moves: Sequence[_Move], rows: int, columns: int) -> Tensor:
    _, heads, _, width = buffers[0].shape
    made = buffers[0].new_empty(rows, heads, columns + AHEAD, width)
    for buffer, move in zip(buffers, moves, strict=True):
        n = len(move.columns)
        if move.own_RN is None:
            part = buffer[move.source, :, move.columns.start : move.columns.stop]
        else:
            part = buffer.transpose(1, 2)[move.source[:, None], move.own_RN].transpose(1, 2)
        made[move.places, :, columns - n : columns] = part
        if n < columns:
            made[move.places, :, : columns - n] = 0  # what is masked must still be finite
    return made
