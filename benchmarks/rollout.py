"""Tokens per second of our engine against Hugging Face `generate`: `python benchmarks/rollout.py
[--rows 64,128,512]`.

The same four seed models, the same prompts of the default run, the same number of new tokens for
every row (the end token is switched off, so that everybody decodes the same amount). `generate`
runs model by model: eager with its dynamic cache, and in its best configuration, static cache and
compiled forward, compile seconds apart. Repeats are interleaved and medians reported, for machines
are noisy. Then: how the seconds of a training step divide, and the share of the fp32 matmul peak of
this process that learning reaches. Then: what it costs to weigh words (`Agent.weigh`) instead of
sampling them, and a CoMAS step whose scores are believed against one whose scores are said, with
and without criticism. `--base` takes another base than the seed for that part, on `task=sums`.
Requests of mixed lengths, larger models and other peers are in
`mixed.py`.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig

import comas
from comas.engines.chat import Chat
from comas.engines.stacked import StackedEngine
from comas.evaluation.systems import team_of
from comas.game.agent import Agent
from comas.game.play import play_all
from comas.machine import use_threads
from comas.models.loading import load_models
from comas.seams import EnginePlan, Request, WholeModel
from comas.storage.run import Run
from comas.sync import run_sync
from comas.tasks import pick
from comas.team.build import Team
from comas.types import Question, Sampling

POLICIES = 4


def median_seconds(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each piece of work, run in turn."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            began = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def compare(rows: int, new: int, repeats: int, compiled: bool) -> dict[str, float | str | int]:
    """One line of the table: `rows` in all, `new` tokens each."""
    models, tokenizer, _ = load_models({f"a{i}": "seed" for i in range(POLICIES)}, device="cpu")
    chat = Chat(tokenizer)
    questions = pick.load("train", limit=rows)
    prompts = [chat.encode([{"role": "user", "content": f"solve {q.prompt}"}]) for q in questions]
    # -1: no token ends a reply
    plan = EnginePlan(end_ids=[-1], pad_id=0, context=512, max_rows=rows)
    engine = StackedEngine(plan, {policy: WholeModel(model) for policy, model in models.items()})
    asked = [
        Request(f"a{i % POLICIES}", p, Sampling(max_tokens=new), i) for i, p in enumerate(prompts)
    ]
    width = max(map(len, prompts))
    parts = []
    for i, model in enumerate(models.values()):
        mine = prompts[i::POLICIES]
        ids = torch.tensor([[0] * (width - len(p)) + p.tolist() for p in mine])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in mine])
        parts.append((model, ids, mask))

    def generate(static: bool, models_: dict[int, torch.nn.Module]) -> None:
        settings = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
            eos_token_id=None,
            cache_implementation="static" if static else None,
            disable_compile=not static,
        )
        for i, (_, ids, mask) in enumerate(parts):
            models_[i].generate(input_ids=ids, attention_mask=mask, generation_config=settings)  # type: ignore[operator]

    eager = {i: m for i, (m, _, _) in enumerate(parts)}
    work: dict[str, Callable[[], object]] = {
        "ours": lambda: engine.generate(asked),
        "eager": lambda: generate(False, eager),
    }
    row: dict[str, float | str | int] = {"rows": rows, "new tokens": new}
    if compiled:
        try:
            fast = {i: copy.deepcopy(m) for i, m in eager.items()}
            for model in fast.values():
                model.forward = torch.compile(model.forward, dynamic=False)
            began = time.perf_counter()
            generate(True, fast)
            generate(True, fast)
            row["compile seconds"] = round(time.perf_counter() - began, 1)
            work["compiled"] = lambda: generate(True, fast)
        except Exception as error:  # noqa: BLE001 - no compiler, no toolchain: part of the result
            row["compiled"] = f"cannot compile here: {type(error).__name__}"
    work["ours"](), work["eager"]()
    for name, seconds in median_seconds(work, repeats).items():
        row[name] = round(rows * new / seconds)
    row["ratio to eager"] = round(float(row["ours"]) / float(row["eager"]), 2)
    if isinstance(row.get("compiled"), int):
        row["ratio to compiled"] = round(float(row["ours"]) / float(row["compiled"]), 2)
    return row


def weighing(base: str | None, questions: int, repeats: int) -> list[dict[str, float | str]]:
    """Seconds of asking about `questions` works: for two words of one token each, for the same
    prompts with one sampled token, and with eight; and of a whole discussion in four forms.
    """
    keys: dict[str, Any] = {"agents": 2, "method": "comas", "lr": 1e-4}
    keys |= {"task": "sums", "base": base} if base else {}
    forms = {
        "said": {},
        "believed": {"options.score": "believed"},
        "said, no criticism": {"options.evaluate": False},
        "believed, no criticism": {"options.score": "believed", "options.evaluate": False},
    }
    team = team_of(**keys)
    asked = team.task.load("train", limit=questions)
    work: dict[str, Callable[[], object]] = {}
    for name, (words, tokens) in {
        "weigh two words": (("right", "wrong"), 0),
        "sample one token": ((), 1),
        "sample eight tokens": ((), 8),
    }.items():
        work[name] = partial(_ask_about, team, asked, words, tokens)
    for name, options in forms.items():
        of_play = {key.partition(".")[2]: value for key, value in options.items()}
        work[f"discussion, {name}"] = partial(_discuss, team, asked, of_play)
    for run in work.values():
        run()
    seconds = median_seconds(work, repeats)
    team.close()
    one = seconds["sample one token"]
    return [
        {"asked for": name, "seconds": round(took, 3), "of one token": round(took / one, 2)}
        for name, took in seconds.items()
    ]


def _ask_about(
    team: Team, questions: Sequence[Question], words: Sequence[str], tokens: int
) -> None:
    """Weigh words behind a prompt per question, or sample tokens there."""

    async def play(question: Question, agents: Sequence[Agent], rng: Any, task: Any) -> None:
        prompt = f"score {question.prompt} # 1 2 4"
        if words:
            await agents[0].weigh("scoring", prompt, words)
        else:
            await agents[0].ask("scoring", prompt)

    method = replace(team.method, play=play)
    scene = replace(team.scene(), method=method, options={}, max_tokens={"scoring": tokens or 1})
    run_sync(play_all(scene, questions, "weighing"))


def _discuss(team: Team, questions: Sequence[Question], options: Mapping[str, Any]) -> None:
    run_sync(play_all(team.scene(options=options), questions, "weighing"))


def matmul_peak() -> float:
    """GFLOP/s of a large fp32 matmul with the threads of this process."""
    a = torch.randn(1536, 1536)
    seconds = median_seconds({"mm": lambda: a @ a}, 9)["mm"]
    return 2 * 1536**3 / seconds / 1e9


def step_shares(steps: int) -> dict[str, float]:
    """Seconds per step of the default run by kind of work, and what share of the matmul peak
    learning reaches.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        comas.train(steps=steps, test_questions=0, eval_every=0, checkpoint_every=1000, out=out)
        metrics = list(Run.open(out).metrics())[2:]  # the first steps warm caches up
        turns = [
            [t for e in Run.open(out).episodes(m["step"]) for t in e["turns"]] for m in metrics
        ]
        lengths = [sum(t["tokens"] + t["prompt_tokens"] for t in said) for said in turns]
    seconds = float(np.mean([m["seconds"] for m in metrics]))
    sampling, learning = (
        float(np.mean([m["spent"][k] for m in metrics])) for k in ("sampling", "learning")
    )
    models, _, _ = load_models({"a": "seed"}, device="cpu")
    weights = sum(p.numel() for p in models["a"].parameters())
    # 2 forward, 4 backward, 2 reference, per weight and token, padding not counted
    flops = 8 * weights * float(np.mean(lengths))
    peak = matmul_peak()
    return {
        "seconds per step": seconds,
        "sampling": sampling / seconds,
        "learning": learning / seconds,
        "rest": 1 - (sampling + learning) / seconds,
        "tokens per second": float(np.mean([m["step_tokens"] for m in metrics])) / seconds,
        "matmul peak, GFLOP/s": peak,
        "share of the peak in learning": flops / learning / 1e9 / peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows", type=lambda s: [int(x) for x in s.split(",")], default=[64, 128, 512]
    )
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--base", help="of the part on weighing; default: the seed")
    parser.add_argument("--questions", type=int, default=64, help="of the part on weighing")
    parser.add_argument("--only-weighing", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    use_threads(args.threads)
    console = Console(stderr=args.json, width=140)
    weighed = weighing(args.base, args.questions, args.repeats)
    table = Table(*weighed[0], title=f"{args.questions} works, base {args.base or 'seed'}")
    for row in weighed:
        table.add_row(*map(str, row.values()))
    console.print(table)
    if args.only_weighing:
        if args.json:
            print(json.dumps({"weighing": weighed, "device": device()}))
        return
    rows = [compare(n, args.new, args.repeats, not args.no_compile) for n in args.rows]
    names = sorted(
        {k for r in rows for k in r}, key=lambda k: [*rows[0], "ratio to compiled", k].index(k)
    )
    table = Table(*names, title=f"tokens per second, {torch.get_num_threads()} threads")
    for row in rows:
        table.add_row(
            *(f"{v:,}" if isinstance(v := row.get(n, ""), int) else str(v) for n in names)
        )
    console.print(table)
    shares = step_shares(args.steps)
    for key, value in shares.items():
        console.print(f"{key:30s} {value:,.3g}", highlight=False)
    if args.json:
        found = {"rows": rows, "step": shares, "weighing": weighed, "device": device()}
        print(json.dumps(found))


def device() -> str:
    """Processor, its cores, and threads of this process."""
    processor = platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    sys.exit(main())
