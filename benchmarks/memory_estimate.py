"""Estimated and measured peaks of memory of random models that sample, learn and are saved, each in a process of its own.

`python benchmarks/memory_estimate.py [NAME ...]` prints a table. The measured part is the resident memory above that of the
process before its model was made (on a GPU, what torch allocated at most), with every large block handed back to the system as
soon as it is freed. One thread: several would only be quicker.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TOKENS, ROWS, LONGEST = 1536, 12, 256
"""Of a pass; decoded at once; of a row."""
_LLAMA = {"num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 512, "tie_word_embeddings": True}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({**_LLAMA, "model_type": "llama", "vocab_size": 8192, "hidden_size": 384, "intermediate_size": 1024,
               "num_hidden_layers": 10}, {}),
    "words": ({**_LLAMA, "model_type": "qwen2", "vocab_size": 50_000, "hidden_size": 384, "intermediate_size": 1024,
               "num_hidden_layers": 4, "num_key_value_heads": 2}, {}),
    "deep": ({**_LLAMA, "model_type": "llama", "vocab_size": 2048, "hidden_size": 192, "intermediate_size": 512,
              "num_hidden_layers": 40}, {}),
}
"""Name -> config.json, keys of the host."""
SHAPES |= {f"{n}, checkpointing": (shape, {"checkpointing": True}) for n, (shape, _) in list(SHAPES.items())}
SHAPES["words, bfloat16"] = (SHAPES["words"][0], {"dtype": "bfloat16"})
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def estimated(name: str) -> int:
    """Bytes at the peak, from the config alone."""
    from comas.config import HostConfig
    from comas.estimate import Load, host_memory

    config, keys = SHAPES[name]
    host = HostConfig(**{"tokens_per_pass": TOKENS, "max_rows": ROWS, "dtype": "float32", **keys})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return host_memory([folder], Load(host, LONGEST, ROWS, reference=True))["bytes at the peak"]


def measured(name: str) -> int:
    """The same of a process that does it."""
    command = [sys.executable, __file__, "--measure", name]
    done = subprocess.run(command, env={**os.environ, **ALLOCATOR}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout.split()[-1])


def measure(name: str) -> int:
    """Bytes at the peak of this process, above what it held after the same with a model of next to nothing."""
    import torch

    torch.set_num_threads(1)
    config, keys = SHAPES[name]
    cuda = torch.cuda.is_available()
    work({**config, "num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 48, "vocab_size": 64}, keys, 2, 32)
    before = torch.cuda.memory_allocated() if cuda else resident()
    work(config, keys, ROWS, LONGEST)
    return (torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) - before


def work(config: dict[str, Any], keys: dict[str, Any], count: int, longest: int) -> None:
    """Sample rows to their full length, learn from them in several passes, write a checkpoint."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from comas.credit import reinforce_pp
    from comas.engines.torch import TorchEngine
    from comas.learners.full import FullLearner
    from comas.learners.update import Recipe
    from comas.losses import clipped
    from comas.types import Method, Request, Row, Sampling

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    method = Method(lambda: None, lambda: None, reinforce_pp, clipped, kl={"r": 0.1})  # type: ignore[arg-type, return-value]
    recipe = Recipe(1e-6, tokens_per_pass=TOKENS, checkpointing=keys.get("checkpointing", False))
    learner = FullLearner({"p": model}, recipe, method, 0, getattr(torch, keys.get("dtype", "float32")))
    engine = TorchEngine(learner.weights(), [-1], 0, longest, count)
    rng, prompt = np.random.default_rng(0), longest // 4
    sampling = Sampling(max_tokens=longest - prompt)
    asked = [Request("p", rng.integers(4, config["vocab_size"], prompt), sampling, i) for i in range(count)]
    rows = []
    for i, (request, done) in enumerate(zip(asked, engine.generate(asked), strict=True)):
        ids = np.concatenate([request.prompt_ids, done.token_ids])
        ids = ids[: len(ids) - i % 7]  # of several lengths
        rows.append(Row(f"t{i}", "r", 1.0, ids, np.arange(len(ids)) >= prompt, np.zeros(len(ids), np.float32), None, rng.random()))
    learner.step({"p": rows[:1]}, method)  # makes the moments, which are there from then on
    learner.step({"p": rows}, method)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder))


def resident() -> int:
    """Bytes of this process in memory, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(names: list[str]) -> None:
    print("| model | estimate, MB | measured, MB | ratio |\n|---|---|---|---|")
    for name in names or list(SHAPES):
        guess, found = estimated(name), measured(name)
        print(f"| {name} | {guess / 1e6:.0f} | {found / 1e6:.0f} | {guess / found:.2f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2]))
    else:
        main(sys.argv[1:])
