"""vLLM behind our engine against vLLM as a library and against `hf`: `.venv-vllm/bin/python
benchmarks/engines_vllm.py BASE [--batches 8,64,256]`, in an environment with vLLM (`make
test-vllm` makes one).

Four adapters of rank 16 on one base, the same prompts, limits and seeds for everybody, no end
token; contestants run in turn within one process, and medians are reported. As a library vLLM is
called once with everything, on the very engine that ours runs, so that the ratio is what ours adds:
with what learning needs of a reply (adapters, seeds, log-probs), and without any of it. Then: the
seconds of publishing all four adapters, with and without comparing log-probs, and their share of
the seconds in which the replies of a batch are sampled; of a step, which also learns, it is less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from comas.engines import hf, vllm
from comas.engines.vllm.library import version
from comas.learners.lora.population import Population
from comas.machine import use_threads
from comas.models.loading import load_models, place_of
from comas.seams import Adapter, AdapterSpec, Engine, EnginePlan, Request
from comas.types import Sampling

POLICIES = [f"a{i}" for i in range(4)]
CONTEXT = 512


def population_of(base: str, device: str, dtype: str) -> Population:
    """Adapters that all change something."""
    place, kind = place_of(device, dtype)
    models, _, _ = load_models({"base": base}, place, kind)
    population = Population(models["base"], dict.fromkeys(POLICIES, AdapterSpec(16, 32.0)))
    move(population)
    return population


def move(population: Population) -> None:
    """Change all adapters a little, as a learner's step does."""
    with torch.no_grad():
        population.flat_PN += 1e-3 * torch.randn_like(population.flat_PN)


def requests(count: int, vocabulary: int, longest: int) -> list[Request]:
    """Prompts of 32 to 128 tokens, replies of a quarter of `longest` up to it."""
    rng = np.random.default_rng(0)
    asked = []
    for i in range(count):
        prompt_ids = rng.integers(8, vocabulary, rng.integers(32, 129))
        sampling = Sampling(
            temperature=1.0, max_tokens=int(rng.integers(longest // 4, longest + 1))
        )
        asked.append(Request(POLICIES[i % len(POLICIES)], prompt_ids, sampling, 1000 + i))
    return asked


def sampled(engine: Engine, asked: Sequence[Request]) -> None:
    """As games ask: every request on its own."""

    async def everybody() -> None:
        await asyncio.gather(*map(engine.sample, asked))

    asyncio.run(everybody())


def called(engine: Any, asked: Sequence[Request], learning: bool) -> None:
    """vLLM as a library, once for everything; `learning`: with adapters, seeds and log-probs."""
    from vllm import SamplingParams  # type: ignore[import-not-found]
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

    serving = engine.weights.serving(POLICIES)
    adapters = {p: LoRARequest(a.name, a.number, str(a.folder)) for p, a in serving.items()}
    params = [
        SamplingParams(
            temperature=1.0,
            max_tokens=request.sampling.max_tokens,
            ignore_eos=True,
            detokenize=False,
            seed=request.seed if learning else None,
            logprobs=0 if learning else None,
        )
        for request in asked
    ]
    engine.vllm.llm.generate(
        [{"prompt_token_ids": request.prompt_ids.tolist()} for request in asked],
        params,
        lora_request=[adapters[request.policy] if learning else None for request in asked],
        use_tqdm=False,
    )


def medians(work: dict[str, Callable[[], object]], fresh: Any, repeats: int) -> dict[str, float]:
    """Seconds of each piece of work, run in turn after a first run of each; `fresh` comes before
    each.
    """
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats + 1):
        for name, run in work.items():
            fresh()
            began = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def compare(
    ours: Any, theirs: Engine, asked: Sequence[Request], repeats: int
) -> dict[str, str | float]:
    """One line of the table."""
    tokens = sum(request.sampling.max_tokens for request in asked)
    work = {
        "vLLM, base alone": lambda: called(ours, asked, learning=False),
        "vLLM as a library": lambda: called(ours, asked, learning=True),
        "vLLM behind ours": lambda: sampled(ours, asked),
        "hf": lambda: sampled(theirs, asked),
    }
    seconds = medians(work, ours.vllm.forget_prefixes, repeats)
    row: dict[str, str | float] = {"rows": len(asked), "tokens": tokens}
    row |= {name: round(tokens / taken, 1) for name, taken in seconds.items()}
    row["ours / library"] = round(seconds["vLLM as a library"] / seconds["vLLM behind ours"], 3)
    row["ours / hf"] = round(seconds["hf"] / seconds["vLLM behind ours"], 3)
    return row | published(ours, repeats, seconds["vLLM behind ours"])


def published(engine: Any, repeats: int, sampling: float) -> dict[str, float]:
    """Seconds of publishing all adapters, and their share of those of sampling."""
    population = engine.weights.shared
    every = engine.weights.prove_every
    seconds: dict[str, float] = {}
    for name, prove_every in {"publish": 2**30, "publish with log-probs": 1}.items():
        engine.weights.prove_every = prove_every
        taken = []
        for number in range(repeats + 1):
            move(population)
            began = time.perf_counter()
            for policy in POLICIES:
                engine.publish(policy, Adapter(population), number)
            taken.append(time.perf_counter() - began)
        seconds[name] = statistics.median(taken[1:])
    engine.weights.prove_every = every
    mean = seconds["publish"] + (seconds["publish with log-probs"] - seconds["publish"]) / every
    row = {f"{name}, s": round(taken, 3) for name, taken in seconds.items()}
    return row | {"share of sampling": round(mean / sampling, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("base", help="a folder or name of a model whose heads vLLM has kernels for")
    parser.add_argument("--batches", default="8,64,256")
    parser.add_argument("--longest", type=int, default=64, help="tokens of a reply, at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    given = parser.parse_args()
    use_threads(given.threads)
    counts = [int(count) for count in given.batches.split(",")]
    population = population_of(given.base, given.device, given.dtype)
    models = dict.fromkeys(POLICIES, Adapter(population))
    vocabulary = len(population.model.get_input_embeddings().weight)
    plan = EnginePlan(end_ids=(), pad_id=0, context=CONTEXT, max_rows=max(counts), learns=False)
    ours = vllm.build(plan, models)
    theirs = hf.build(
        EnginePlan(end_ids=[-1], pad_id=0, context=CONTEXT, max_rows=max(counts)), models
    )
    rows = []
    for count in counts:
        asked = requests(count, vocabulary, given.longest)
        rows.append(compare(ours, theirs, asked, given.repeats))
        print(rows[-1], flush=True)
    ours.close()
    theirs.close()
    device = f"{population.model.device}, {population.model.dtype}, {given.threads} threads"
    told = {"rows": rows, "device": f"{platform.processor()} {device}", "vllm": version()}
    if given.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
