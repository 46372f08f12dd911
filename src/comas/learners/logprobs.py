"""Log-probs of generated tokens, without the logits of a whole batch.

Logits are the largest thing of a step: tokens x vocabulary. Only generated tokens need theirs, so
the body of the model runs first, and the head is put on chosen hidden states, a chunk at a time;
the backward pass makes each chunk anew, so that one chunk of logits is alive. A head that is frozen
is not run twice: a token's log-prob depends on its own hidden state alone, so that its gradient is
known up to a factor once it is made. Small vocabularies take the plain path. Leaves out: fused
kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import MoeModelOutputWithPast

from comas.learners.passes import Layout, in_packs, one_by_one
from comas.seams import uploaded
from comas.types import Row

LOGITS = 2**25
"""Logits of one chunk, at most: 128 MiB in float32, and in the backward pass about three times
that.
"""


@dataclass(frozen=True)
class Halves:
    """A causal LM in two: `body` ids (B, T) -> hidden states (B, T, D), `head` hidden states (1, N,
    D) -> logits (1, N, V).
    """

    body: Any
    head: Any


@dataclass
class _Output(MoeModelOutputWithPast):
    """Every field that a head asks its body for: GPT-2, OPT and others ask for cross attention."""

    cross_attentions: Any = None


class _Given(torch.nn.Module):
    """In the place of a body: its output is what it gets as embeddings."""

    @property
    def decoder(self) -> _Given:
        """Return the body under the name by which OPT's head calls it."""
        return self

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _Output:
        return _Output(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]


def halve(model: Any) -> Halves | None:
    """Body and head of a Hugging Face causal LM, sharing its weights; None where it is not one
    after the other.

    The head is the family's own forward behind a body that does nothing, so that what a family does
    to its logits (scales, caps) is done. Tried on a few tokens: both together must give exactly the
    model's logits.
    """
    halves = cut(model)
    if halves is None:
        return None
    ids = torch.arange(1, 9, device=model.device)[None]
    try:
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits
            same = torch.equal(
                expected,
                _logits(halves, halves.body(input_ids=ids, use_cache=False).last_hidden_state),
            )
    except Exception:  # noqa: BLE001 - whatever fails, this family is not a body and then a head
        return None
    return halves if same else None


def cut(model: Any) -> Halves | None:
    """Split a model into body and head without the trial; None where it has no body by the usual
    name.
    """
    name = model.base_model_prefix
    if name not in model._modules:
        return None
    head = copy.copy(model)
    head._modules = {**model._modules, name: _Given()}
    return Halves(model._modules[name], head)


def _logits(halves: Halves, hidden_BTD: torch.Tensor) -> torch.Tensor:
    return halves.head(inputs_embeds=hidden_BTD, use_cache=False).logits


