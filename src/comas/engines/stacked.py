"""`engine = "stacked"`: several small Llama-shaped models as one: their weights stacked, all
policies in one grid of P x B rows.

For models that are too small to fill the machine, the cost of a step is the number of operations,
not their size; four policies in one operation cost little more than one. For the same reason there
are few operations: norm weights are folded into the matrices behind them, rotations are one complex
product. Equal to the Hugging Face forward (a test). Prompts are padded on the left; where rows have
ended, those that live move to the front and the grid shrinks. Leaves out: everything that a Llama
config may switch on beyond plain RoPE (biases, scaled RoPE, mixtures); `can_stack` says no to
those; torch.compile, which was slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from comas.engines.batcher import LEAVE, BatchedEngine, Places, Wanted, moved
from comas.engines.sampling import Tape, weigh_all
from comas.seams import (
    Adapter,
    CausalLM,
    Engine,
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
)
from comas.types import UserMistake

SMALL = 4_000_000
"""Parameters per model above which stacking was not measured to be faster."""

EMBEDDING = "model.embed_tokens.weight"

Parts = Sequence[tuple[slice, int]]
"""Rows, and the first slot that any of them sees."""
WHOLE: Parts = ((slice(None), 0),)


def can_stack(models: list) -> bool:
    """Whether these Hugging Face models are small plain Llamas of one shape on a CPU, which also
    count alike.
    """
    if not all(map(_plain, models)):
        return False
    first, *others = models
    if sum(p.numel() for p in first.parameters()) > SMALL:
        return False
    return all(_facts(first) == _facts(other) for other in others)


def _plain(model: Any) -> bool:
    config = model.config
    return (
        config.model_type == "llama"
        and model.device.type == "cpu"
        and not config.attention_bias
        and not config.mlp_bias
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] == "default"
        # there are no complex numbers of 16-bit halves
        and model.dtype in (torch.float32, torch.float64)
    )


def _facts(model: Any) -> tuple[Any, ...]:
    """Names and shapes of the weights, and what these do not tell."""
    config = model.config
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return shapes, *heads, config.rms_norm_eps, config.rope_parameters["rope_theta"]


def _rows(state: Mapping[str, torch.Tensor], *layers: str) -> torch.Tensor:
    """Weights (out, in) of these linear layers as one, in double precision."""
    return torch.cat([state[f"{layer}.weight"] for layer in layers]).double()


class StackedLlama:
    """Weights of P models as (P, in, out) stacks, with a key-value cache for a
    grid of P x B rows.
    """

    def __init__(
        self, config: Any, states: Sequence[Mapping[str, torch.Tensor]], context: int
    ) -> None:
        """`states` are state dicts of models with this config, whose rows share `context`
        positions.
        """
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.width = config.head_dim
        self.depth = config.num_hidden_layers
        self.dtype: torch.dtype = states[0]["lm_head.weight"].dtype
        self.vocab, self.size = states[0][EMBEDDING].shape
        policies = len(states)
        first = self._folded(states[0])
        self._stacks = [torch.empty(policies, *matrix.shape, dtype=self.dtype) for matrix in first]
        *of_layers, self.head = self._stacks
        self.layers = list(zip(*(of_layers[i::4] for i in range(4)), strict=True))
        """Per layer: q, k and v; attention's output; gate and up; down."""
        self.embedding = torch.empty(policies * self.vocab, self.size, dtype=self.dtype)
        for policy, state in enumerate(states):
            self.put(policy, state)
        smallest = math.sqrt(config.rms_norm_eps * config.hidden_size)
        self.floor = torch.tensor(smallest, dtype=self.dtype)
        powers = torch.arange(0, self.width, 2, dtype=torch.float32) / self.width
        inverse = 1.0 / config.rope_parameters["rope_theta"] ** powers
        angle = torch.arange(context, dtype=torch.float32)[:, None] * inverse
        self.turns = torch.complex(angle.cos().to(self.dtype), angle.sin().to(self.dtype))
        """Complex numbers that turn queries and keys, (context, width / 2)."""
        self.caches: list[torch.Tensor] = []

    def put(self, policy: int, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the weights of one policy into the stacks."""
        first = policy * self.vocab
        self.embedding[first : first + self.vocab] = state[EMBEDDING]
        for stack, matrix in zip(self._stacks, self._folded(state), strict=True):
            stack[policy] = matrix

    def _folded(self, state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Matrices (in, out) of one policy, in the order of the stacks; norms are folded in."""
        matrices: list[torch.Tensor] = []
        for i in range(self.depth):
            layer = f"model.layers.{i}."
            attention = layer + "self_attn."
            mlp = layer + "mlp."
            norm = state[layer + "input_layernorm.weight"]
            qkv = self._paired(_rows(state, *(f"{attention}{n}_proj" for n in "qkv")))
            matrices.append(self._normed(qkv, norm))
            matrices.append(self._finished(_rows(state, attention + "o_proj")))
            norm = state[layer + "post_attention_layernorm.weight"]
            gate_up = _rows(state, mlp + "gate_proj", mlp + "up_proj")
            matrices.append(self._normed(gate_up, norm))
            matrices.append(self._finished(_rows(state, mlp + "down_proj")))
        matrices.append(self._normed(_rows(state, "lm_head"), state["model.norm.weight"]))
        return matrices

    def _paired(self, weight_OI: torch.Tensor) -> torch.Tensor:
        """Rows of q and k with the two halves that RoPE turns against each other side by side."""
        half = torch.arange(self.width).view(2, -1).T.flatten()
        turned = self.heads + self.kv_heads
        q_k, v = weight_OI.split([turned * self.width, self.kv_heads * self.width])
        return torch.cat([q_k.unflatten(0, (turned, self.width))[:, half].flatten(0, 1), v])

    def _normed(self, weight_OI: torch.Tensor, norm_I: torch.Tensor) -> torch.Tensor:
        return self._finished(weight_OI * norm_I.double() * math.sqrt(self.size))

    def _finished(self, weight_OI: torch.Tensor) -> torch.Tensor:
        return weight_OI.to(self.dtype).T

    def start(self, policies: int, rows: int, room: int) -> None:
        """Empty caches for a grid of policies x rows with `room` slots: (keys and values, N, heads,
        slots, width) per layer.
        """
        shape = (2, policies * rows, self.kv_heads, room, self.width)
        self.caches = [torch.empty(shape, dtype=self.dtype) for _ in range(self.depth)]

    def select(self, rows: Sequence[int], used: int) -> None:
        """Keep these rows of the caches, and the first `used` slots of each; a row that moves away
        from the front is lost.
        """
        for cache in self.caches:
            for buffer_NKSW in cache:
                moved(buffer_NKSW, rows, used)
        self.caches = [cache[:, : len(rows)] for cache in self.caches]

    def forward(
        self,
        ids_PBT: torch.Tensor,
        positions_PBT: torch.Tensor,
        slot: int,
        mask_N1TS: torch.Tensor,
        parts: Parts = WHOLE,
    ) -> torch.Tensor:
        """Logits of the last token, (P, B, V). Writes slots `slot`.. of the caches; the mask is
        additive over slots.

        `parts` cover the N rows; a pass of one token does not read the slots in front of what each
        part sees.
        """
        P, B, T = ids_PBT.shape
        offsets_P11 = torch.arange(P)[:, None, None] * self.vocab
        x = embedding(ids_PBT + offsets_P11, self.embedding).view(P, B * T, -1)
        turns = self.turns[positions_PBT].view(P * B, T, 1, -1)
        used = mask_N1TS.shape[-1]
        for i, (qkv, out, gate_up, down) in enumerate(self.layers):
            q = self._enter(i, torch.bmm(self._norm(x), qkv), turns, slot)
            if i == self.depth - 1 and T > 1:  # of the last layer only the last token is asked for
                x = x.view(P, B, T, -1)[:, :, -1]
                q = q[:, -1:]
                mask_N1TS = mask_N1TS[:, :, -1:]
                T = 1
            mixed = self._attend(q, self.caches[i][:, :, :, :used], mask_N1TS, parts)
            x = torch.baddbmm(x, mixed.reshape(P, B * T, -1), out)
            gate, up = torch.bmm(self._norm(x), gate_up).chunk(2, -1)
            x = torch.baddbmm(x, silu(gate) * up, down)
        return torch.bmm(self._norm(x), self.head)

    def _enter(
        self, layer: int, heads_PMC: torch.Tensor, turns_NT1C: torch.Tensor, slot: int
    ) -> torch.Tensor:
        """Queries, (N, T, H, W); keys and values are turned and written into the layer's cache."""
        N, T = turns_NT1C.shape[:2]
        turned = self.heads + self.kv_heads
        heads = heads_PMC.view(N, T, -1, self.width)
        pairs = heads[:, :, :turned].unflatten(-1, (-1, 2))
        torch.view_as_complex(pairs).mul_(turns_NT1C)
        keys_values = heads[:, :, self.heads :].unflatten(2, (2, -1))
        cache = self.caches[layer]
        cache[:, :, :, slot : slot + T] = keys_values.permute(2, 0, 3, 1, 4)
        return heads[:, :, : self.heads]

    def _attend(
        self, q_NTHW: torch.Tensor, cache_2NKSW: torch.Tensor, mask_N1TS: torch.Tensor, parts: Parts
    ) -> torch.Tensor:
        """Mixed values, (N, T, H, W); for one token two batched products are quicker than the fused
        kernel.
        """
        if q_NTHW.shape[1] > 1:
            keys, values = cache_2NKSW
            q_NHTW = q_NTHW.transpose(1, 2)
            grouped = self.kv_heads != self.heads
            mixed = scaled_dot_product_attention(
                q_NHTW, keys, values, mask_N1TS, enable_gqa=grouped
            )
            return mixed.transpose(1, 2)
        if len(parts) == 1:
            first = parts[0][1]
            return self._mix(q_NTHW, cache_2NKSW[:, :, :, first:], mask_N1TS[..., first:])
        mixed_parts = []
        for rows, first in parts:
            cache = cache_2NKSW[:, rows, :, first:]
            mixed_parts.append(self._mix(q_NTHW[rows], cache, mask_N1TS[rows, ..., first:]))
        return torch.cat(mixed_parts)

    def _mix(
        self, q_N1HW: torch.Tensor, cache_2NKSW: torch.Tensor, mask_N11S: torch.Tensor
    ) -> torch.Tensor:
        N, _, H, W = q_N1HW.shape
        # rows and their heads lie behind each other: a view
        keys, values = cache_2NKSW.flatten(1, 2)
        mask = mask_N11S.expand(-1, self.kv_heads, -1, -1).flatten(0, 1)
        q = q_N1HW.reshape(N * self.kv_heads, -1, W)
        shares = torch.baddbmm(mask, q, keys.mT, alpha=W**-0.5).softmax(-1)
        return torch.bmm(shares, values).view(N, 1, H, W)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """x over the root of its sum of squares + eps * size; the weights behind it hold the norm's
        weight and root of size.
        """
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)


