"""A token step as one graph: on a GPU its thousand calls are made once and replayed with each
token.

A graph repeats what it saw, with the tensors that it saw. So whatever differs from token to token
lies in a tensor: the tokens, the empty columns of each row, and the column that is written. All
columns of the buffers are read, those behind the token masked. A graph is for one set of rows and
their buffers, is made after some steps with them, and is used if it repeats the last of them.
Leaves out: prompts, drawing, sliding windows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from comas.seams import out_of_memory, uploaded

LOG = logging.getLogger("comas")

Run = Callable[[], Tensor]
Capture = Callable[[Run], Run]
"""Makes a graph of a function: what it returns repeats the function's operators, on the tensors
that they had, and returns the tensor that they wrote.
"""
AFTER = 4
"""Steps with the same rows before a graph of them is made, which takes as long as a few."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Relative distance of logits, as a graph and as calls: another kernel reads more columns."""


def cuda_graph(run: Run) -> Run:
    """A `Capture` on a GPU; the function runs once before, so that libraries have their memory."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        run()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class _Columns(CacheLayerMixin):
    """The buffers of a layer, of which one column is written and all are read."""

    def __init__(self, keys: Tensor, values: Tensor, column_1: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.values = values
        self.is_initialized = True
        self.column_1 = column_1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Buffers are given."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys.index_copy_(2, self.column_1, key_states)
        self.values.index_copy_(2, self.column_1, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    def get_max_length(self) -> int:
        return self.get_seq_length()

    def get_max_cache_shape(self) -> int:  # its name in older releases
        return self.get_seq_length()


Forward = Callable[[Tensor, Tensor, Tensor, Cache], Tensor]
"""`forward(ids (B, 1), positions (B, 1), mask (B, 1, 1, K), cache)` -> logits (B, V)."""


class Captured:
    """The graph of a token step of some rows."""

    def __init__(
        self,
        layers: Sequence[Any],
        step: tuple[np.ndarray, np.ndarray, int],
        last_position: int,
        forward: Forward,
        make: Capture,
    ) -> None:
        """`layers` have the buffers `keys` and `values`, (B, heads, K, width). `step` is one that
        was made: its tokens (B,), the empty columns of each row (B,), the column that it wrote,
        which is written again.
        """
        self.keys: Tensor = layers[0].keys
        device = self.keys.device
        for layer in layers:  # what is masked must still be finite
            layer.keys[:, :, step[2] + 1 :] = 0
            layer.values[:, :, step[2] + 1 :] = 0
        self._numbers = _numbers(*step, device)
        rows = len(step[0])
        ids_B, empty_B, column_1 = self._numbers.split([rows, rows, 1])
        columns_K = torch.arange(self.keys.shape[2], device=device)
        cache = Cache(layers=[_Columns(layer.keys, layer.values, column_1) for layer in layers])

        def run() -> Tensor:
            empty_B1 = empty_B[:, None]
            positions_B1 = (column_1 - empty_B1).clamp(0, last_position)
            seen_BK = (columns_K <= column_1) & (columns_K >= empty_B1)
            return forward(ids_B[:, None], positions_B1, seen_BK[:, None, None], cache)

        self._replay = make(run)

    def has(self, layer: Any, column: int) -> bool:
        """Whether this is the first layer of the buffers that it was made for, and the column in
        them.
        """
        return layer.keys is self.keys and column < self.keys.shape[2]

    def repeated(self) -> Tensor:
        """Logits of the last step, (B, V), anew."""
        return self._replay()

    def logits(self, ids_B: np.ndarray, empty_B: np.ndarray, column: int) -> Tensor:
        """Logits behind these tokens, (B, V), which the next call overwrites."""
        self._numbers.copy_(_numbers(ids_B, empty_B, column, self._numbers.device))
        return self._replay()


def _numbers(ids_B: np.ndarray, empty_B: np.ndarray, column: int, device: Any) -> Tensor:
    return uploaded(torch.from_numpy(np.concatenate([ids_B, empty_B, [column]])), device)


class Capturing:
    """Makes graphs of one model's steps, until one of them fails."""

    def __init__(self, make: Capture | None, host: str) -> None:
        """`make` is None where there are none."""
        self.make = make
        self.host = host

    def of(self, step: Callable[[Capture], Captured], expected_BV: Tensor) -> Captured | None:
        """A graph which, when it has been made, repeats the logits of its step; otherwise None, and
        no further ones.

        `step` makes it.
        """
        assert self.make is not None
        try:
            captured = step(self.make)
            distance = (captured.repeated() - expected_BV).double().norm()
            apart = float(distance / expected_BV.double().norm())
            if apart <= TOLERANCE[expected_BV.dtype]:
                return captured
            reason = f"a graph's logits are {apart:.2g} away"
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:160]
        self.make = None
        LOG.warning("hosts.%s: a token's calls are not made as one graph: %s", self.host, reason)
        return None
