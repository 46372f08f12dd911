"""What further agents cost at the same total of tokens: `python benchmarks/population.py [--agents
1,2,4,8,16] [--json]`.

The same rows, dealt to N agents at random, are learnt from (one step: log-probs, loss, gradients,
update) and the same prompts answered. Against a loop over the agents on the same base (the same
code, an agent at a time), N whole models, and the mixed batches of peft. Adapters of rank 16 on all
linear layers of a random model.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from shapes import (
    METHOD,
    adapter_learner,
    against,
    arguments,
    beside,
    dealt,
    names,
    random_model,
    random_requests,
    random_rows,
    show,
    taken,
)
from transformers import GenerationConfig

from comas.engines.hf import HFEngine
from comas.learners.passes import passes
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.seams import EnginePlan, WholeModel

Work = dict[str, Callable[[], object]]


def padding(rows: list[Any], tokens_per_pass: int) -> float:
    """Share of the tokens of a step's passes that are padding."""
    parts = passes([("p", r) for r in rows], tokens_per_pass)
    return 1 - sum(len(r.token_ids_T) for r in rows) / sum(part.padded for part in parts)


def training(
    model: Any, agents: list[int], looped: list[int], whole: list[int], rows: list[Any]
) -> Work:
    """A step of N adapters at once, of one after the other, of N whole models."""
    work: Work = {}
    base = beside(model)
    for n in agents:
        learner = adapter_learner(base, n)
        parts = dealt(rows, n)
        work[f"{n} adapters"] = lambda learner=learner, parts=parts: learner.step(parts)
        if n in looped:
            work[f"{n} adapters, looped"] = lambda learner=learner, parts=parts: [
                learner.step({p: part}) for p, part in parts.items()
            ]
    for n in whole:
        full = FullLearner(
            {p: copy.deepcopy(model).requires_grad_(True) for p in names(n)},
            Recipe(1e-5),
            METHOD,
            0,
        )
        parts = dealt(rows, n)
        work[f"{n} whole models"] = lambda full=full, parts=parts: full.step(parts)
    return work


def rollout(
    model: Any, agents: list[int], looped: list[int], whole: list[int], shape: dict[str, int]
) -> Work:
    """Answers to the same prompts; -1 ends no reply, so that everybody says the same number of
    tokens.
    """
    work: Work = {}
    room = shape["prompt"] + shape["new"]
    plan = EnginePlan(end_ids=[-1], pad_id=0, context=room, max_rows=shape["count"])
    base = beside(model)
    for n in agents:
        asked = random_requests(**shape, agents=n)
        engine = HFEngine(plan, adapter_learner(base, n).weights())
        work[f"{n} adapters"] = lambda engine=engine, asked=asked: engine.generate(asked)
        if n in looped:
            parts = [[r for r in asked if r.policy == p] for p in names(n)]
            work[f"{n} adapters, looped"] = lambda engine=engine, parts=parts: [
                engine.generate(part) for part in parts
            ]
            work[f"{n} adapters, peft"] = mixed_by_peft(model, n, asked, shape["new"])
    for n in whole:
        asked = random_requests(**shape, agents=n)
        engine = HFEngine(plan, {p: WholeModel(copy.deepcopy(model)) for p in names(n)})
        work[f"{n} whole models"] = lambda engine=engine, asked=asked: engine.generate(asked)
    return work


def mixed_by_peft(model: Any, n: int, asked: list[Any], new: int) -> Callable[[], object]:
    """peft's mixed batch: `generate` with the name of an adapter per row."""
    from peft import LoraConfig, get_peft_model

    shape = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    made: Any = get_peft_model(beside(model), shape, adapter_name=names(n)[0])
    for name in names(n)[1:]:
        made.add_adapter(name, shape)
    made.eval()
    width = max(len(r.prompt_ids) for r in asked)
    device = model.device
    ids, mask = (torch.zeros(len(asked), width, dtype=torch.long) for _ in range(2))
    for i, r in enumerate(asked):
        ids[i, width - len(r.prompt_ids) :], mask[i, width - len(r.prompt_ids) :] = (
            torch.from_numpy(r.prompt_ids),
            1,
        )
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        min_new_tokens=new,
        max_new_tokens=new,
        pad_token_id=0,
        eos_token_id=None,
    )
    given = {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "adapter_names": [r.policy for r in asked],
    }
    return lambda: made.generate(**given, generation_config=settings)


def listed(what: str, work: Work, repeats: int, tokens: int) -> list[dict[str, Any]]:
    """Rows of the table; ratios are to one adapter."""
    seconds = taken(work, repeats)
    first = seconds["1 adapters"]
    return [
        {
            "what": what,
            "contestant": name,
            "seconds": statistics.median(s),
            "tokens per second": tokens / statistics.median(s),
            "to one adapter": against(s, first),
        }
        for name, s in seconds.items()
    ]


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",") if n]  # noqa: E731
    parser = arguments(__doc__)
    parser.add_argument("--agents", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument(
        "--looped", type=numbers, default=[4, 16], help="agents of the loop and of peft"
    )
    parser.add_argument("--whole", type=numbers, default=[4], help="whole models")
    parser.add_argument("--model", default="llama-25m")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--longest", type=int, default=40, help="tokens of a row")
    parser.add_argument("--new", type=int, default=12, help="generated tokens of an answer")
    parser.add_argument("--only", choices=["training", "rollout"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    model = random_model(
        args.model, torch.bfloat16 if cuda else torch.float32, "cuda" if cuda else "cpu"
    )
    vocabulary = model.config.vocab_size
    found = []
    rows = random_rows(args.rows, args.longest, vocabulary)
    if args.only != "rollout":
        total = sum(len(r.token_ids_T) for r in rows)
        found += listed(
            "training",
            training(model, args.agents, args.looped, args.whole, rows),
            args.repeats,
            total,
        )
    if args.only != "training":
        shape = {
            "count": args.rows,
            "prompt": args.longest - args.new,
            "new": args.new,
            "vocabulary": vocabulary,
        }
        work = rollout(model, args.agents, args.looped, args.whole, shape)
        found += listed("rollout", work, args.repeats, args.rows * args.new)
    show(found, args.json, model=args.model, **{"share of padding": round(padding(rows, 8192), 3)})


if __name__ == "__main__":
    main()
