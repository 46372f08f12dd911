"""Sampling from a team of small Llamas of one shape: all policies in one grid of P x B rows.

Prompts are padded on the left; where rows have ended, those that live move to the front and the
grid shrinks. Leaves out: other shapes and devices, torch.compile, which was slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from comas.engines.batcher import BatchedEngine
from comas.engines.rows import LEAVE, by_policy, check_choices, check_context, check_policy
from comas.engines.stacked.llama import StackedLlama, can_stack
from comas.engines.tape import Tape
from comas.engines.weighing import Prompt, weigh_all
from comas.seams import (
    Adapter,
    CausalLM,
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
    always,
)
from comas.types import Sampling, UserMistake

SLOTS = 16
"""Rows whose padding differs by fewer slots are read together."""
PART = 16
"""Rows below which dividing a pass is not worth its calls, as measured."""
_READS = Sampling(max_tokens=1)
"""Of prompts behind which nothing is drawn."""


def _model_of(weights: Weights) -> CausalLM:
    """The model that weights lie in."""
    return weights.shared.model if isinstance(weights, Adapter) else weights.model


def serves(models: Mapping[str, Weights]) -> bool:
    """Whether these are small plain Llamas of one shape on a CPU."""
    found = {id(model): model for model in map(_model_of, models.values())}
    different = list(found.values())
    return all(model.device.type == "cpu" for model in different) and can_stack(different)


def state_of(policy: str, weights: Weights) -> Mapping[str, torch.Tensor]:
    """Whole weights of a policy by name; an adapter's are merged with its base."""
    if isinstance(weights, Adapter):
        return {**weights.shared.model.state_dict(), **weights.shared.merged(policy)}
    return weights.model.state_dict()


