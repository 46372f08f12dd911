"""A whole CoMAS step of a team on one GPU: `python benchmarks/gpu_team.py [--smoke] [--json]`; one
command, to be run anywhere.

N agents with adapters of rank 16 on a random model (Qwen2.5-3B's shape for a card of 80 GB, 1.5B's
within 24 GB) answer prompts of 512 tokens with 256 tokens and learn from all of it, in bfloat16.
Reported: peak memory, tokens per second, share of the peak that a matmul reaches here, and the
largest N that fits. `--smoke` does the same with a tiny model on whatever there is.
"""

from __future__ import annotations

import gc
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from shapes import METHOD, adapter_learner, arguments, clock, names, random_model, show
from training import flops

from comas.engines.hf.engine import HFEngine
from comas.seams import EnginePlan, Request
from comas.types import Row, Sampling

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


SCENES = [Scene("qwen2.5-3b", 80 * 10**9), Scene("qwen2.5-1.5b", 24 * 10**9)]
SMOKE = [Scene("tiny", 10**9, rows=8, prompt=8, new=8, most=4)]


def step_of(model: Any, scene: Scene, agents: int, steps: int, compiled: bool) -> dict[str, Any]:
    """Seconds, peak and rates of steps with so many agents; the first step warms up."""
    cuda = torch.cuda.is_available()
    clear(model)
    learner = adapter_learner(
        model, agents, tokens_per_pass=scene.tokens_per_pass, checkpointing=True
    )
    plan = EnginePlan(
        end_ids=[-1],
        pad_id=0,
        context=scene.prompt + scene.new,
        max_rows=scene.rows,
        compiled=compiled,
    )
    engine = HFEngine(plan, learner.weights())
    sampling = []
    learning = []
    rows = {}
    for step in range(steps + 1):
        began = clock()
        rows = said(engine, scene, agents, step, model.config.vocab_size)
        between = clock()
        learner.step(rows, METHOD)
        if step:
            sampling.append(between - began)
            learning.append(clock() - between)
    told = [row for part in rows.values() for row in part]
    a = statistics.median(sampling)
    b = statistics.median(learning)
    needed = flops(model, told)
    peak = matmul_peak(model)
    weights = sum(p.numel() for p in model.parameters())
    return {
        "model": scene.model,
        "agents": agents,
        "compiled": _worked(engine),
        "rollout, tokens/s": scene.rows * scene.new / a,
        "training, tokens/s": sum(len(r.token_ids_T) for r in told) / b,
        "seconds per step": a + b,
        "peak, GB": torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
        "rollout, share of the matmul peak": (
            2 * weights * scene.rows * (scene.prompt + scene.new) / a / peak
        ),
        "training, share of the matmul peak": needed / b / peak,
    }


def _worked(engine: HFEngine) -> str:
    if not engine.compiled:
        return "no"
    return f"fails: {engine.failures[0]}" if engine.failures else "yes"


def said(
    engine: HFEngine, scene: Scene, agents: int, step: int, vocabulary: int
) -> dict[str, list[Row]]:
    """Replies to random prompts, dealt out evenly, with rewards."""
    rng = np.random.default_rng(step)
    sampling = Sampling(max_tokens=scene.new)
    asked = [
        Request(
            names(agents)[i % agents],
            rng.integers(1, vocabulary, scene.prompt),
            sampling,
            step * scene.rows + i,
        )
        for i in range(scene.rows)
    ]
    rows: dict[str, list[Row]] = {p: [] for p in names(agents)}
    for i, (request, done) in enumerate(zip(asked, engine.generate(asked), strict=True)):
        ids = np.concatenate([request.prompt_ids, done.token_ids])
        zeros = np.zeros(scene.prompt, np.float32)
        mask = np.arange(len(ids)) >= scene.prompt
        sampled = np.concatenate([zeros, done.logprobs])
        none = np.zeros(len(ids), np.float32)
        rows[request.policy].append(
            Row(f"{step}/{i}", "solution", 1.0, ids, mask, none, None, float(rng.random()), sampled)
        )
    return rows


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
        learner.step(rows, METHOD)
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


def measured(scene: Scene, agents: list[int], steps: int) -> list[dict[str, Any]]:
    """A row per number of agents, one with sampling compiled, then the largest that fits."""
    cuda = torch.cuda.is_available()
    clear()
    if cuda:
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, scene.budget / torch.cuda.get_device_properties(0).total_memory)
        )
    model = random_model(scene.model, torch.bfloat16, "cuda" if cuda else "cpu")
    found = [step_of(model, scene, n, steps, False) for n in agents] + [
        step_of(model, scene, agents[-1], steps, True)
    ]
    return [*found, {"model": scene.model, "largest N": largest(model, scene)}]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, also without a GPU")
    parser.add_argument(
        "--agents", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16]
    )
    parser.add_argument("--rows", type=int, default=None)
    args = parser.parse_args()
    if not torch.cuda.is_available() and not args.smoke:
        sys.exit("no GPU here: nothing was measured (--smoke runs the same with a tiny model)")
    scenes = (
        SMOKE
        if args.smoke
        else [Scene(s.model, s.budget, rows=args.rows or s.rows) for s in SCENES]
    )
    agents = [n for n in args.agents if n <= 4] if args.smoke else args.agents
    found = [row for scene in scenes for row in measured(scene, agents, args.repeats)]
    show(found, args.json)


if __name__ == "__main__":
    main()
