"""The rows of one model that are decoded together: they leave and enter, and prompts are computed
once for all that share them.

Rows are sorted by policy, for a population. Leaves out: which rows those are (`engine.py`), what is
drawn (`tape.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from comas.engines.hf.prefill import PREFILL, Prompt, Split, distinct, passes, split
from comas.engines.hf.slots import Piece, Slots, holds, joined, windows_of
from comas.seams import AdaptedModel, CausalLM, cache_keyword

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
    ) -> None:
        """`context` is the number of positions that a row may have. Without `continuous` all rows
        begin together, whatever the cache; `prefill` is the number of padded prompt tokens in one
        pass.
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

    def make_room(self, live_B: np.ndarray) -> None:
        """Drop columns that no living row uses where the next one would lie behind the context.

        Some families keep a table of so many columns (GPT-Neo its causal mask, MPT its distances).
        A row that lives has room, so that the first column of each is empty as soon as as many are
        in use as the context has.
        """
        if self.mixes and self.cache.used > self.last_position:
            unused = int(self.empty_B[live_B].min())
            self.cache.drop(unused)
            self.empty_B = np.maximum(self.empty_B - unused, 0)

    def step(self) -> Tensor:
        """Logits behind the tokens that were drawn last, (B, V)."""
        ids_B1 = torch.from_numpy(self.drawn_B)[:, None]
        return self._forward(ids_B1, self.policy_B, self.empty_B, self.cache)

    def change(
        self,
        live_B: np.ndarray,
        rows: Sequence[int],
        prompts: Sequence[Prompt],
        draw: Callable[[Tensor, np.ndarray], np.ndarray],
    ) -> None:
        """Keep the rows that live, and begin `rows`, whose first tokens are drawn."""
        kept = np.flatnonzero(live_B)
        if not self.mixes:
            self._together(kept, rows, prompts, draw)
            return
        if not len(rows) and self._leave(kept):
            return
        stay = len(kept)
        policies = np.array([policy for policy, _ in prompts], dtype=np.int64)
        policy_B = np.concatenate([self.policy_B[kept], policies])
        order = np.argsort(policy_B, kind="stable")
        places = np.argsort(order).tolist()
        lengths = np.array([len(ids) for _, ids in prompts], dtype=np.int64)
        pieces: list[Piece] = []
        if stay:
            pieces.append(Piece(self.cache, kept.tolist(), places[:stay]))
            lengths = np.concatenate([self.cache.used - self.empty_B[kept], lengths])
        entering = np.array(rows, dtype=np.int64)
        entered, drawn = self._enter(entering, prompts, places[stay:], draw)
        lengths_B = lengths[order]
        columns = int(lengths_B.max())
        self.cache = joined([*pieces, *entered], len(order), columns)
        self.row_B = np.concatenate([self.row_B[kept], entering])[order]
        self.policy_B = policy_B[order]
        self.drawn_B = np.concatenate([self.drawn_B[kept], drawn])[order]
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
            drawn[part] = draw(logits[source], rows[part])
            pieces.append(Piece(cache, source, [places[i] for i in part]))
        return pieces, drawn

    def _leave(self, kept: np.ndarray) -> bool:
        """Rows go and none come: those that stay move within their buffers, unless too many columns
        would be empty.
        """
        if not self.moves or int(self.empty_B[kept].min()) > EMPTY * self.cache.used:
            return False
        self.cache.keep(kept.tolist())
        self._only(kept)
        return True

    def behind(self, prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], Tensor]]:
        """Places of prompts and the logits behind each, (N, V), pass by pass; nothing is begun."""
        if self.mixes:
            for places, _, logits in self._prefilled(prompts):
                yield places, logits
            return
        order, _, logits = self._read_whole(prompts)
        yield order, logits

    def _only(self, kept: np.ndarray) -> None:
        """Forget the other rows; the cache is somebody else's."""
        self.row_B = self.row_B[kept]
        self.policy_B = self.policy_B[kept]
        self.drawn_B = self.drawn_B[kept]
        self.empty_B = self.empty_B[kept]

    def _prefilled(self, prompts: Sequence[Prompt]) -> list[tuple[list[int], Slots, Tensor]]:
        """Per forward pass: which prompts it computes, their cache, logits behind each."""
        plan = split(prompts)
        if plan is not None:
            return [self._behind_heads(prompts, plan)]
        found = []
        for part in passes(*_shape(prompts)):
            cache, logits = self._pass([prompts[i] for i in part])
            found.append((part, cache, logits))
        return found

    def _behind_heads(
        self, prompts: Sequence[Prompt], plan: Split
    ) -> tuple[list[int], Slots, Tensor]:
        """All prompts sorted by policy, each behind the head that it shares: their order, their
        cache, logits behind each.
        """
        policies = np.array([policy for policy, _ in prompts])
        cut = np.array([max(0, len(ids) - plan.suffix) for _, ids in prompts])
        order = np.argsort(policies, kind="stable").tolist()
        place = np.argsort(order).tolist()
        heads = [(prompts[h][0], prompts[h][1][: cut[h]]) for h in plan.heads]
        lengths = np.array([len(ids) for _, ids in heads])
        pieces = []
        for part in passes(*_shape(heads)):
            cache, _ = self._pass([heads[h] for h in part])
            row_of = {head: row for row, head in enumerate(part)}
            members = [i for i in range(len(prompts)) if plan.of[i] in row_of]
            rows = [row_of[plan.of[i]] for i in members]
            places = [place[i] for i in members]
            less = [int(lengths[plan.of[i]] - cut[i]) for i in members]
            pieces.append(Piece(cache, rows, places, less))
        longest = int(cut.max())
        cache = joined(pieces, len(prompts), longest)
        suffixes = [prompts[i][1][cut[i] :] for i in order]
        logits = self._read(suffixes, policies[order], longest - cut[order], cache)
        return order, cache, logits

    def _pass(self, prompts: Sequence[Prompt]) -> tuple[Slots, Tensor]:
        """The cache of these prompts, and logits behind each."""
        cache = Slots(self.windows)
        policies = [policy for policy, _ in prompts]
        nothing = np.zeros(len(prompts), np.int64)
        logits = self._read([ids for _, ids in prompts], policies, nothing, cache)
        return cache, logits

    def _read(
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
        empty_B1 = torch.from_numpy(empty_B)[:, None]
        columns = torch.arange(held + ids_BT.shape[1])
        # padding has no position, and rows that have ended go on counting: behind the context there
        # is none either
        positions_BT = (columns[held:] - empty_B1).clamp(0, self.last_position)
        with self.adapted.routed(policy_B) if self.adapted else nullcontext():
            return self.model(
                input_ids=ids_BT.to(device),
                attention_mask=(columns >= empty_B1).long().to(device),
                position_ids=positions_BT.to(device),
                use_cache=True,
                logits_to_keep=self.last_column,
                **{self.cache_keyword: cache},
            ).logits[:, -1]

    def _together(
        self,
        kept: np.ndarray,
        rows: Sequence[int],
        prompts: Sequence[Prompt],
        draw: Callable[[Tensor, np.ndarray], np.ndarray],
    ) -> None:
        """Caches of another kind: rows may leave, and enter where no others are."""
        if len(kept):
            self.cache.reorder_cache(torch.from_numpy(kept).to(self.model.device))
            self._only(kept)
            return
        order, self.cache, logits = self._read_whole(prompts)
        self.row_B = np.array(rows)[order]
        self.policy_B = np.array([prompts[i][0] for i in order])
        lengths_B = np.array([len(prompts[i][1]) for i in order])
        self.empty_B = lengths_B.max() - lengths_B
        self.drawn_B = draw(logits, self.row_B)

    def _read_whole(self, prompts: Sequence[Prompt]) -> tuple[list[int], DynamicCache, Tensor]:
        """All prompts in one pass, for caches of another kind: their order, sorted by policy, their
        cache, logits behind each.
        """
        order = sorted(range(len(prompts)), key=lambda i: prompts[i][0])
        ids = [prompts[i][1] for i in order]
        policy_B = np.array([prompts[i][0] for i in order])
        cache = DynamicCache(config=self.model.config)
        logits = self._read(ids, policy_B, np.zeros(len(ids), np.int64), cache)
        return order, cache, logits


def _shape(prompts: Sequence[Prompt]) -> tuple[list[int], list[int]]:
    lengths = [len(ids) for _, ids in prompts]
    policies = [policy for policy, _ in prompts]
    return lengths, policies