class StackedEngine(BatchedEngine):
    """Samples for policies whose models are small plain Llamas of one shape; holds a copy of their
    weights.
    """

    facts = EngineFacts(deterministic=True, margin_known=True, counts=True)

    def __init__(self, plan: EnginePlan, models: Mapping[str, Weights]) -> None:
        if not serves(models):
            raise UserMistake(
                f"hosts.{plan.host}.engine = 'stacked' is for small plain Llamas of one shape on a"
                " CPU, in float32: leave it out, or set it to hf"
            )
        super().__init__(plan.worker)
        self.models = dict(models)
        self.policies = sorted(models)
        self.versions = dict.fromkeys(self.policies, 0)
        self.end_ids = np.array(sorted(plan.end_ids))
        self.pad_id = plan.pad_id
        self.context = plan.context
        self.max_rows = plan.max_rows
        self.meter = plan.meter
        states = [state_of(policy, self.models[policy]) for policy in self.policies]
        first = _model_of(models[self.policies[0]])
        self.stack = StackedLlama(first.config, states, self.context)

    @torch.no_grad()
    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Copy these weights into the stack."""
        check_policy(policy, self.policies)
        known = _model_of(self.models[policy])
        new = _model_of(weights)
        if new is not known and not can_stack([known, new]):
            raise StaleWeights(f"policy {policy!r}: its new weights do not fit into the stack")
        self.stack.put(self.policies.index(policy), state_of(policy, weights))
        self.models[policy] = weights
        self.versions[policy] = version

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], wanted: Callable[[], bool] = always
    ) -> list[Generation]:
        """One generation per request, in their order. `wanted()` returning False means that all
        callers were cancelled: stop early and return partial generations.
        """
        places = by_policy(requests, self.policies)
        check_context(requests, self.context)
        done: dict[int, Generation] = {}
        for columns in self._grids(places, requests):
            order = [place for column in columns for place in column]
            heights = list(map(len, columns))
            grid = _Grid(self, [requests[place] for place in order], heights)
            done.update(zip(order, grid.decode(wanted), strict=True))
        return [done[place] for place in range(len(requests))]

    def weigh_all(
        self, weighings: Sequence[Weighing], wanted: Callable[[], bool] = always
    ) -> list[list[np.ndarray]]:
        """Per weighing and choice the log-probs of its tokens."""
        by_policy(weighings, self.policies)
        check_choices(weighings, self.context)
        return weigh_all(weighings, self._behind)

    def _behind(self, prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Places of prompts and the logits behind each, grid by grid."""
        reads = [Request(policy, ids, _READS, 0) for policy, ids in prompts]
        for columns in self._grids(by_policy(reads, self.policies), reads):
            order = [place for column in columns for place in column]
            grid = _Grid(self, [reads[place] for place in order], list(map(len, columns)))
            rows_N = grid.rows_PB.reshape(-1)
            logits_NV = grid.read_prompts().reshape(len(rows_N), -1)
            yield order, logits_NV[torch.from_numpy(np.flatnonzero(rows_N >= 0))]

    def _grids(
        self, places: Mapping[str, list[int]], requests: Sequence[Request]
    ) -> list[list[list[int]]]:
        """Grids of at most `max_rows` rows, each as places of requests per policy.

        Neighbours have prompts of similar length, so that what is in front of the shorter ones need
        not be read.
        """

        def prompt_tokens(place: int) -> int:
            return len(requests[place].prompt_ids)

        columns = [sorted(column, key=prompt_tokens) for column in places.values()]
        height = max(1, self.max_rows // len(columns))
        longest = max(map(len, columns))
        return [[c[i : i + height] for c in columns] for i in range(0, longest, height)]


class _Grid:
    """P x B rows on their way; row -1 is padding of the grid."""

    def __init__(
        self, engine: StackedEngine, requests: Sequence[Request], counts: Sequence[int]
    ) -> None:
        self.engine = engine
        self.stack = engine.stack
        self.requests = requests
        self.tape = Tape(requests, engine.end_ids, engine.meter)
        self.rows_PB = _numbered(counts)
        self.width = max(len(r.prompt_ids) for r in requests)
        """Slots of the prompts."""
        self.room = self.width + int(self.tape.limit_R.max())
        """Slots in all."""

    def decode(self, wanted: Callable[[], bool]) -> list[Generation]:
        """Generations of the requests, in their order."""
        logits_PBV = self.read_prompts()
        for used in range(self.width, self.room):
            flat_N = self.rows_PB.reshape(-1)
            drawn_N = self.tape.draw(logits_PBV.view(len(flat_N), -1), flat_N)
            live_N = (flat_N >= 0) & self.tape.alive_R[np.maximum(flat_N, 0)]
            if not live_N.any() or not wanted():
                break
            drawn_N = self._shrink(live_N, drawn_N, used)
            logits_PBV = self._step(drawn_N, used)
        return self.tape.generations()

    def read_prompts(self) -> torch.Tensor:
        """Logits behind the prompts, (P, B, V), which are padded on the left."""
        P, B = self.rows_PB.shape
        T = self.width
        ids_NT = np.full((P * B, T), self.engine.pad_id)
        pad_N = np.zeros(P * B, dtype=np.int64)
        for n, row in enumerate(self.rows_PB.reshape(-1)):
            if row >= 0:
                prompt_ids = self.requests[row].prompt_ids
                pad_N[n] = T - len(prompt_ids)
                ids_NT[n, pad_N[n] :] = prompt_ids
        self.pad_N = torch.from_numpy(pad_N)
        """Tokens of padding of each row."""
        self.stack.start(P, B, self.room)
        positions_NT = (torch.arange(T) - self.pad_N[:, None]).clamp(min=0)
        query = torch.arange(T)[:, None]
        key = torch.arange(T)[None]
        prompt = (key <= query) & (key >= self.pad_N[:, None, None])
        # padding sees itself: no row without keys
        seen_NTT = prompt | (key == query)
        mask_N1TT = _additive(seen_NTT, self.stack.dtype)[:, None]
        slots = torch.arange(self.room) >= self.pad_N[:, None]
        self.mask_N11S = _additive(slots, self.stack.dtype)[:, None, None]
        self.positions_N = T - self.pad_N
        self.parts = _parts(self.pad_N)
        ids_PBT = torch.from_numpy(ids_NT).view(P, B, T)
        return self.stack.forward(ids_PBT, positions_NT.view(P, B, T), 0, mask_N1TT)

    def _shrink(self, live_N: np.ndarray, drawn_N: np.ndarray, used: int) -> np.ndarray:
        """Drop finished rows: the grid becomes as wide as the policy with the most living rows.

        Nothing happens where that saves too little. Returns the drawn tokens of the rows that stay.
        """
        P, B = self.rows_PB.shape
        live_PB = live_N.reshape(P, B)
        widest = int(live_PB.sum(1).max())
        if widest >= LEAVE * B:
            return drawn_N
        # of each policy the living rows move to the front, in their order
        order = np.argsort(~live_PB, axis=1, kind="stable")[:, :widest]
        kept = (order + np.arange(P)[:, None] * B).reshape(-1)
        flat_N = np.where(live_N, self.rows_PB.reshape(-1), -1)
        self.rows_PB = flat_N[kept].reshape(P, widest)
        self.stack.select(kept.tolist(), used)
        kept_N = torch.from_numpy(kept)
        self.mask_N11S = self.mask_N11S[kept_N]
        self.positions_N = self.positions_N[kept_N]
        self.pad_N = self.pad_N[kept_N]
        self.parts = _parts(self.pad_N)
        return drawn_N[kept]

    def _step(self, drawn_N: np.ndarray, used: int) -> torch.Tensor:
        """Logits behind the tokens that were drawn last, (P, B, V), which are written into slot
        `used`.
        """
        shape = (*self.rows_PB.shape, 1)
        ids = torch.from_numpy(drawn_N).view(shape)
        mask = self.mask_N11S[..., : used + 1]
        positions = self.positions_N.view(shape)
        logits_PBV = self.stack.forward(ids, positions, used, mask, self.parts)
        # rows that have ended go on counting, and there is no position behind the context
        self.positions_N = (self.positions_N + 1).clamp(max=self.engine.context - 1)
        return logits_PBV


def _numbered(counts: Sequence[int]) -> np.ndarray:
    """Numbers of requests that come one policy after the other, as a grid; -1 is padding."""
    grid = np.full((len(counts), max(counts)), -1)
    first = 0
    for column, count in zip(grid, counts, strict=True):
        column[:count] = np.arange(first, first + count)
        first += count
    return grid


def _parts(pad_N: torch.Tensor) -> list[tuple[slice, int]]:
    """Slices of the rows of a grid, and the first slot that any row of each sees."""
    size = max(PART, len(pad_N) // 4)
    found: list[tuple[slice, int]] = []
    for i in range(0, len(pad_N), size):
        first = int(pad_N[i : i + size].min())
        if found and abs(first - found[-1][1]) < SLOTS:
            before, lowest = found[-1]
            found[-1] = slice(before.start, i + size), min(first, lowest)
        else:
            found.append((slice(i, i + size), first))
    return found


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf)
