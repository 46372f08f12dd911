"""What benchmarks on random models share: the models, rows for them, and a clock.

On a CPU everything runs in one thread and is timed by the processor seconds of this process, so
that a machine that does other things as well does not blur the ratios; on a GPU by the wall clock,
after a wait for it. Contestants take turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.seams import AdapterSpec
from comas.types import Method, Row

_QWEN = {
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "tie_word_embeddings": True,
    },
    "llama-25m": {
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 7,
        "num_attention_heads": 8,
        "tie_word_embeddings": True,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        **_QWEN,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "qwen2.5-1.5b": {
        **_QWEN,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
    "qwen2.5-3b": {
        **_QWEN,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
    },
    "qwen2.5-7b": {
        **_QWEN,
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
"""Name -> config.json. Weights are random: time and memory do not depend on them."""
METHOD = Method(lambda: None, lambda: None, reinforce_pp, clipped)  # type: ignore[arg-type, return-value]
"""No KL: one forward and one backward pass, and nothing that a reference would add."""


def random_model(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """A model of this shape; on a GPU it is made there, in `dtype`."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**CONFIGS[name])
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval().to(device)


def beside(model: Any) -> Any:
    """Another module around the same weights."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def names(agents: int) -> list[str]:
    return [f"a{i:02d}" for i in range(agents)]


def adapter_learner(
    model: Any, agents: int, rank: int = 16, method: Method = METHOD, **recipe: Any
) -> AdapterLearner:
    """So many adapters on this base.

    Hooks of several learners may lie on one model: only those of the one at work act.
    """
    population = Population(model, dict.fromkeys(names(agents), AdapterSpec(rank, 2.0 * rank)))
    return AdapterLearner(population, Recipe(1e-5, **recipe), method, 0, "random")


def random_rows(
    count: int, longest: int, vocabulary: int, seed: int = 0, shortest: int | None = None
) -> list[Row]:
    """Rows of `shortest` (default: half of the longest) to `longest` tokens, of which the last two
    thirds were generated.
    """
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        ids = rng.integers(1, vocabulary, rng.integers(shortest or longest // 2, longest + 1))
        mask = np.arange(len(ids)) >= len(ids) // 3
        made.append(
            Row(
                f"t{i}",
                "solution",
                1.0,
                ids,
                mask,
                np.zeros(len(ids), np.float32),
                None,
                float(rng.random()),
            )
        )
    return made


def dealt(things: Sequence[Any], agents: int, seed: int = 0) -> dict[str, list[Any]]:
    """Each agent gets one, and the rest falls to agents at random, as roles do in a game: counts
    differ.
    """
    rng = np.random.default_rng(seed)
    owner = (
        [*range(agents), *rng.integers(0, agents, len(things) - agents)]
        if agents > 1
        else [0] * len(things)
    )
    return {
        p: [t for t, o in zip(things, owner, strict=True) if o == i]
        for i, p in enumerate(names(agents))
    }


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def taken(work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each piece of work, which take turns; a first round warms caches up and is not
    counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, run in work.items():
            began = clock()
            run()
            if turn:
                seconds[name].append(clock() - began)
    return seconds


def against(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios within a turn."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return (
        f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
    )


def arguments(about: str | None) -> argparse.ArgumentParser:
    """With what all of them take."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, **more: Any) -> None:
    """A table in Markdown, or the last line of stdout as JSON."""
    console = Console(stderr=as_json, width=200)
    lines = [list(dict.fromkeys(k for r in rows for k in r))]
    lines += [[_cell(row.get(key)) for key in lines[0]] for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    for line in lines:
        console.print("| " + " | ".join(line) + " |", highlight=False, soft_wrap=True)
    for key, value in {"device": machine(), **more}.items():
        console.print(f"{key}: {value}", highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps({"rows": rows, "device": machine(), **more}))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
