"""Peak memory against the number of agents: `python benchmarks/memory.py [--agents 1,2,4,8,16]
[--json]`.

Measured: a random model with N adapters of rank 16 that samples, learns and is saved, in a process
of its own: the resident memory above that of the process before its model was made (on a GPU, what
torch allocated at most), with large blocks handed back to the system as hosts have it, on one
thread. Counted: the same 16 bytes per adapter parameter (float32 weights, gradients, two moments)
against bases that are too large to be run everywhere.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shapes import CONFIGS, arguments, show

from comas.machine import return_large_blocks
from comas.memory import size_of
from comas.seams import AdapterSpec

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 10,
}
TOKENS = 1536
"""Of a pass."""
KEPT = 16
"""Bytes per adapter parameter."""
ROWS = 16
LONGEST = 64
"""The same work whatever the number of agents: rows, and tokens of each."""


def adapters_of(config: dict[str, Any]) -> tuple[int, int]:
    """Parameters of the base, and of one agent's adapter."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        shape = size_of(folder, folder)
        return shape.parameters, AdapterSpec().rank * shape.ends(None)


def against_agents(agents: list[int]) -> list[dict[str, Any]]:
    """Peaks, and the bytes of each agent beyond the first number of them."""
    base, adapter = adapters_of(SHAPE)
    rows: list[dict[str, Any]] = []
    for n in agents:
        peak = measured(n)
        row = {
            "what": "measured",
            "base": base,
            "adapter": adapter,
            "agents": n,
            "peak, MB": round(peak / 1e6, 1),
        }
        if rows:
            more = (peak - rows[0]["bytes"]) / (n - rows[0]["agents"])
            row |= {
                "a further agent, MB": round(more / 1e6, 2),
                "to 16 bytes per parameter": round(more / (KEPT * adapter), 3),
            }
        rows.append({**row, "bytes": peak})
    return [{k: v for k, v in row.items() if k != "bytes"} for row in rows]


def shares(names: list[str]) -> list[dict[str, Any]]:
    """What an agent adds to a base in bfloat16, counted."""
    found = []
    for name in names:
        base, adapter = adapters_of(CONFIGS[name])
        facts = {
            "what": f"counted, {name}",
            "base": base,
            "adapter": adapter,
            "base, MB": round(2 * base / 1e6),
        }
        found.append(
            {
                **facts,
                "an agent, MB": round(KEPT * adapter / 1e6),
                "of the base": round(KEPT * adapter / (2 * base), 3),
            }
        )
    return found


def measured(agents: int) -> int:
    """Bytes at the peak of a process that samples, learns and saves with so many agents."""
    command = [sys.executable, __file__, "--measure", str(agents)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout.split()[-1])


def measure(agents: int) -> int:
    """Bytes at the peak of this process, above what it held after the same with a model of next to
    nothing.
    """
    import torch

    torch.set_num_threads(1)
    return_large_blocks()  # as a host does
    cuda = torch.cuda.is_available()
    least = {"num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 48, "vocab_size": 64}
    work({**SHAPE, **least}, agents, agents + 1, 32)
    before = torch.cuda.memory_allocated() if cuda else resident()
    work(SHAPE, agents, ROWS, LONGEST)
    return (
        torch.cuda.max_memory_allocated()
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ) - before


def work(config: dict[str, Any], agents: int, count: int, longest: int) -> None:
    """Sample rows to their full length, learn from them in several passes, write a checkpoint."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from comas.engines import auto
    from comas.learners.lora.learner import AdapterLearner
    from comas.learners.lora.population import Population
    from comas.learners.recipe import Recipe
    from comas.objective.credit import reinforce_pp
    from comas.objective.losses import clipped
    from comas.seams import EnginePlan, Request
    from comas.types import Method, Row, Sampling

    recipe = Recipe(1e-6, tokens_per_pass=TOKENS)
    torch.manual_seed(0)
    described = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(described, dtype=torch.float32).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    method = Method(lambda: None, lambda: None, reinforce_pp, clipped, kl={"r": 0.1})  # type: ignore[arg-type, return-value]
    policies = [f"p{i:02d}" for i in range(agents)]
    population = Population(model, dict.fromkeys(policies, AdapterSpec()))
    learner = AdapterLearner(population, recipe, method, 0, "random")
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
    learner.step({p: part[:1] for p, part in rows.items()})
    learner.step(rows)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder))


def resident() -> int:
    """Bytes of this process in memory, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--agents", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16]
    )
    args = parser.parse_args()
    show(
        [*against_agents(args.agents), *shares(["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b"])],
        args.json,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(int(sys.argv[2])))
    else:
        main()
