"""A whole CoMAS step of a team on one GPU: `python benchmarks/gpu_team.py [--models
qwen2.5-3b ...] [--smoke] [--json]`; one command, to be run anywhere.

N agents with adapters of rank 16 on a random model (Qwen2.5-3B's shape for a card of 80 GB, 1.5B's
within 24 GB) answer prompts of 512 tokens with 256 tokens (0.5B's shape: 128 with 64) and learn
from all of it, in bfloat16. Each engine samples the same prompts; what it samples is learnt and
published, which vLLM proves. Reported: peak memory, tokens per second, also of transformers'
`generate` with the base alone, seconds of publishing, share of the peak that a matmul reaches here,
and the largest N whose learning fits. `--smoke` does the same with a tiny model on whatever there
is, on a CPU in float32.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from mixed import generate
from shapes import adapter_learner, arguments, clock, names, random_model, show
from training import flops

from comas.seams import Engine, EnginePlan, Generation, Request, Sleeper
from comas.types import Row, Sampling, UserMistake

GIB = 2**30


@dataclass(frozen=True)
class Scene:
    """A model, how much memory it may take, and what each step is."""

    model: str
    budget: int
    """Bytes."""
    rows: int = 128
    prompt: int = 512
    new: int = 256
    tokens_per_pass: int = 8192
    most: int = 256
    """Agents beyond which no more are tried."""


SCENES = [
    Scene("qwen2.5-3b", 80 * 10**9),
    Scene("qwen2.5-1.5b", 24 * 10**9),
    Scene("qwen2.5-0.5b", 80 * 10**9, rows=256, prompt=128, new=64),
]
SMOKE = [Scene("tiny", 10**9, rows=8, prompt=8, new=8, most=4)]


def step_of(model: Any, scene: Scene, agents: int, steps: int, kind: str) -> dict[str, Any]:
    """Seconds, peak and rates of steps with so many agents; the first step warms up.

    Args:
        kind: the engine's name.
    """
    clear(model)
    learner = adapter_learner(
        model, agents, tokens_per_pass=scene.tokens_per_pass, checkpointing=True
    )
    plan = EnginePlan(
        end_ids=[-1] if kind == "hf" else [],
        pad_id=0,
        context=scene.prompt + scene.new,
        max_rows=scene.rows,
    )
    engine = import_module(f"comas.engines.{kind}").build(plan, learner.weights())
    try:
        seconds, rows, peak = steps_of(engine, learner, scene, agents, steps, model)
    finally:
        engine.close()
    sampling, learning, publishing = (statistics.median(taken) for taken in seconds)
    told = [row for part in rows.values() for row in part]
    best = matmul_peak(model)
    weights = sum(p.numel() for p in model.parameters())
    return {
        "model": scene.model,
        "engine": kind,
        "agents": agents,
        "rollout, tokens/s": scene.rows * scene.new / sampling,
        "training, tokens/s": sum(len(r.token_ids_T) for r in told) / learning,
        "publish, s": publishing,
        "seconds per step": sampling + learning + publishing,
        "peak, GB": peak,
        "rollout, share of the matmul peak": (
            2 * weights * scene.rows * (scene.prompt + scene.new) / sampling / best
        ),
        "training, share of the matmul peak": flops(model, told) / learning / best,
    }


def steps_of(
    engine: Engine, learner: Any, scene: Scene, agents: int, steps: int, model: Any
) -> tuple[list[list[float]], dict[str, list[Row]], float | None]:
    """Seconds of sampling, learning and publishing of each step but the first; rows of the last;
    the most memory in use at any time, in GB.
    """
    seconds: list[list[float]] = [[], [], []]
    rows: dict[str, list[Row]] = {}
    peak = 0.0
    for step in range(steps + 1):
        began = clock()
        rows = said(engine, scene, agents, step, model.config.vocab_size)
        sampled = clock()
        peak = max(peak, in_use())
        if isinstance(engine, Sleeper):
            engine.sleep()
        learner.step(rows)
        learnt = clock()
        for policy, weights in learner.weights().items():
            engine.publish(policy, weights, step + 1)
        published = clock()
        peak = max(peak, in_use())
        if step:
            seconds[0].append(sampled - began)
            seconds[1].append(learnt - sampled)
            seconds[2].append(published - learnt)
    return seconds, rows, peak if torch.cuda.is_available() else None


def in_use() -> float:
    """GB of the card that are taken now, by whatever allocator: torch's keeps what it ever needed,
    and vLLM has one of its own; 0 without a card.
    """
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def generated_per_second(model: Any, scene: Scene) -> float:
    """Tokens per second of transformers' `generate` with the base alone, after a first batch."""
    asked = requests_of(scene, ["base"], 0, model.config.vocab_size)
    generate(model, asked)
    began = clock()
    generate(model, asked)
    return scene.rows * scene.new / (clock() - began)


def said(
    engine: Engine, scene: Scene, agents: int, step: int, vocabulary: int
) -> dict[str, list[Row]]:
    """Replies to random prompts, dealt out evenly, with rewards."""
    rng = np.random.default_rng(step)
    asked = requests_of(scene, names(agents), step, vocabulary)
    replies = asyncio.run(answered(engine, asked))
    rows: dict[str, list[Row]] = {p: [] for p in names(agents)}
    for i, (request, done) in enumerate(zip(asked, replies, strict=True)):
        ids = np.concatenate([request.prompt_ids, done.token_ids])
        zeros = np.zeros(scene.prompt, np.float32)
        mask = np.arange(len(ids)) >= scene.prompt
        sampled = np.concatenate([zeros, done.logprobs])
        none = np.zeros(len(ids), np.float32)
        rows[request.policy].append(
            Row(f"{step}/{i}", "solution", 1.0, ids, mask, none, None, float(rng.random()), sampled)
        )
    return rows


