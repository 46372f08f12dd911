"""Several small Llama-shaped models as one: their weights stacked, one batched forward for all policies.

For models that are too small to fill the machine, the cost of a step is the number of operations, not their size; four
policies in one operation cost little more than one. Equal to the Hugging Face forward (a test). Leaves out: everything
that a Llama config may switch on beyond plain RoPE (biases, scaled RoPE, mixtures); `can_stack` says no to those.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention, silu

SMALL = 4_000_000
"""Parameters per model above which stacking was not measured to pay."""


def can_stack(models: list) -> bool:
    """Whether these Hugging Face models are small plain Llamas of one shape."""
    first = models[0].config
    plain = (
        first.model_type == "llama" and not first.attention_bias and not first.mlp_bias and first.hidden_act == "silu"
        and (getattr(first, "rope_parameters", None) or {}).get("rope_type", "default") == "default"
    )
    sizes = [{name: p.shape for name, p in m.named_parameters()} for m in models]
    return plain and all(s == sizes[0] for s in sizes) and sum(p.numel() for p in models[0].parameters()) <= SMALL


class StackedLlama:
    """Weights of P models as (P, in, out) stacks, with a key-value cache for a grid of P x B rows."""

    def __init__(self, models: list, context: int) -> None:
        config = models[0].config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width, self.eps = config.head_dim or config.hidden_size // self.heads, config.rms_norm_eps
        self.depth = config.num_hidden_layers
        self.load(models)
        theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta") or config.rope_theta
        inverse = 1.0 / theta ** (torch.arange(0, self.width, 2, dtype=torch.float32) / self.width)
        angle = torch.arange(context, dtype=torch.float32)[:, None] * inverse
        self.cos, self.sin = (torch.cat([f, f], 1).to(self.dtype) for f in (angle.cos(), angle.sin()))

    def load(self, models: list) -> None:
        """Take over the weights of `models`."""
        self.dtype = models[0].dtype
        states = [m.state_dict() for m in models]
        pick = lambda *names: torch.stack([torch.cat([s[n] for n in names]).T for s in states]).contiguous()  # noqa: E731
        norm = lambda name: torch.stack([s[name] for s in states])[:, None]  # noqa: E731
        self.embedding = torch.cat([s["model.embed_tokens.weight"] for s in states])
        self.vocab = states[0]["model.embed_tokens.weight"].shape[0]
        self.layers = []
        for i in range(self.depth):
            a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
            self.layers.append((
                norm(f"model.layers.{i}.input_layernorm.weight"),
                pick(a + "q_proj.weight", a + "k_proj.weight", a + "v_proj.weight"), pick(a + "o_proj.weight"),
                norm(f"model.layers.{i}.post_attention_layernorm.weight"),
                pick(m + "gate_proj.weight", m + "up_proj.weight"), pick(m + "down_proj.weight"),
            ))
        self.final = norm("model.norm.weight")
        self.head = pick("lm_head.weight")

    def start(self, policies: int, rows: int, room: int) -> None:
        """Empty caches for a grid of policies x rows with `room` slots."""
        shape = (policies * rows, self.kv_heads, room, self.width)
        self.keys = [torch.zeros(shape, dtype=self.dtype) for _ in range(self.depth)]
        self.values = [torch.zeros(shape, dtype=self.dtype) for _ in range(self.depth)]

    def select(self, rows_N: torch.Tensor) -> None:
        """Keep these rows of the caches, in this order."""
        self.keys = [k.index_select(0, rows_N) for k in self.keys]
        self.values = [v.index_select(0, rows_N) for v in self.values]

    def forward(self, ids_PBT: torch.Tensor, positions_PBT: torch.Tensor, slot: int, mask_N1TS: torch.Tensor) -> torch.Tensor:
        """Logits of the last token, (P, B, V). Writes slots `slot`.. of the caches; the mask is additive over slots."""
        P, B, T = ids_PBT.shape
        end = slot + T
        offset = torch.arange(P)[:, None, None] * self.vocab
        x = torch.nn.functional.embedding(ids_PBT + offset, self.embedding).view(P, B * T, -1)
        cos = self.cos[positions_PBT].view(P * B, T, self.width).unsqueeze(1)
        sin = self.sin[positions_PBT].view(P * B, T, self.width).unsqueeze(1)
        for i, (norm1, qkv, out, norm2, gate_up, down) in enumerate(self.layers):
            heads = torch.bmm(self._norm(x, norm1), qkv).view(P * B, T, -1, self.width).transpose(1, 2)
            q_k, v = heads[:, : self.heads + self.kv_heads], heads[:, self.heads + self.kv_heads :]
            half = self.width // 2
            q_k = q_k * cos + torch.cat([-q_k[..., half:], q_k[..., :half]], -1) * sin
            self.keys[i][:, :, slot:end] = q_k[:, self.heads :]
            self.values[i][:, :, slot:end] = v
            mixed = scaled_dot_product_attention(
                q_k[:, : self.heads], self.keys[i][:, :, :end], self.values[i][:, :, :end], attn_mask=mask_N1TS,
                enable_gqa=self.heads != self.kv_heads,
            )
            x = torch.baddbmm(x, mixed.transpose(1, 2).reshape(P, B * T, -1), out)
            gate, up = torch.bmm(self._norm(x, norm2), gate_up).chunk(2, -1)
            x = torch.baddbmm(x, silu(gate) * up, down)
        last = x.view(P, B, T, -1)[:, :, -1]
        return torch.bmm(self._norm(last, self.final), self.head)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.rms_norm(x, (x.shape[-1],), None, self.eps) * weight
