"""The rows of one model that are decoded together: they leave and enter, and prompts are computed
once for all that share them.

Keys and values lie in buffers that are written in place. All rows end at the same column and are
padded on the left, so that a plain 2D attention mask says everything, and any family whose layers
attend to all tokens or to a sliding window works as it is. Rows are sorted by policy, for a
population. Leaves out: which rows those are, what is drawn, prefixes of earlier calls (weights
change between them), trees of prefixes (one split for all prompts of a call), recurrent states,
compressed or chunked attention (`holds` says no to those), pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from comas.engines.batcher import moved
from comas.engines.hf.captured import AFTER, Capture, Captured, Capturing
from comas.seams import AdaptedModel, CausalLM, cache_keyword, uploaded

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
        beginnings = _split(prompts, suffix)
        prefixes = sum(len(prompts[h][1]) - suffix for h in beginnings.heads)
        computed = suffix * len(prompts) + prefixes
        if computed < least:
            least = computed
            best = beginnings
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


def passes(prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """Places of prompts of similar length for one forward pass each, sorted by policy."""
    part: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i][1])):
        if part:
            width = len(prompts[part[0]][1])
            if (len(part) + 1) * width > PREFILL or (
                len(prompts[i][1]) < 0.75 * width and len(part) * width >= ENOUGH
            ):
                yield sorted(part, key=lambda i: prompts[i][0])
                part = []
        part.append(i)
    yield sorted(part, key=lambda i: prompts[i][0])


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

    @property
    def is_compileable(self) -> bool:
        """True on a GPU: of a cache that says so transformers makes the mask of a token without a
        look at whether anything is masked, which waits for the GPU.
        """
        return self.keys is not None and self.keys.device.type != "cpu"

    def get_max_length(self) -> int:
        return self.window or -1

    def get_max_cache_shape(self) -> int:  # its name in older releases
        return self.get_max_length()


def _longer(old: Tensor | None, new: Tensor, used: int) -> Tensor:
    """A buffer for `new` behind the used part of `old`, and for what may follow."""
    rows, heads, more, width = new.shape
    buffer = new.new_empty(rows, heads, used + more + AHEAD, width)
    if old is not None:
        buffer[:, :, :used] = old[:, :, :used]
    return buffer


@dataclass(frozen=True)
class Piece:
    """Rows of a cache that move into another one."""

    cache: Slots
    rows: Sequence[int]
    """Rows of `cache`; one may be there several times."""
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
        layers: Any = self.layers
        for layer in layers:
            layer.keys = layer.keys[:, :, columns:]
            layer.values = layer.values[:, :, columns:]
            layer.used -= columns

    def cut(self, columns: int) -> None:
        """Forget all columns behind so many; nothing is copied."""
        layers: Any = self.layers
        for layer in layers:
            layer.used = columns

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
    slots = Slots(pieces[0].cache.windows, columns)
    moves = [_move(piece, columns) for piece in pieces]
    layers: Any = slots.layers
    for i, layer in enumerate(layers):
        layer.keys, layer.values = (
            _filled([getattr(p.cache.layers[i], name) for p in pieces], moves, rows, columns)
            for name in ("keys", "values")
        )
        layer.is_initialized = True
        for piece in pieces:  # layer by layer, so that never more than one of them is there twice
            piece.cache.layers[i].keys = piece.cache.layers[i].values = None  # type: ignore[union-attr]
    return slots


Move = tuple[Tensor, Tensor, range, Tensor | None]
"""A `Piece` as indices on the device: its rows, their places, the columns of the old cache that
move, and the same for each row, (R, N), where rows end differently.
"""


def _move(piece: Piece, columns: int) -> Move:
    """Made once for all layers."""
    used = piece.cache.used
    first: Any = piece.cache.layers[0]
    device = first.keys.device
    source, places = (uploaded(torch.tensor(x), device) for x in (piece.rows, piece.places))
    span = range(used - min(columns, used), used)
    own_RN = None
    if piece.less is not None:
        less = uploaded(torch.tensor(piece.less), device)
        own_RN = (torch.arange(span.start, span.stop, device=device) - less[:, None]).clamp(min=0)
    return source, places, span, own_RN


def _filled(buffers: Sequence[Tensor], moves: Sequence[Move], rows: int, columns: int) -> Tensor:
    _, heads, _, width = buffers[0].shape
    filled = buffers[0].new_empty(rows, heads, columns + AHEAD, width)
    for buffer, (source, places, span, own_RN) in zip(buffers, moves, strict=True):
        if own_RN is None:
            part = buffer[source, :, span.start : span.stop]
        else:
            part = buffer.transpose(1, 2)[source[:, None], own_RN].transpose(1, 2)
        empty = columns - len(span)
        filled[places, :, empty:columns] = part
        if empty:
            filled[places, :, :empty] = 0  # what is masked must still be finite
    return filled


EMPTY = 0.1
"""Share of the columns that may be empty in all rows before a cache is made anew."""


class Lanes:
    """Rows of a running batch; row b is request `row_B[b]`, whose last token `drawn_B[b]` has not
    been read by the model yet.
    """

    def __init__(
        self,
        model: CausalLM,
        adapted: AdaptedModel | None,
        pad_id: int,
        context: int,
        *,
        continuous: bool = True,
        prefill: int = PREFILL,
        capturing: Capturing | None = None,
    ) -> None:
        """`context` is the number of positions that a row may have. Without `continuous` all rows
        begin together, whatever the cache; `prefill` is the number of padded prompt tokens in one
        pass; `capturing` makes graphs of token steps.
        """
        self.model = model
        self.adapted = adapted
        self.prefill = prefill
        self.pad_id = pad_id
        self.cache_keyword = cache_keyword(model)
        self.last_position = context - 1
        self.row_B = np.zeros(0, dtype=np.int64)
        self.policy_B = np.zeros(0, dtype=np.int64)
        self.drawn_B = np.zeros(0, dtype=np.int64)
        self.empty_B = np.zeros(0, dtype=np.int64)
        """Columns of padding in front of each row."""
        self.mixes = continuous and holds(model.config)
        """Whether rows may enter while others run; where the cache is of another kind, all begin
        together.
        """
        self.moves = self.mixes and model.device.type == "cpu"
        """Whether leaving is cheap; on a GPU a copy per row would be too many calls."""
        self.windows = windows_of(model.config) if self.mixes else []
        # an index copies the column: of a view of it torch makes a product with the head per row,
        # and copies the head's weights for each of them (bfloat16: 57 MB a row of SmolLM2)
        self.last_column = torch.tensor([-1], device=model.device)
        self.cache: Any = None
        self._head: tuple[int, bytes] | None = None
        """Policy and tokens that `behind_head` read last, which the cache begins with."""
        self.capturing = capturing or Capturing(None, "")
        self._captured: Captured | None = None
        self._steps = 0
        """Steps with the rows of now."""

    def empty_cache(self) -> Any:
        """A cache of the kind that the model takes, for rows that begin together."""
        return Slots(self.windows) if self.mixes else DynamicCache(config=self.model.config)

    def make_room(self, live_B: np.ndarray) -> None:
        """Drop columns that no living row uses where the next one would lie behind the context.

        Some families keep a table of so many columns (GPT-Neo its causal mask, MPT its distances).
        A row that lives does not fill the context, so that the first column of each is empty as
        soon as as many are in use as the context has.
        """
        if self.mixes and self.cache.used > self.last_position:
            unused = int(self.empty_B[live_B].min())
            self.cache.drop(unused)
            self.empty_B = np.maximum(self.empty_B - unused, 0)

    def step(self) -> Tensor:
        """Logits behind the tokens that were drawn last, (B, V)."""
        captured = self._captured
        if captured is not None and captured.has(self.cache.layers[0], self.cache.used):
            logits_BV = captured.logits(self.drawn_B, self.empty_B, self.cache.used)
            for layer in self.cache.layers:
                layer.used += 1
            return logits_BV
        self._captured = None
        ids_B1 = torch.from_numpy(self.drawn_B)[:, None]
        logits_BV = self._forward(ids_B1, self.policy_B, self.empty_B, self.cache)
        self._steps += 1
        if self._captures() and self._steps >= AFTER:
            self._captured = self.capturing.of(self._capture, logits_BV)
        return logits_BV

    def _captures(self) -> bool:
        """Whether a graph is made of steps with rows like these."""
        sees_all = self.mixes and not any(self.windows)
        by_mask = self.model.config._attn_implementation == "sdpa"
        return self.capturing.make is not None and sees_all and by_mask

    def _capture(self, make: Capture) -> Captured:
        """A graph of the step that was made last."""
        step = self.drawn_B, self.empty_B, self.cache.used - 1

        def forward(ids_B1: Tensor, positions_B1: Tensor, seen: Tensor, cache: Cache) -> Tensor:
            with self.adapted.routed(self.policy_B) if self.adapted else nullcontext():
                return self._model(ids_B1, seen, positions_B1, cache)

        return Captured(self.cache.layers, step, self.last_position, forward, make)

    def change(
        self,
        live_B: np.ndarray,
        rows: Sequence[int],
        prompts: Sequence[Prompt],
        draw: Callable[[Tensor, np.ndarray], np.ndarray],
    ) -> None:
        """Keep the rows that live, and begin `rows`, whose first tokens are drawn."""
        self._captured = None
        self._steps = 0
        live_rows = np.flatnonzero(live_B)
        if not self.mixes:
            self._together(live_rows, rows, prompts, draw)
            return
        if not len(rows) and self._leave(live_rows):
            return
        stay = len(live_rows)
        policies = np.array([policy for policy, _ in prompts], dtype=np.int64)
        policy_B = np.concatenate([self.policy_B[live_rows], policies])
        order = np.argsort(policy_B, kind="stable")
        places = np.argsort(order).tolist()
        lengths = np.array([len(ids) for _, ids in prompts], dtype=np.int64)
        pieces: list[Piece] = []
        if stay:
            pieces.append(Piece(self.cache, live_rows.tolist(), places[:stay]))
            lengths = np.concatenate([self.cache.used - self.empty_B[live_rows], lengths])
        entering = np.array(rows, dtype=np.int64)
        entered, drawn = self._enter(entering, prompts, places[stay:], draw)
        lengths_B = lengths[order]
        columns = int(lengths_B.max())
        self.cache = joined([*pieces, *entered], len(order), columns)
        self.row_B = np.concatenate([self.row_B[live_rows], entering])[order]
        self.policy_B = policy_B[order]
        self.drawn_B = np.concatenate([self.drawn_B[live_rows], drawn])[order]
        self.empty_B = columns - lengths_B

    def _enter(
        self,
        rows: np.ndarray,
        prompts: Sequence[Prompt],
        places: Sequence[int],
        draw: Callable[[Tensor, np.ndarray], np.ndarray],
    ) -> tuple[list[Piece], np.ndarray]:
        """Caches of these prompts, of which those that are alike are computed once, to be placed at
        `places`; and the first tokens of `rows`.
        """
        pieces: list[Piece] = []
        drawn = np.zeros(len(rows), dtype=np.int64)
        if not prompts:
            return pieces, drawn
        first, of = distinct(prompts)
        served: list[list[int]] = [[] for _ in first]
        for prompt, member in enumerate(of):
            served[member].append(prompt)
        for members, cache, logits in self._prefilled([prompts[i] for i in first]):
            part: list[int] = []
            source: list[int] = []
            for row, member in enumerate(members):
                part += served[member]
                source += [row] * len(served[member])
            rows_of_logits = uploaded(torch.tensor(source), logits.device)
            drawn[part] = draw(logits.index_select(0, rows_of_logits), rows[part])
            pieces.append(Piece(cache, source, [places[i] for i in part]))
        return pieces, drawn

    def _leave(self, live_rows: np.ndarray) -> bool:
        """Rows go and none come: those that stay move within their buffers, unless too many columns
        would be empty.
        """
        if not self.moves or int(self.empty_B[live_rows].min()) > EMPTY * self.cache.used:
            return False
        self.cache.keep(live_rows.tolist())
        self._only(live_rows)
        return True

    def behind(self, prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], Tensor]]:
        """Places of prompts and the logits behind each, (N, V), pass by pass; nothing is begun."""
        for places, _, logits in self._prefilled(prompts):
            yield places, logits

    def behind_head(
        self, prompts: Sequence[Prompt], common: int
    ) -> Iterator[tuple[list[int], Tensor]]:
        """The place of each prompt and the logits behind it, (1, V). Its first `common` tokens are
        read before the others, unless they are those that were read last.
        """
        at_start = np.zeros(1, dtype=np.int64)
        for index, (policy, ids) in enumerate(prompts):
            head = _key((policy, ids[:common]), 0)
            if head != self._head:
                self.cache = self.empty_cache()
                self.read([ids[:common]], [policy], at_start, self.cache)
                self._head = head
            self.cache.cut(common)
            yield [index], self.read([ids[common:]], [policy], at_start, self.cache)

    def _only(self, live_rows: np.ndarray) -> None:
        """Forget the other rows; the cache is somebody else's."""
        self.row_B = self.row_B[live_rows]
        self.policy_B = self.policy_B[live_rows]
        self.drawn_B = self.drawn_B[live_rows]
        self.empty_B = self.empty_B[live_rows]

    def _prefilled(self, prompts: Sequence[Prompt]) -> list[tuple[list[int], Any, Tensor]]:
        """Per forward pass: which prompts it computes, sorted by policy, their cache, logits behind
        each. Caches of another kind cannot be joined: there all prompts are one pass.
        """
        if not self.mixes:
            parts = [sorted(range(len(prompts)), key=lambda i: prompts[i][0])]
        elif plan := split(prompts):
            return [self._behind_heads(prompts, plan)]
        else:
            parts = list(passes(prompts))
        return [(part, *self._pass([prompts[i] for i in part])) for part in parts]

    def _behind_heads(
        self, prompts: Sequence[Prompt], plan: Split
    ) -> tuple[list[int], Slots, Tensor]:
        """All prompts sorted by policy, each behind the head that it shares: their order, their
        cache, logits behind each.
        """
        policies = np.array([policy for policy, _ in prompts])
        cut = np.array([max(0, len(ids) - plan.suffix) for _, ids in prompts])
        order = np.argsort(policies, kind="stable").tolist()
        position_of = np.argsort(order).tolist()
        heads = [(prompts[h][0], prompts[h][1][: cut[h]]) for h in plan.heads]
        lengths = np.array([len(ids) for _, ids in heads])
        pieces = []
        for part in passes(heads):
            cache, _ = self._pass([heads[h] for h in part])
            row_of = {head: row for row, head in enumerate(part)}
            members = [i for i in range(len(prompts)) if plan.of[i] in row_of]
            rows = [row_of[plan.of[i]] for i in members]
            places = [position_of[i] for i in members]
            less = [int(lengths[plan.of[i]] - cut[i]) for i in members]
            pieces.append(Piece(cache, rows, places, less))
        longest = int(cut.max())
        cache = joined(pieces, len(prompts), longest)
        suffixes = [prompts[i][1][cut[i] :] for i in order]
        logits = self.read(suffixes, policies[order], longest - cut[order], cache)
        return order, cache, logits

    def _pass(self, prompts: Sequence[Prompt]) -> tuple[Any, Tensor]:
        """The cache of these prompts, and logits behind each."""
        cache = self.empty_cache()
        policies = [policy for policy, _ in prompts]
        nothing = np.zeros(len(prompts), np.int64)
        logits = self.read([ids for _, ids in prompts], policies, nothing, cache)
        return cache, logits

    def read(
        self, ids: Sequence[np.ndarray], policy_B: Any, empty_B: np.ndarray, cache: Any
    ) -> Tensor:
        """Logits behind these tokens, which follow what the cache holds; in columns, so that a pass
        stays within `prefill`.
        """
        width = max(map(len, ids))
        ids_BT = np.full((len(ids), width), self.pad_id)
        for row, own in zip(ids_BT, ids, strict=True):
            row[width - len(own) :] = own
        short_B = np.array([width - len(own) for own in ids])
        logits = None
        for part in torch.from_numpy(ids_BT).split(max(1, self.prefill // len(ids)), 1):
            logits = self._forward(part, policy_B, empty_B + short_B, cache)
        assert logits is not None
        return logits

    def _forward(self, ids_BT: Tensor, policy_B: Any, empty_B: np.ndarray, cache: Any) -> Tensor:
        """Logits of the last tokens, (B, V); rows of a population go through their adapters."""
        device = self.model.device
        held = cache.get_seq_length()
        size = ids_BT.numel()
        # one upload: what follows from these numbers is made where the model is
        numbers = uploaded(torch.cat([ids_BT.flatten(), torch.from_numpy(empty_B)]), device)
        empty_B1 = numbers[size:, None]
        columns = torch.arange(held + ids_BT.shape[1], device=device)
        # padding has no position, and rows that have ended go on counting: behind the context there
        # is none either
        positions_BT = (columns[held:] - empty_B1).clamp(0, self.last_position)
        with self.adapted.routed(policy_B) if self.adapted else nullcontext():
            ids_BT = numbers[:size].view(ids_BT.shape)
            return self._model(ids_BT, (columns >= empty_B1).long(), positions_BT, cache)

    def _model(self, ids_BT: Tensor, mask: Tensor, positions_BT: Tensor, cache: Any) -> Tensor:
        """Logits of the last tokens, (B, V)."""
        return self.model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions_BT,
            use_cache=True,
            logits_to_keep=self.last_column,
            **{self.cache_keyword: cache},
        ).logits[:, -1]

    def _together(
        self,
        live_rows: np.ndarray,
        rows: Sequence[int],
        prompts: Sequence[Prompt],
        draw: Callable[[Tensor, np.ndarray], np.ndarray],
    ) -> None:
        """Caches of another kind: rows may leave, and enter where no others are."""
        if len(live_rows):
            self.cache.reorder_cache(uploaded(torch.from_numpy(live_rows), self.model.device))
            self._only(live_rows)
            return
        [(order, self.cache, logits)] = self._prefilled(prompts)
        self.row_B = np.array(rows)[order]
        self.policy_B = np.array([prompts[i][0] for i in order])
        lengths_B = np.array([len(prompts[i][1]) for i in order])
        self.empty_B = lengths_B.max() - lengths_B
        self.drawn_B = draw(logits, self.row_B)