def token_logprobs(
    model: Any,
    halves: Halves | None,
    rows: Sequence[Row],
    pad_id: int,
    room: int | None = None,
    packs: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """Log-probs of softmax(logits / T) at the generated tokens, (B, T), padded on the right, 0
    outside the mask.

    Without `halves` all logits are made at once; with them at most `room` (default LOGITS) at a
    time. With `packs` rows that share a prompt are read behind one copy of it.
    """
    if packs is None:
        layout = one_by_one(rows, pad_id, model.device)
    else:
        layout = in_packs(rows, packs, pad_id, model)
    # logits / 1 would be another pass over the largest tensor there is
    temperature_N = None
    if any(r.temperature != 1 for r in rows):
        temperatures = np.array([r.temperature for r in rows])[layout.rows_N]
        kind = torch.promote_types(model.dtype, torch.float32)
        temperature_N = uploaded(torch.from_numpy(temperatures).to(kind), model.device)
    if halves is None:
        logits_NV = _chosen(model(**layout.given, use_cache=False).logits, layout)
        picked_N = _pick(logits_NV, layout.ids_N, temperature_N)
    else:
        hidden_ND = _chosen(halves.body(**layout.given, use_cache=False).last_hidden_state, layout)
        picked_N = _in_chunks(halves, hidden_ND, layout.ids_N, temperature_N, room or LOGITS)
    size = layout.shape[0] * layout.shape[1]
    return picked_N.new_zeros(size).index_copy(0, layout.places_N, picked_N).view(layout.shape)


def _chosen(states_BTD: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Select the states (N, D) that predict the generated tokens; no name keeps all of them
    alive.
    """
    return states_BTD.flatten(0, 1).index_select(0, layout.sources_N)


def _in_chunks(
    halves: Halves,
    hidden_ND: torch.Tensor,
    ids_N: torch.Tensor,
    temperature_N: torch.Tensor | None,
    room: int,
) -> torch.Tensor:
    size = max(1, room // vocabulary(halves.head))
    if torch.is_grad_enabled() and not any(w.requires_grad for w in halves.head.parameters()):
        return _Frozen.apply(hidden_ND, halves, ids_N, temperature_N, size)  # type: ignore

    def chunk(
        hidden_CD: torch.Tensor, ids_C: torch.Tensor, temperature_C: torch.Tensor | None
    ) -> torch.Tensor:
        return _pick(_logits(halves, hidden_CD[None])[0], ids_C, temperature_C)

    temperatures = repeat(None) if temperature_N is None else temperature_N.split(size)
    parts = zip(hidden_ND.split(size), ids_N.split(size), temperatures, strict=False)
    if torch.is_grad_enabled():
        again = partial(checkpoint, chunk, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(*part) for part in parts])
    return torch.cat([chunk(*part) for part in parts])


class _Frozen(torch.autograd.Function):
    """Log-probs behind a head that does not learn, `size` tokens at a time; the gradient of each
    with respect to its hidden state is made at once.

    Its gradient with respect to the logits is known, (1[id] - softmax) / temperature, and made in
    the place of the log-probs of the whole vocabulary: autograd would keep three more of these.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        halves: Halves,
        ids_N: torch.Tensor,
        temperature_N: torch.Tensor | None,
        size: int,
    ) -> torch.Tensor:
        picked = []
        slopes = []
        for start in range(0, len(ids_N), size):
            hidden_CD = hidden_ND[start : start + size].detach().requires_grad_()
            with torch.enable_grad():
                logits_CV = _logits(halves, hidden_CD[None])[0]
            ids_C1 = ids_N[start : start + size, None]
            temperature_C = None if temperature_N is None else temperature_N[start : start + size]
            slopes_CV = _log_softmax(logits_CV.detach(), temperature_C)
            picked.append(slopes_CV.gather(1, ids_C1)[:, 0])
            slopes_CV.exp_().neg_()
            slopes_CV.scatter_add_(1, ids_C1, slopes_CV.new_ones(ids_C1.shape))
            if temperature_C is not None:
                slopes_CV /= temperature_C[:, None]
            slopes += torch.autograd.grad(logits_CV, hidden_CD, slopes_CV.to(logits_CV.dtype))
            del logits_CV, slopes_CV
        ctx.save_for_backward(torch.cat(slopes))
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad_N,), (slopes_ND,) = grads, ctx.saved_tensors
        return (grad_N[:, None] * slopes_ND).to(slopes_ND.dtype), None, None, None, None


def _pick(
    logits_NV: torch.Tensor, ids_N: torch.Tensor, temperature_N: torch.Tensor | None
) -> torch.Tensor:
    """Log-probs of these ids, (N,), in float32 at least."""
    return _log_softmax(logits_NV, temperature_N).gather(1, ids_N[:, None])[:, 0]


def _log_softmax(logits_NV: torch.Tensor, temperature_N: torch.Tensor | None) -> torch.Tensor:
    """Log-probs of the whole vocabulary, (N, V), in float32 at least."""
    kind = torch.promote_types(logits_NV.dtype, torch.float32)
    if temperature_N is not None:
        logits_NV = logits_NV.to(kind) / temperature_N[:, None].to(kind)
    return logits_NV.log_softmax(-1, dtype=kind)


def few_logits(model: Any, tokens_per_pass: int, most: int) -> bool:
    """Whether all logits of a pass may be made at once.

    True for `most` logits or fewer; a pass of one row longer than that counts too.
    """
    text = model.config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or 2048
    return vocabulary(model) * max(tokens_per_pass, longest) <= most


def vocabulary(model: Any) -> int:
    """Logits per position."""
    return int(model.config.get_text_config().vocab_size)
