"""Several small Llama-shaped models as one: their weights stacked, one batched forward for all
policies.

For models that are too small to fill the machine, the cost of a step is the number of operations,
not their size; four policies in one operation cost little more than one. For the same reason there
are few operations: norm weights are folded into the matrices behind them, rotations are one complex
product. Equal to the Hugging Face forward (a test). Leaves out: everything that a Llama config may
switch on beyond plain RoPE (biases, scaled RoPE, mixtures); `can_stack` says no to those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from comas.engines.hf.slots import moved

SMALL = 4_000_000
"""Parameters per model above which stacking was not measured to pay."""

Parts = Sequence[tuple[slice, int]]
"""Rows, and the first slot that any of them sees."""
WHOLE: Parts = ((slice(None), 0),)


def can_stack(models: list) -> bool:
    """Whether these Hugging Face models are small plain Llamas of one shape, which also count
    alike.
    """
    if not all(map(_plain, models)) or sum(p.numel() for p in models[0].parameters()) > SMALL:
        return False
    sizes = [{name: p.shape for name, p in m.named_parameters()} for m in models]
    counts = [_counts(m.config) for m in models]
    return all(s == sizes[0] for s in sizes) and all(c == counts[0] for c in counts)


def _plain(model: Any) -> bool:
    config = model.config
    return (
        config.model_type == "llama"
        and not config.attention_bias
        and not config.mlp_bias
        and config.hidden_act == "silu"
        and _rope(config).get("rope_type", "default") == "default"
        # there are no complex numbers of 16-bit halves
        and model.dtype in (torch.float32, torch.float64)
    )


def _rope(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}


def _theta(config: Any) -> float:
    return _rope(config).get("rope_theta") or config.rope_theta


def _counts(config: Any) -> tuple[Any, ...]:
    """What the shapes of the weights do not tell."""
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return *heads, config.rms_norm_eps, _theta(config)


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
        self.width = config.head_dim or config.hidden_size // self.heads
        self.depth = config.num_hidden_layers
        self.load(states)
        self.floor = torch.tensor(
            math.sqrt(config.rms_norm_eps * config.hidden_size), dtype=self.dtype
        )
        inverse = 1.0 / _theta(config) ** (
            torch.arange(0, self.width, 2, dtype=torch.float32) / self.width
        )
        angle = torch.arange(context, dtype=torch.float32)[:, None] * inverse
        self.turns = torch.complex(angle.cos().to(self.dtype), angle.sin().to(self.dtype))

    def load(self, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Take over these weights."""
        self.dtype = states[0]["lm_head.weight"].dtype
        self.embedding = torch.cat([s["model.embed_tokens.weight"] for s in states])
        self.vocab, size = states[0]["model.embed_tokens.weight"].shape
        # the two halves that RoPE turns against each other, paired
        half = torch.arange(self.width).view(2, -1).T.flatten()
        turned = self.heads + self.kv_heads

        def stack(names: list[str], norm: str | None = None, pair: bool = False) -> torch.Tensor:
            weights = torch.stack([torch.cat([s[n] for n in names]) for s in states]).double()
            if pair:
                q_k, v = weights.split([turned * self.width, self.kv_heads * self.width], 1)
                weights = torch.cat(
                    [q_k.unflatten(1, (turned, self.width))[:, :, half].flatten(1, 2), v], 1
                )
            if norm:
                weights = (
                    weights
                    * torch.stack([s[norm] for s in states]).double()[:, None]
                    * math.sqrt(size)
                )
            return weights.to(self.dtype).transpose(1, 2).contiguous()

        self.layers = []
        for i in range(self.depth):
            at = f"model.layers.{i}."
            self.layers.append(
                (
                    stack(
                        [f"{at}self_attn.{n}_proj.weight" for n in "qkv"],
                        f"{at}input_layernorm.weight",
                        pair=True,
                    ),
                    stack([f"{at}self_attn.o_proj.weight"]),
                    stack(
                        [f"{at}mlp.{n}_proj.weight" for n in ("gate", "up")],
                        f"{at}post_attention_layernorm.weight",
                    ),
                    stack([f"{at}mlp.down_proj.weight"]),
                )
            )
        self.head = stack(["lm_head.weight"], "model.norm.weight")

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
        N = P * B
        turned = self.heads + self.kv_heads
        x = embedding(ids_PBT + torch.arange(P)[:, None, None] * self.vocab, self.embedding).view(
            P, B * T, -1
        )
        turns = self.turns[positions_PBT].view(N, T, 1, -1)
        for i, (qkv, out, gate_up, down) in enumerate(self.layers):
            heads = torch.bmm(self._norm(x), qkv).view(N, T, -1, self.width)
            torch.view_as_complex(heads[:, :, :turned].unflatten(-1, (-1, 2))).mul_(turns)
            self.caches[i][:, :, :, slot : slot + T] = (
                heads[:, :, self.heads :].unflatten(2, (2, -1)).permute(2, 0, 3, 1, 4)
            )
            q = heads[:, :, : self.heads]
            if i == self.depth - 1 and T > 1:  # of the last layer only the last token is asked for
                x = x.view(P, B, T, -1)[:, :, -1]
                q = q[:, -1:]
                mask_N1TS = mask_N1TS[:, :, -1:]
                T = 1
            mixed = self._attend(
                q, self.caches[i][:, :, :, : mask_N1TS.shape[-1]], mask_N1TS, parts
            ).reshape(P, B * T, -1)
            x = torch.baddbmm(x, mixed, out)
            gate, up = torch.bmm(self._norm(x), gate_up).chunk(2, -1)
            x = torch.baddbmm(x, silu(gate) * up, down)
        return torch.bmm(self._norm(x), self.head)

    def _attend(
        self, q_NTHW: torch.Tensor, cache_2NKSW: torch.Tensor, mask_N1TS: torch.Tensor, parts: Parts
    ) -> torch.Tensor:
        """Mixed values, (N, T, H, W); for one token two batched products are quicker than the fused
        kernel.
        """
        if q_NTHW.shape[1] > 1:
            keys, values = cache_2NKSW
            grouped = self.kv_heads != self.heads
            return scaled_dot_product_attention(
                q_NTHW.transpose(1, 2), keys, values, mask_N1TS, enable_gqa=grouped
            ).transpose(1, 2)
        if len(parts) == 1:
            return self._mix(
                q_NTHW, cache_2NKSW[:, :, :, parts[0][1] :], mask_N1TS[..., parts[0][1] :]
            )
        return torch.cat(
            [
                self._mix(
                    q_NTHW[rows], cache_2NKSW[:, rows, :, first:], mask_N1TS[rows, ..., first:]
                )
                for rows, first in parts
            ]
        )

    def _mix(
        self, q_N1HW: torch.Tensor, cache_2NKSW: torch.Tensor, mask_N11S: torch.Tensor
    ) -> torch.Tensor:
        N, _, H, W = q_N1HW.shape
        # rows and their heads lie behind each other: a view
        keys, values = cache_2NKSW.flatten(1, 2)
        mask = mask_N11S.expand(-1, self.kv_heads, -1, -1).flatten(0, 1)
        shares = torch.baddbmm(
            mask, q_N1HW.reshape(N * self.kv_heads, -1, W), keys.mT, alpha=W**-0.5
        ).softmax(-1)
        return torch.bmm(shares, values).view(N, 1, H, W)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """x over the root of its sum of squares + eps * size; the weights behind it hold the norm's
        weight and root of size.
        """
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)
