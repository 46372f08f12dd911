"""Tokens per second of a training step against TRL's GRPOTrainer with peft: `python
benchmarks/training.py [--json]`.

One adapter of rank 16 on all linear layers of a random model, the same rows on both sides, no KL,
one update per batch, AdamW, gradients clipped. Ours is `AdapterLearner.step`: log-probs,
advantages, loss, gradients, update. Theirs is `training_step` of the trainer, from a batch as it
would have prepared it after sampling, then clipping and `optimizer.step()`; its gradient
checkpointing, on by default, is switched off. One step within the tokens of a pass (both keep the
graph of the log-probs), one of more (neither has a pass for the old log-probs, ours unless it is
told to; theirs steps through micro-batches). `--base FOLDER` takes a model from the disk, `--dtype
bfloat16` its passes in that on both sides (ours keeps adapters in float32). TRL is no dependency:
without it its cells say so. Then the share of the matmul peak, and the padding of passes.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from shapes import (
    adapter_learner,
    against,
    arguments,
    beside,
    random_model,
    random_rows,
    show,
    taken,
)
from transformers import AutoModelForCausalLM

from comas.learners.passes import passes
from comas.types import Row

MATRIX = 8192 if torch.cuda.is_available() else 1024
LOADS = {
    "rows of 96 to 192 tokens": (96, 192),
    "of 256 to 768": (256, 768),
    "of 32 to 2048": (32, 2048),
}
"""What padding is counted for: shortest and longest row."""


def theirs(model: Any, rows: list[Row], micro: int) -> Callable[[], object]:
    """One update of TRL's trainer from these rows, `micro` rows at a time."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    from comas.models.loading import load_models

    chunks = [batch_of(rows[i : i + micro], len(rows)) for i in range(0, len(rows), micro)]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            bf16=model.dtype == torch.bfloat16,
            gradient_checkpointing=False,
            beta=0.0,
            per_device_train_batch_size=micro,
            num_generations=micro,
            gradient_accumulation_steps=len(chunks),
            report_to=[],
            loss_type="dapo",
            max_grad_norm=1.0,
            learning_rate=1e-5,
            optim="adamw_torch_fused",
            disable_tqdm=True,
        )
        trainer: Any = GRPOTrainer(
            model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "?"}] * len(rows)),
            processing_class=load_models({"a": "tiny"})[1],
            peft_config=LoraConfig(
                r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0
            ),
        )
    trainer.create_optimizer()
    trainer._prepare_inputs = lambda inputs: inputs  # sampling is not what is measured
    trainer.current_gradient_accumulation_steps = len(chunks)
    total = torch.tensor(float(sum(r.mask_T.sum() for r in rows)))
    weights = [p for p in trainer.model.parameters() if p.requires_grad]

    def step() -> None:
        for chunk in chunks:
            trainer.training_step(trainer.model, {**chunk, "num_items_in_batch": total}, None)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


def batch_of(rows: list[Row], count: int) -> dict[str, torch.Tensor]:
    """As TRL prepares it: prompts padded on the left, completions on the right,
    advantages per row.
    """
    starts = [int(r.mask_T.argmax()) for r in rows]
    before = max(starts)
    after = max(len(r.token_ids_T) - s for r, s in zip(rows, starts, strict=True))
    made = {
        k: torch.zeros(len(rows), w, dtype=torch.long)
        for k, w in (("prompt", before), ("completion", after))
    }
    masks = {k: torch.zeros_like(v) for k, v in made.items()}
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids = torch.from_numpy(row.token_ids_T)
        made["prompt"][i, before - start :], masks["prompt"][i, before - start :] = ids[:start], 1
        made["completion"][i, : len(ids) - start], masks["completion"][i, : len(ids) - start] = (
            ids[start:],
            1,
        )
    advantages = torch.linspace(-1, 1, len(rows))
    return (
        {f"{k}_ids": v for k, v in made.items()}
        | {f"{k}_mask": v for k, v in masks.items()}
        | {"advantages": advantages}
    )