SLOTS = 16
"""Rows whose padding differs by fewer slots are read together."""
PART = 16
"""Rows below which dividing a pass is not worth its calls, as measured."""


def model_of(weights: Weights) -> CausalLM:
    """The model that weights lie in."""
    return weights.shared.model if isinstance(weights, Adapter) else weights.model


def serves(models: Mapping[str, Weights]) -> bool:
    """Whether these are small plain Llamas of one shape on a CPU."""
    return can_stack(list(map(model_of, models.values())))


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
        super().__init__(plan, models)
        self.models = dict(models)
        self.pad_id = plan.pad_id
        self.max_rows = plan.max_rows
        states = [state_of(policy, self.models[policy]) for policy in self.policies]
        first = model_of(models[self.policies[0]])
        self.stack = StackedLlama(first.config, states, self.context)

    @torch.no_grad()
    def _publish(self, policy: str, weights: Weights, version: int) -> None:
        """Copy these weights into the stack."""
        current = model_of(self.models[policy])
        new = model_of(weights)
        if new is not current and not can_stack([current, new]):
            raise StaleWeights(f"policy {policy!r}: its new weights do not fit into the stack")
        self.stack.put(self.policies.index(policy), state_of(policy, weights))
        self.models[policy] = weights

    def _generate(
        self, requests: Sequence[Request], places: Places, wanted: Wanted
    ) -> Iterator[tuple[list[int], list[Generation]]]:
        for order, grid in self._grids(requests, places):
            yield order, grid.decode(wanted)

    def _weigh(
        self, weighings: Sequence[Weighing], places: Places, wanted: Wanted
    ) -> list[list[np.ndarray]]:
        return weigh_all(weighings, self._behind, apart=True)

    def _behind(
        self, requests: Sequence[Request], token_ids: Sequence[int], common: int
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Places of requests and the logits behind each prompt, grid by grid."""
        for order, grid in self._grids(requests, self._by_policy(requests)):
            rows_N = grid.rows_PB.reshape(-1)
            logits_NV = grid.read_prompts().reshape(len(rows_N), -1)
            yield order, logits_NV[torch.from_numpy(np.flatnonzero(rows_N >= 0))]

    def _grids(
        self, requests: Sequence[Request], places: Places
    ) -> Iterator[tuple[list[int], _Grid]]:
        """Grids of at most `max_rows` rows, each with the places of its requests.

        Neighbours have prompts of similar length, so that what is in front of the shorter ones need
        not be read.
        """

        def prompt_tokens(index: int) -> int:
            return len(requests[index].prompt_ids)

        columns = [sorted(column, key=prompt_tokens) for column in places.values()]
        height = max(1, self.max_rows // len(columns))
        longest = max(map(len, columns))
        for first in range(0, longest, height):
            parts = [column[first : first + height] for column in columns]
            order = [index for part in parts for index in part]
            yield order, _Grid(self, [requests[index] for index in order], list(map(len, parts)))


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

    def decode(self, wanted: Wanted) -> list[Generation]:
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
        selected = (order + np.arange(P)[:, None] * B).reshape(-1)
        flat_N = np.where(live_N, self.rows_PB.reshape(-1), -1)
        self.rows_PB = flat_N[selected].reshape(P, widest)
        self.stack.select(selected.tolist(), used)
        selected_N = torch.from_numpy(selected)
        self.mask_N11S = self.mask_N11S[selected_N]
        self.positions_N = self.positions_N[selected_N]
        self.pad_N = self.pad_N[selected_N]
        self.parts = _parts(self.pad_N)
        return drawn_N[selected]

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
    parts: list[tuple[slice, int]] = []
    for i in range(0, len(pad_N), size):
        first = int(pad_N[i : i + size].min())
        if parts and abs(first - parts[-1][1]) < SLOTS:
            before, lowest = parts[-1]
            parts[-1] = slice(before.start, i + size), min(first, lowest)
        else:
            parts.append((slice(i, i + size), first))
    return parts


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf)


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where they cannot be stacked."""
    return StackedEngine(plan, models)
