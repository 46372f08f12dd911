"""Sampling with torch: any Hugging Face causal LM, whole or as a population, and a stacked fast path for teams of small Llamas.

Requests of all policies are decoded together; finished rows leave the batch as it goes. Fixed order, so that the batch
is a function of the program. Leaves out: rows that enter a running batch, paged caches (vLLM has them).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from comas.engines.llama import StackedLlama, can_stack
from comas.engines.sampling import draw, uniforms
from comas.learners.population import Population
from comas.types import Generation, Request, always

PREFILL = 8192
"""Padded prompt tokens in one forward pass, more where there are more rows: bounds memory."""
DRAWN = 2**22
"""Probabilities, in float64, from which tokens are drawn at once, more where a vocabulary is larger: bounds memory."""
SHRINK = 0.75
"""A batch is packed when the living rows fall below this share of it."""


def use_threads(count: int | None) -> None:
    """Threads of torch in this process; None is one per CPU that it may use (torch itself counts the machine's)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(count or allowed)


@dataclass
class _Tape:
    """What has been drawn so far for R requests; row r holds `length[r]` tokens."""

    requests: Sequence[Request]
    end_ids: np.ndarray

    def __post_init__(self) -> None:
        R = len(self.requests)
        self.limit_R = np.array([r.sampling.max_tokens for r in self.requests])
        self.ids_RT = np.zeros((R, int(self.limit_R.max())), dtype=np.int64)
        self.logprobs_RT = np.zeros(self.ids_RT.shape, dtype=np.float32)
        self.margin_R, self.length_R = np.ones(R), np.zeros(R, dtype=np.int64)
        self.alive_R, self.ended_R = np.ones(R, dtype=bool), np.zeros(R, dtype=bool)
        self.seconds_R, self.began = np.zeros(R), time.monotonic()
        self.noise_RT = uniforms([r.seed for r in self.requests], self.ids_RT.shape[1])
        self.temperature_R = np.array([r.sampling.temperature for r in self.requests])
        self.top_p_R = np.array([r.sampling.top_p for r in self.requests])

    def draw(self, logits_BV: torch.Tensor, rows_B: np.ndarray, step: int) -> np.ndarray:
        """Draw token `step` for requests `rows_B`; entries of -1 are padding. Returns the ids, shape (B,)."""
        rows = np.maximum(rows_B, 0)
        move = lambda a: torch.from_numpy(a[rows]).to(logits_BV.device)  # noqa: E731
        size = max(1, DRAWN // logits_BV.shape[1])
        given = (logits_BV, move(self.noise_RT[:, step]), move(self.temperature_R), move(self.top_p_R))
        parts = [draw(*part) for part in zip(*(g.split(size) for g in given), strict=True)]
        ids_B, logprobs_B, margin_B = (torch.cat(t).cpu().numpy() for t in zip(*parts, strict=True))
        live_B = (rows_B >= 0) & self.alive_R[rows]
        r = rows[live_B]
        self.ids_RT[r, step], self.logprobs_RT[r, step] = ids_B[live_B], logprobs_B[live_B]
        self.margin_R[r] = np.minimum(self.margin_R[r], margin_B[live_B])
        self.length_R[r] = step + 1
        self.ended_R[r] = (ids_B[live_B][:, None] == self.end_ids).any(1)
        done = r[self.ended_R[r] | (self.limit_R[r] == step + 1)]
        self.alive_R[done] = False
        self.seconds_R[done] = time.monotonic() - self.began
        return ids_B

    def generations(self) -> list[Generation]:
        return [
            Generation(
                self.ids_RT[i, :n].copy(), self.logprobs_RT[i, :n].copy(), bool(self.ended_R[i]), float(self.margin_R[i]),
                float(self.seconds_R[i]),
            )
            for i, n in enumerate(self.length_R)
        ]


class TorchEngine:
    """Samples for one or more policies: a population, or models (policy -> Hugging Face causal LM), on one device."""

    def __init__(
        self, weights: Mapping[str, Any] | Population, end_ids: Sequence[int], pad_id: int, context: int, max_rows: int = 512
    ) -> None:
        self.end_ids, self.pad_id, self.max_rows, self.context = np.array(sorted(end_ids)), pad_id, max_rows, context
        self.population = weights if isinstance(weights, Population) else None
        self.policies = weights.policies if isinstance(weights, Population) else sorted(weights)
        self.models = {} if isinstance(weights, Population) else {p: weights[p] for p in self.policies}
        listed = [self.population.model] if self.population else list(self.models.values())
        on_cpu = listed[0].device.type == "cpu"
        self.stack = StackedLlama(listed[0].config, self._states(), context) if on_cpu and can_stack(listed) else None

    def refresh(self, weights: Mapping[str, Any] | Population) -> None:
        """Sample from these from now on; a population is the one that there was."""
        if not isinstance(weights, Population):
            self.models.update(weights)
        if self.stack is not None:
            self.stack.load(self._states())

    def _states(self) -> list[dict[str, torch.Tensor]]:
        """Whole weights of every policy, for stacking: small models only."""
        if self.population is None:
            return [self.models[p].state_dict() for p in self.policies]
        return [{**self.population.model.state_dict(), **self.population.merged(p)} for p in self.policies]

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], wanted: Callable[[], bool] = always) -> list[Generation]:
        """One generation per request, in their order; once `wanted` says no, they end where they are."""
        places: dict[str, list[int]] = {p: [i for i, r in enumerate(requests) if r.policy == p] for p in self.policies}
        if sum(map(len, places.values())) != len(requests):
            unknown = sorted({r.policy for r in requests} - set(self.policies))
            raise KeyError(f"no policy {', '.join(unknown)} at this engine: it has {', '.join(self.policies)}")
        done: list[Generation | None] = [None] * len(requests)
        with self.population.sampling() if self.population and self.stack is None else nullcontext():
            for batch in self._batches(places):
                rows = [i for column in batch.values() for i in column]
                run = self._decode_stack if self.stack is not None else self._decode
                for i, generation in zip(rows, run(batch, [requests[i] for i in rows], wanted), strict=True):
                    done[i] = generation
        return [g for g in done if g is not None]

    def _batches(self, places: dict[str, list[int]]) -> list[dict[str, list[int]]]:
        """Grids of all policies where they are stacked, all policies of a population together, otherwise one at a time."""
        n = self.max_rows
        if self.population and self.stack is None:
            listed = [(p, i) for p, rows in places.items() for i in rows]
            parts = [listed[k : k + n] for k in range(0, len(listed), n)]
            return [{p: [i for q, i in part if q == p] for p in self.policies} for part in parts]
        if self.stack is None:
            return [{p: rows[i : i + n]} for p, rows in places.items() for i in range(0, len(rows), n)]
        n = max(1, self.max_rows // len(places))
        most = max(map(len, places.values()))
        return [{p: rows[i : i + n] for p, rows in places.items()} for i in range(0, most, n)]

    def _decode(self, batch: dict[str, list[int]], requests: Sequence[Request], wanted: Callable[[], bool]) -> list[Generation]:
        """The Hugging Face forward with a dynamic cache, prompts padded on the left."""
        policy_B = np.repeat(np.arange(len(batch)), [len(rows) for rows in batch.values()])
        model = self.population.model if self.population else self.models[next(iter(batch))]
        tape = _Tape(requests, self.end_ids)
        lengths = [len(r.prompt_ids) for r in requests]
        width, device = max(lengths), model.device
        ids_BT = torch.full((len(requests), width), self.pad_id)
        attend_BT = torch.zeros(len(requests), width, dtype=torch.long)
        for i, request in enumerate(requests):
            ids_BT[i, width - lengths[i] :] = torch.from_numpy(request.prompt_ids)
            attend_BT[i, width - lengths[i] :] = 1
        ids_BT, attend_BT, cache = ids_BT.to(device), attend_BT.to(device), DynamicCache(config=model.config)
        positions_BT = (attend_BT.cumsum(1) - 1).clamp(min=0)
        rows_B = np.arange(len(requests))
        *parts, (ids_BT, positions_BT) = _slices(ids_BT, positions_BT)
        for seen, (ids, positions) in zip(np.cumsum([p[0].shape[1] for p in parts]), parts, strict=True):
            self._forward(model, policy_B, ids, attend_BT[:, :seen], positions, cache)
        for step in range(tape.ids_RT.shape[1]):
            logits = self._forward(model, policy_B, ids_BT, attend_BT, positions_BT, cache)
            drawn_B = tape.draw(logits, rows_B, step)
            live_B = tape.alive_R[rows_B]
            if not live_B.any() or not wanted():
                break
            ids_BT, positions_BT = torch.from_numpy(drawn_B).to(device)[:, None], positions_BT[:, -1:] + 1
            attend_BT = torch.cat([attend_BT, attend_BT.new_ones(len(rows_B), 1)], 1)
            if live_B.mean() < SHRINK:
                kept = torch.from_numpy(np.flatnonzero(live_B)).to(device)
                cache.batch_select_indices(kept)
                rows_B, policy_B = rows_B[live_B], policy_B[live_B]
                ids_BT, positions_BT, attend_BT = ids_BT[kept], positions_BT[kept], attend_BT[kept]
        return tape.generations()

    def _forward(
        self, model: Any, policy_B: np.ndarray, ids_BT: torch.Tensor, attend_BS: torch.Tensor, positions_BT: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """Logits of the last tokens, (B, V); rows of a population go through their adapters."""
        with self.population.routed(policy_B) if self.population else nullcontext():
            return model(
                input_ids=ids_BT, attention_mask=attend_BS, position_ids=positions_BT, past_key_values=cache, use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]

    def _decode_stack(
        self, batch: dict[str, list[int]], requests: Sequence[Request], wanted: Callable[[], bool]
    ) -> list[Generation]:
        """All policies as one grid of P x B rows; row -1 is padding of the grid."""
        stack, tape = self.stack, _Tape(requests, self.end_ids)
        assert stack is not None
        rows_PB = _grid([len(column) for column in batch.values()], np.cumsum([0, *map(len, batch.values())]))
        ids_PBT, pad_N = self._prompts(requests, rows_PB)
        P, (_, B, T) = len(batch), ids_PBT.shape
        room = T + int(tape.limit_R.max())
        stack.start(P, B, room)
        positions = (torch.arange(T) - pad_N[:, None]).clamp(min=0)
        query, key = torch.arange(T)[:, None], torch.arange(T)[None]
        seen = (key <= query) & (key >= pad_N[:, None, None]) | (key == query)  # padding sees itself: no row without keys
        logits_PBV = stack.forward(ids_PBT, positions.view(P, B, T), 0, _additive(seen, stack.dtype)[:, None])
        mask_N11S = _additive(torch.arange(room) >= pad_N[:, None], stack.dtype)[:, None, None]
        positions_N = T - pad_N
        for step in range(room - T):
            flat_N = rows_PB.reshape(-1)
            drawn_N = tape.draw(logits_PBV.view(len(flat_N), -1), flat_N, step)
            live_N = (flat_N >= 0) & tape.alive_R[np.maximum(flat_N, 0)]
            if not live_N.any() or not wanted():
                break
            widest = int(live_N.reshape(P, -1).sum(1).max())
            if widest < SHRINK * rows_PB.shape[1]:
                order = np.argsort(~live_N.reshape(P, -1), axis=1, kind="stable")[:, :widest]
                kept = (order + np.arange(P)[:, None] * rows_PB.shape[1]).reshape(-1)
                rows_PB = np.where(live_N, flat_N, -1)[kept].reshape(P, widest)
                kept_N = torch.from_numpy(kept)
                stack.select(kept_N)
                mask_N11S, positions_N, drawn_N = mask_N11S[kept_N], positions_N[kept_N], drawn_N[kept]
            shape = (P, rows_PB.shape[1], 1)
            ids = torch.from_numpy(drawn_N).view(shape)
            logits_PBV = stack.forward(ids, positions_N.view(shape), T + step, mask_N11S[..., : T + step + 1])
            positions_N = positions_N + 1
        return tape.generations()

    def _prompts(self, requests: Sequence[Request], rows_PB: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts of a grid padded on the left, (P, B, T), and the length of the padding, (P * B,)."""
        width = max(len(r.prompt_ids) for r in requests)
        ids_NT = np.full((rows_PB.size, width), self.pad_id)
        pad_N = np.zeros(rows_PB.size, dtype=np.int64)
        for n, row in enumerate(rows_PB.reshape(-1)):
            if row >= 0:
                pad_N[n] = width - len(requests[row].prompt_ids)
                ids_NT[n, pad_N[n] :] = requests[row].prompt_ids
        return torch.from_numpy(ids_NT).view(*rows_PB.shape, width), torch.from_numpy(pad_N)


def _slices(ids_BT: torch.Tensor, positions_BT: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Prompts in columns of at most PREFILL tokens."""
    size = max(1, PREFILL // len(ids_BT))
    return list(zip(ids_BT.split(size, 1), positions_BT.split(size, 1), strict=True))


def _grid(counts: list[int], offsets: np.ndarray) -> np.ndarray:
    grid = np.full((len(counts), max(counts)), -1)
    for p, n in enumerate(counts):
        grid[p, :n] = np.arange(offsets[p], offsets[p] + n)
    return grid


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf)