def flops(model: Any, rows: list[Row]) -> float:
    """Of a step on real tokens: 2 per weight forward, 2 backward (the base gets no gradients), the
    head on generated tokens only; 6 per weight of an adapter. Attention itself, padding, and what
    is made twice to save memory are not counted.
    """
    linear = {
        n: m
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and "lm_head" not in n
    }
    body = sum(m.weight.numel() for m in linear.values())
    adapter = sum(16 * (m.in_features + m.out_features) for m in linear.values())
    head = model.get_output_embeddings().weight.numel()
    tokens = sum(len(r.mask_T) for r in rows)
    generated = sum(int(r.mask_T.sum()) for r in rows)
    return float(tokens * (4 * body + 6 * adapter) + generated * 4 * head)


def compare(
    model: Any, rows: list[Row], tokens_per_pass: int, repeats: int, with_trl: bool
) -> list[dict[str, Any]]:
    """A line for us and one for them."""
    count = sum(len(r.token_ids_T) for r in rows)
    parts = passes([("a", r) for r in rows], tokens_per_pass)
    again = sum(part.padded for part in parts) > tokens_per_pass
    learner = adapter_learner(
        beside(model), 1, tokens_per_pass=tokens_per_pass, old_logprobs="first_pass"
    )
    a = torch.randn(MATRIX, MATRIX, dtype=model.dtype, device=model.device)
    work: dict[str, Callable[[], object]] = {
        "ours": lambda: learner.step({"a00": rows}),
        "peak": lambda: a @ a,
    }
    if again:
        with_pass = adapter_learner(
            beside(model), 1, tokens_per_pass=tokens_per_pass, old_logprobs="recomputed"
        )
        work["ours, old_logprobs=recomputed"] = lambda: with_pass.step({"a00": rows})
    if with_trl:
        longest = max(len(r.token_ids_T) for r in rows)
        micro = max(
            k
            for k in range(1, len(rows) + 1)
            if len(rows) % k == 0 and k * longest <= tokens_per_pass
        )
        work["TRL"] = theirs(beside(model), rows, micro)
    seconds = taken(work, repeats)
    peak = 2 * MATRIX**3 / statistics.median(seconds.pop("peak"))
    what = f"{count} tokens, {'more than a pass takes' if again else 'within a pass'}"
    needed = flops(model, rows)
    found = [
        {
            "what": what,
            "who": who,
            "seconds": statistics.median(s),
            "tokens per second": count / statistics.median(s),
            "share of the matmul peak": needed / statistics.median(s) / peak,
            "speed to TRL": against(seconds["TRL"], s) if with_trl else None,
        }
        for who, s in seconds.items()
    ]
    return found if with_trl else [*found, {"what": what, "who": "TRL: not installed"}]


def padding(tokens_per_pass: int, count: int) -> dict[str, float]:
    """Share of the tokens of passes that are padding, by lengths of rows."""
    found: dict[str, float] = {}
    for name, (shortest, longest) in LOADS.items():
        sizes = [len(r.token_ids_T) for r in random_rows(count, longest, 100, shortest=shortest)]
        rows = [("a", r) for r in random_rows(count, longest, 100, shortest=shortest)]
        padded = sum(part.padded for part in passes(rows, tokens_per_pass))
        found[name] = float(np.round(1 - sum(sizes) / padded, 3))
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="llama-25m")
    parser.add_argument("--base", help="a folder with a model, in place of a random one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--longest", type=int, default=128, help="tokens of a row")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    trl = importlib.util.find_spec("trl") is not None
    dtype = getattr(torch, args.dtype or ("bfloat16" if cuda else "float32"))
    device = "cuda" if cuda else "cpu"
    if args.base:
        loaded = AutoModelForCausalLM.from_pretrained(args.base, dtype=dtype)
        model = loaded.eval().to(device)
    else:
        model = random_model(args.model, dtype, device)
    rows = random_rows(
        args.rows, args.longest, min(model.config.vocab_size, 500), shortest=args.longest * 3 // 4
    )
    found = [
        row
        for per_pass in (8192, args.rows // 2 * args.longest)
        for row in compare(model, rows, per_pass, args.repeats, trl)
    ]
    show(
        found,
        args.json,
        model="a folder" if args.base else args.model,
        dtype=str(dtype).removeprefix("torch."),
        **{"padding, 512 rows, 8192 tokens per pass": padding(8192, 512)},
    )


if __name__ == "__main__":
    main()
