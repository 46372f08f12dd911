"""Estimated and measured peaks of memory of random models that sample, learn and are saved, each in
a process of its own.

`python benchmarks/memory_estimate.py [NAME ...]` prints a table. The measured part is the resident
memory above that of the process before its model was made (on a GPU, what torch allocated at most),
with large blocks handed back to the system as hosts have it. One thread: several would only be
quicker.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from comas.machine import return_large_blocks

TOKENS = 1536
ROWS = 12
LONGEST = 256
"""Of a pass; decoded at once; of a row."""
_LLAMA = {
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {
            **_LLAMA,
            "model_type": "llama",
            "vocab_size": 8192,
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 10,
        },
        {},
    ),
    "words": (
        {
            **_LLAMA,
            "model_type": "qwen2",
            "vocab_size": 50_000,
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
        },
        {},
    ),
    "deep": (
        {
            **_LLAMA,
            "model_type": "llama",
            "vocab_size": 2048,
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 40,
        },
        {},
    ),
}
"""Name -> config.json, keys of the host."""
SHAPES |= {
    f"{n}, checkpointing": (shape, {"checkpointing": True})
    for n, (shape, _) in list(SHAPES.items())
}
SHAPES["words, bfloat16"] = (SHAPES["words"][0], {"dtype": "bfloat16"})
AGENTS = 4
"""Adapters of a case with adapters, which has a reference of its own kind: the base, for they start
at zero.
"""
for _name in ("llama", "words", "deep"):
    SHAPES[f"{_name}, {AGENTS} adapters"] = (SHAPES[_name][0], {"learner": "adapters"})
SHAPES["llama, 4 adapters, checkpointing"] = (
    SHAPES["llama"][0],
    {"learner": "adapters", "checkpointing": True},
)
SHAPES["words, 4 adapters, bfloat16"] = (
    SHAPES["words"][0],
    {"learner": "adapters", "dtype": "bfloat16"},
)


def estimated(name: str) -> int:
    """Bytes at the peak, from the config alone."""
    import torch

    from comas.config.builders import load_builder
    from comas.config.schema import HostConfig
    from comas.forecast.memory import (
        Load,
        host_memory,
        population_memory,
        scattered_on_cpu,
    )
    from comas.learners.lora.population import Spec

    config, keys = SHAPES[name]
    chosen = {k: v for k, v in keys.items() if k != "agents"}
    host = HostConfig(**{"tokens_per_pass": TOKENS, "max_rows": ROWS, "dtype": "float32", **chosen})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        engine = load_builder("engines", host.engine, "hosts.home.engine")
        cuda = torch.cuda.is_available()
        scattered = 0.0 if cuda else scattered_on_cpu()
        load = Load(host, LONGEST, ROWS, reference=True, engine=engine, scattered=scattered)
        if keys.get("learner") == "adapters":
            found = population_memory(
                folder,
                load,
                [Spec()] * keys.get("agents", AGENTS),
                keys.get("agents", AGENTS),
                False,
            )
        else:
            found = host_memory([folder], load)
        return found["bytes at the peak"]


def measured(name: str, agents: int = AGENTS, count: int = ROWS, longest: int = LONGEST) -> int:
    """The same of a process that does it."""
    command = [sys.executable, __file__, "--measure", name, *map(str, (agents, count, longest))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout.split()[-1])


def measure(name: str, agents: int, count: int, longest: int) -> int:
    """Bytes at the peak of this process, above what it held after the same with a model of next to
    nothing.
    """
    import torch

    torch.set_num_threads(1)
    return_large_blocks()  # as a host does
    config, keys = SHAPES[name]
    cuda = torch.cuda.is_available()
    keys = {**keys, "agents": agents}
    work(
        {
            **config,
            "num_hidden_layers": 1,
            "hidden_size": 48,
            "intermediate_size": 48,
            "vocab_size": 64,
        },
        keys,
        agents + 1,
        32,
    )
    before = torch.cuda.memory_allocated() if cuda else resident()
    work(config, keys, count, longest)
    return (
        torch.cuda.max_memory_allocated()
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ) - before


def work(config: dict[str, Any], keys: dict[str, Any], count: int, longest: int) -> None:
    """Sample rows to their full length, learn from them in several passes, write a checkpoint."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from comas.engines import auto
    from comas.learners.lora.learner import AdapterLearner
    from comas.learners.lora.population import Population, Spec
    from comas.learners.recipe import Recipe
    from comas.learners.whole import FullLearner
    from comas.objective.credit import reinforce_pp
    from comas.objective.losses import clipped
    from comas.seams import EnginePlan, Request
    from comas.types import Method, Row, Sampling

    recipe = Recipe(1e-6, tokens_per_pass=TOKENS, checkpointing=keys.get("checkpointing", False))
    kind = getattr(torch, keys.get("dtype", "float32"))
    adapting = keys.get("learner") == "adapters"
    torch.manual_seed(0)
    kept = kind if adapting else torch.float32
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=kept).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    method = Method(lambda: None, lambda: None, reinforce_pp, clipped, kl={"r": 0.1})  # type: ignore[arg-type, return-value]
    policies = [f"p{i:02d}" for i in range(keys["agents"] if adapting else 1)]
    if adapting:
        learner = AdapterLearner(
            Population(model, dict.fromkeys(policies, Spec())), recipe, method, 0, "random"
        )
    else:
        learner = FullLearner(dict.fromkeys(policies, model), recipe, method, 0, kind)
    plan = EnginePlan(end_ids=[-1], pad_id=0, context=longest, max_rows=count)
    engine: Any = auto.build(plan, learner.weights())
    rng = np.random.default_rng(0)
    prompt = longest // 4
    sampling = Sampling(max_tokens=longest - prompt)
    asked = [
        Request(
            policies[i % len(policies)], rng.integers(4, config["vocab_size"], prompt), sampling, i
        )
        for i in range(count)
    ]
    rows: dict[str, list[Row]] = {p: [] for p in policies}
    for i, (request, done) in enumerate(zip(asked, engine.generate(asked), strict=True)):
        ids = np.concatenate([request.prompt_ids, done.token_ids])
        ids = ids[: len(ids) - i % 7]  # of several lengths
        mask = np.arange(len(ids)) >= prompt
        row = Row(f"t{i}", "r", 1.0, ids, mask, np.zeros(len(ids), np.float32), None, rng.random())
        rows[request.policy].append(row)
    # makes the moments, which are there from then on
    learner.step({p: part[:1] for p, part in rows.items()}, method)
    learner.step(rows, method)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder))


def resident() -> int:
    """Bytes of this process in memory, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(names: list[str]) -> None:
    print("| model | estimate, MB | measured, MB | ratio |\n|---|---|---|---|")
    for name in names or list(SHAPES):
        guess = estimated(name)
        found = measured(name)
        print(
            f"| {name} | {guess / 1e6:.0f} | {found / 1e6:.0f} | {guess / found:.2f} |", flush=True
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2], *map(int, sys.argv[3:])))
    else:
        main(sys.argv[1:])
