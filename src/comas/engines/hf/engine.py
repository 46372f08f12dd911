"""Sampling with torch: any Hugging Face causal LM, whole or as a population, and a stacked fast
path for teams of small Llamas.

Requests of all policies are decoded together. Where rows have ended, they leave, and on the general
path the next requests take their places, in an order that depends on the requests alone: the batch
is a function of the program. Leaves out: paged caches (vLLM has them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from comas.engines.hf.compiled import Compiled
from comas.engines.hf.lanes import Lanes
from comas.engines.hf.packed import Packed, can_pack
from comas.engines.stacked import StackedLlama, can_stack
from comas.engines.tape import Tape
from comas.learners.lora.population import Population
from comas.types import Generation, Meter, Request, UserMistake, always

SHRINK = 0.75
"""A batch is packed, and filled with waiting requests, when the living rows fall below this share
of it.
"""
LEAVE = 0.9
"""The same where rows only leave, and those that stay move within their buffers."""
SLOTS = 16
"""Rows whose padding differs by fewer slots are read together."""


def use_threads(count: int | None) -> None:
    """Threads of torch in this process; None is one per CPU that it may use (torch itself counts
    the machine's).
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    torch.set_num_threads(count or allowed)


class TorchEngine:
    """Samples for one or more policies: a population, or models (policy -> Hugging Face causal LM),
    on one device.
    """

    def __init__(
        self,
        weights: Mapping[str, Any] | Population,
        end_ids: Sequence[int],
        pad_id: int,
        context: int,
        max_rows: int = 512,
        compiled: bool = False,
    ) -> None:
        self.end_ids = np.array(sorted(end_ids))
        self.pad_id = pad_id
        self.max_rows = max_rows
        self.context = context
        self.population = weights if isinstance(weights, Population) else None
        self.policies = weights.policies if isinstance(weights, Population) else sorted(weights)
        self.models = (
            {} if isinstance(weights, Population) else {p: weights[p] for p in self.policies}
        )
        listed = [self.population.model] if self.population else list(self.models.values())
        on_cpu = listed[0].device.type == "cpu"
        self.stack = (
            StackedLlama(listed[0].config, self._states(), context)
            if on_cpu and can_stack(listed)
            else None
        )
        self.packed: dict[str, Packed] = {}
        self.meter = Meter()
        self.compiled: dict[str, Compiled] | None = {} if compiled else None
        if self.stack is None:
            self._prepare(
                {
                    p: self.population.model if self.population else self.models[p]
                    for p in self.policies
                }
            )
        elif compiled:
            raise UserMistake(
                "hosts.<name>.compile: small Llamas on a CPU are decoded as one stack, which was"
                " slower when it was compiled: leave it out"
            )

    def refresh(self, weights: Mapping[str, Any] | Population) -> None:
        """Sample from these from now on; a population is the one that there was."""
        if not isinstance(weights, Population):
            self.models.update(weights)
            if self.stack is None:
                self._prepare(weights)
        if self.stack is not None:
            self.stack.load(self._states())

    def _prepare(self, models: Mapping[str, Any]) -> None:
        """Compile these, or copy their weights on a CPU; all policies of a population share what is
        made of their base.
        """
        if self.compiled is not None:
            known = {id(c.model): c for c in self.compiled.values()}
            for policy, model in models.items():
                self.compiled[policy] = known[id(model)] = known.get(id(model)) or Compiled(model)
        else:
            made = {id(m): Packed(m) for m in models.values() if can_pack(m)}
            self.packed.update({p: made[id(m)] for p, m in models.items() if id(m) in made})

    def _states(self) -> list[dict[str, torch.Tensor]]:
        """Whole weights of every policy, for stacking: small models only."""
        if self.population is None:
            return [self.models[p].state_dict() for p in self.policies]
        return [
            {**self.population.model.state_dict(), **self.population.merged(p)}
            for p in self.policies
        ]

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], wanted: Callable[[], bool] = always
    ) -> list[Generation]:
        """One generation per request, in their order; once `wanted` says no, they end where they
        are.
        """
        places: dict[str, list[int]] = {
            p: [i for i, r in enumerate(requests) if r.policy == p] for p in self.policies
        }
        if sum(map(len, places.values())) != len(requests):
            unknown = sorted({r.policy for r in requests} - set(self.policies))
            raise KeyError(
                f"no policy {', '.join(unknown)} at this engine: it has {', '.join(self.policies)}"
            )
        self._check_room(requests)
        done: list[Generation | None] = [None] * len(requests)
        with (
            self.population.sampling() if self.population and self.stack is None else nullcontext()
        ):
            for batch in self._batches(places, requests):
                rows = [i for column in batch.values() for i in column]
                for i, generation in zip(
                    rows, self._run(batch, [requests[i] for i in rows], wanted), strict=True
                ):
                    done[i] = generation
        return [g for g in done if g is not None]

    def _check_room(self, requests: Sequence[Request]) -> None:
        """Refuse what does not fit: rows that have ended are held within the context, and so would
        be one that has not.
        """
        for request in requests:
            needed = len(request.prompt_ids) + request.sampling.max_tokens
            if needed > self.context:
                raise ValueError(
                    f"a prompt and its reply need {needed} tokens, and the context has"
                    f" {self.context}"
                )

    def _batches(
        self, places: dict[str, list[int]], requests: Sequence[Request]
    ) -> list[dict[str, list[int]]]:
        """Grids of all policies where they are stacked, all policies of a population together,
        otherwise one at a time.
        """
        if self.population and self.stack is None:
            return [places] if any(places.values()) else []
        if self.stack is None:
            return [{p: rows} for p, rows in places.items() if rows]
        # neighbours have prompts of similar length, so that what is in front of the shorter ones
        # need not be read
        places = {
            p: sorted(rows, key=lambda i: len(requests[i].prompt_ids)) for p, rows in places.items()
        }
        n = max(1, self.max_rows // len(places))
        most = max(map(len, places.values()))
        return [{p: rows[i : i + n] for p, rows in places.items()} for i in range(0, most, n)]

    def _run(
        self, batch: dict[str, list[int]], requests: Sequence[Request], wanted: Callable[[], bool]
    ) -> list[Generation]:
        if self.stack is not None:
            return self._decode_stack(batch, requests, wanted)
        model = self.population.model if self.population else self.models[next(iter(batch))]
        policy_R = [p for p, column in enumerate(batch.values()) for _ in column]
        first = next(iter(batch))
        packed = self.packed.get(first)
        call = self.compiled[first] if self.compiled is not None else model
        with packed.running() if packed else nullcontext():
            lanes = Lanes(model, self.population, self.pad_id, self.context, call)
            return self._decode(lanes, policy_R, requests, wanted)

    def _decode(
        self,
        lanes: Lanes,
        policy_R: Sequence[int],
        requests: Sequence[Request],
        wanted: Callable[[], bool],
    ) -> list[Generation]:
        """Any causal LM: at most `max_rows` rows run; when enough of them have ended, the next ones
        take their places.
        """
        tape = Tape(requests, self.end_ids, self.meter)
        # the longest first: what is left at the end is short, and prompts that are computed
        # together are of similar length
        queue = sorted(
            range(len(requests)),
            key=lambda i: (-int(tape.limit_R[i]), -len(requests[i].prompt_ids)),
        )
        while True:
            live_B = tape.alive_R[lanes.row_B]
            full = self.max_rows if queue and lanes.mixes else len(live_B)
            if (
                live_B.sum() < (LEAVE if lanes.moves and not queue else SHRINK) * full
                or not live_B.any()
            ):
                free = self.max_rows - int(live_B.sum()) if lanes.mixes or not live_B.any() else 0
                coming = queue[:free]
                queue = queue[free:]
                prompts = [(policy_R[i], requests[i].prompt_ids) for i in coming]
                lanes.change(live_B, coming, prompts, tape.draw)
            else:
                lanes.make_room(live_B)
                lanes.drawn_B = tape.draw(lanes.step(), lanes.row_B)
            if not wanted() or not (queue or tape.alive_R[lanes.row_B].any()):
                return tape.generations()

    def _decode_stack(
        self, batch: dict[str, list[int]], requests: Sequence[Request], wanted: Callable[[], bool]
    ) -> list[Generation]:
        """All policies as one grid of P x B rows; row -1 is padding of the grid."""
        stack = self.stack
        tape = Tape(requests, self.end_ids, self.meter)
        assert stack is not None
        rows_PB = _grid(
            [len(column) for column in batch.values()], np.cumsum([0, *map(len, batch.values())])
        )
        ids_PBT, pad_N = self._prompts(requests, rows_PB)
        P, (_, B, T) = len(batch), ids_PBT.shape
        room = T + int(tape.limit_R.max())
        stack.start(P, B, room)
        positions = (torch.arange(T) - pad_N[:, None]).clamp(min=0)
        query = torch.arange(T)[:, None]
        key = torch.arange(T)[None]
        # padding sees itself: no row without keys
        seen = (key <= query) & (key >= pad_N[:, None, None]) | (key == query)
        logits_PBV = stack.forward(
            ids_PBT, positions.view(P, B, T), 0, _additive(seen, stack.dtype)[:, None]
        )
        mask_N11S = _additive(torch.arange(room) >= pad_N[:, None], stack.dtype)[:, None, None]
        positions_N = T - pad_N
        parts = _parts(pad_N)
        for step in range(room - T):
            flat_N = rows_PB.reshape(-1)
            drawn_N = tape.draw(logits_PBV.view(len(flat_N), -1), flat_N)
            live_N = (flat_N >= 0) & tape.alive_R[np.maximum(flat_N, 0)]
            if not live_N.any() or not wanted():
                break
            widest = int(live_N.reshape(P, -1).sum(1).max())
            if widest < LEAVE * rows_PB.shape[1]:
                order = np.argsort(~live_N.reshape(P, -1), axis=1, kind="stable")[:, :widest]
                kept = (order + np.arange(P)[:, None] * rows_PB.shape[1]).reshape(-1)
                rows_PB = np.where(live_N, flat_N, -1)[kept].reshape(P, widest)
                kept_N = torch.from_numpy(kept)
                # of each policy the living rows move to the front, in their order
                stack.select(kept.tolist(), T + step)
                mask_N11S = mask_N11S[kept_N]
                positions_N = positions_N[kept_N]
                pad_N = pad_N[kept_N]
                drawn_N = drawn_N[kept]
                parts = _parts(pad_N)
            shape = (P, rows_PB.shape[1], 1)
            ids = torch.from_numpy(drawn_N).view(shape)
            logits_PBV = stack.forward(
                ids, positions_N.view(shape), T + step, mask_N11S[..., : T + step + 1], parts
            )
            # rows that have ended go on counting, and there is no position behind the context
            positions_N = (positions_N + 1).clamp(max=self.context - 1)
        return tape.generations()

    def _prompts(
        self, requests: Sequence[Request], rows_PB: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts of a grid padded on the left, (P, B, T), and the length of the
        padding, (P * B,).
        """
        width = max(len(r.prompt_ids) for r in requests)
        ids_NT = np.full((rows_PB.size, width), self.pad_id)
        pad_N = np.zeros(rows_PB.size, dtype=np.int64)
        for n, row in enumerate(rows_PB.reshape(-1)):
            if row >= 0:
                pad_N[n] = width - len(requests[row].prompt_ids)
                ids_NT[n, pad_N[n] :] = requests[row].prompt_ids
        return torch.from_numpy(ids_NT).view(*rows_PB.shape, width), torch.from_numpy(pad_N)


def _grid(counts: list[int], offsets: np.ndarray) -> np.ndarray:
    grid = np.full((len(counts), max(counts)), -1)
    for p, n in enumerate(counts):
        grid[p, :n] = np.arange(offsets[p], offsets[p] + n)
    return grid


def _parts(pad_N: torch.Tensor) -> list[tuple[slice, int]]:
    """Slices of the rows of a grid, and the first slot that any row of each sees."""
    # fewer rows are not worth their calls, as measured, nor are a few slots
    size = max(16, len(pad_N) // 4)
    found: list[tuple[slice, int]] = []
    for i in range(0, len(pad_N), size):
        first = int(pad_N[i : i + size].min())
        if found and abs(first - found[-1][1]) < SLOTS:
            found[-1] = slice(found[-1][0].start, i + size), min(first, found[-1][1])
        else:
            found.append((slice(i, i + size), first))
    return found


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf)