def requests_of(scene: Scene, policies: Sequence[str], step: int, vocabulary: int) -> list[Request]:
    """Random prompts, dealt out evenly."""
    rng = np.random.default_rng(step)
    sampling = Sampling(max_tokens=scene.new)
    return [
        Request(
            policies[i % len(policies)],
            rng.integers(1, vocabulary, scene.prompt),
            sampling,
            step * scene.rows + i,
        )
        for i in range(scene.rows)
    ]


async def answered(engine: Engine, asked: Sequence[Request]) -> list[Generation]:
    """As games ask: every request on its own, all at once."""
    return await asyncio.gather(*map(engine.sample, asked))


def matmul_peak(model: Any, size: int = 8192) -> float:
    """FLOP/s of a large product in the model's dtype."""
    size = size if torch.cuda.is_available() else 512
    a = torch.randn(size, size, dtype=model.dtype, device=model.device)
    seconds = []
    for _ in range(6):
        began = clock()
        a @ a
        seconds.append(clock() - began)
    return 2 * size**3 / statistics.median(seconds[1:])


def largest(model: Any, scene: Scene) -> int:
    """The most agents with whom a learning step stays within the budget: doubled until one fails,
    then halved.
    """
    fits = lambda n: n <= scene.most and within(model, scene, n)  # noqa: E731
    low = 0
    high = 1
    while fits(high):
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def within(model: Any, scene: Scene, agents: int) -> bool:
    """Whether a step of one pass, and its moments, fit; on a CPU everything does."""
    clear(model)
    try:
        learner = adapter_learner(
            model, agents, tokens_per_pass=scene.tokens_per_pass, checkpointing=True
        )
        length = scene.prompt + scene.new
        ids = np.ones(length, np.int64)
        none = np.zeros(length, np.float32)
        mask = np.arange(length) >= scene.prompt
        rows = {p: [Row(p, "solution", 1.0, ids, mask, none, None, 1.0)] for p in names(agents)}
        learner.step(rows)
    except torch.cuda.OutOfMemoryError:
        return False
    return not torch.cuda.is_available() or torch.cuda.max_memory_allocated() <= scene.budget


def clear(*models: Any) -> None:
    """Free what earlier teams held.

    Hooks keep a population alive, and it and its layers each other until a collection.
    """
    for module in (module for model in models for module in model.modules()):
        module._forward_hooks.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measured(
    scene: Scene, agents: list[int], steps: int, engines: Sequence[str], find_largest: bool
) -> list[dict[str, Any]]:
    """A row per engine and number of agents, then the largest that fits.

    vLLM does not keep to a part of a card: it is left out of scenes that do.
    """
    cuda = torch.cuda.is_available()
    clear()
    found: list[dict[str, Any]] = []
    card = torch.cuda.get_device_properties(0).total_memory if cuda else scene.budget
    if cuda:
        torch.cuda.set_per_process_memory_fraction(min(1.0, scene.budget / card))
    dtype = torch.bfloat16 if cuda else torch.float32
    model = random_model(scene.model, dtype, "cuda" if cuda else "cpu")
    rate = generated_per_second(model, scene)
    found.append({"model": scene.model, "engine": "generate, the base", "rollout, tokens/s": rate})
    for kind in engines:
        if kind == "vllm" and card > 1.2 * scene.budget:
            left_out = f"left out: the card has {card / 1e9:.0f} GB, and vLLM would use them"
            found.append({"model": scene.model, "engine": kind, "agents": left_out})
            continue
        found += [step_of(model, scene, n, steps, kind) for n in agents]
    if find_largest:
        found.append({"model": scene.model, "largest N": largest(model, scene)})
    return found


def engine_names(text: str) -> list[str]:
    """`hf,vllm`, or one of them."""
    chosen = text.split(",")
    for name in chosen:
        if name not in ("hf", "vllm"):
            raise argparse.ArgumentTypeError(f"{name!r} is neither 'hf' nor 'vllm'")
    return chosen


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, also without a GPU")
    parser.add_argument(
        "--agents", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16]
    )
    known = [scene.model for scene in SCENES]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--no-largest", action="store_true", help="leave out the largest team")
    parser.add_argument(
        "--engine",
        type=engine_names,
        default=["hf", "vllm"] if find_spec("vllm") else ["hf"],
        help="hf,vllm or one of them (default: both where vLLM is installed)",
    )
    args = parser.parse_args()
    if not torch.cuda.is_available() and not args.smoke:
        sys.exit("no GPU here: nothing was measured (--smoke runs the same with a tiny model)")
    scenes = (
        SMOKE
        if args.smoke
        else [replace(s, rows=args.rows or s.rows) for s in SCENES if s.model in args.models]
    )
    agents = [n for n in args.agents if n <= 4] if args.smoke else args.agents
    try:
        found = [
            row
            for s in scenes
            for row in measured(s, agents, args.repeats, args.engine, not args.no_largest)
        ]
    except UserMistake as mistake:
        sys.exit(str(mistake))
    show(found, args.json)


if __name__ == "__main__":
    main()
