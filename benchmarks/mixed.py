"""Requests of mixed lengths: our torch engine against what else samples from the same random model.

`python benchmarks/mixed.py [--shapes tiny,25M] [--batches 1,8,64] [--vllm PYTHON]`. Prompts of 32
to 256 tokens, replies of exactly 16 to 256 (no token ends one), drawn with a seed. Peers are our
engine with a copy of the model in bfloat16, `generate` (eager; static cache with a compiled
forward), transformers' continuous batching, and vLLM in the environment of that PYTHON. `generate`
has one limit per batch: its rows run to the longest, and what is counted is what was asked for. One
thread unless told otherwise, then in CPU seconds, which neighbours on the machine disturb least. A
peer that does not run is a cell that says why.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from comas.engines import auto
from comas.seams import EnginePlan, Request, WholeModel
from comas.types import Sampling

LLAMA = {
    "model_type": "llama",
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **LLAMA,
        "vocab_size": 128,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
    "25M": {
        **LLAMA,
        "vocab_size": 8192,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
    },
    "135M": {
        **LLAMA,
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "0.5B": {
        **LLAMA,
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "3B": {
        **LLAMA,
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
}
"""`135M` is SmolLM2's shape, `0.5B` and `3B` are those of Qwen2.5."""


def requests(
    count: int, vocabulary: int, shortest: int, longest: int, seed: int = 0
) -> list[Request]:
    """The first `count` of one fixed list."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        prompt = rng.integers(4, vocabulary, rng.integers(min(2 * shortest, longest), longest + 1))
        made.append(
            Request("p", prompt, Sampling(max_tokens=int(rng.integers(shortest, longest + 1))), i)
        )
    return made


def generate(model: Any, asked: list[Request], static: bool = False) -> None:
    """Hugging Face `generate`, prompts padded on the left."""
    width = max(len(r.prompt_ids) for r in asked)
    limit = max(r.sampling.max_tokens for r in asked)
    ids = torch.zeros(len(asked), width, dtype=torch.long)
    for row, request in zip(ids, asked, strict=True):
        row[width - len(request.prompt_ids) :] = torch.from_numpy(request.prompt_ids)
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        min_new_tokens=limit,
        max_new_tokens=limit,
        pad_token_id=0,
        eos_token_id=None,
        cache_implementation="static" if static else None,
        disable_compile=not static,
    )
    ids = ids.to(model.device)
    model.generate(input_ids=ids, attention_mask=(ids > 0).long(), generation_config=settings)


def continuous(model: Any, asked: list[Request]) -> None:
    """transformers' continuous batching."""
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=512,
        pad_token_id=0,
        eos_token_id=-1,
    )
    manager = model.init_continuous_batching(generation_config=settings)
    manager.start()
    try:
        for i, request in enumerate(asked):
            manager.add_request(
                request.prompt_ids.tolist(),
                request_id=str(i),
                max_new_tokens=request.sampling.max_tokens,
            )
        ended = 0
        until = time.monotonic() + 120
        while ended < len(asked):
            result = manager.get_result(timeout=1)
            if result is not None and getattr(result, "error", None):
                raise RuntimeError(result.error)
            ended += result is not None and result.is_finished()
            if time.monotonic() > until or not (manager.is_running() or ended == len(asked)):
                raise RuntimeError("no results")
    finally:
        manager.stop(block=True)


def measure(
    work: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float | str]:
    """Median seconds of each, run in turn after a first run of each; why not, where it does not
    run.
    """
    taken: dict[str, list[float]] = {name: [] for name in work}
    failed: dict[str, float | str] = {}
    for turn in range(repeats + 1):
        for name, run in work.items():
            if name in failed:
                continue
            began = clock()
            try:
                run()
            except Exception as error:  # noqa: BLE001 - a peer that does not run is a result
                failed[name] = (
                    f"does not run: {type(error).__name__}:"
                    f" {str(error).splitlines()[0][:80] if str(error) else ''}"
                )
                continue
            if turn:
                taken[name].append(clock() - began)
    return {name: failed.get(name) or statistics.median(taken[name]) for name in work}


def waited() -> float:
    """Wall clock after all that a GPU was given: what one contestant leaves behind is not the next
    one's.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def rows_of(shape: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row of the table per batch size."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = (
        AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**SHAPES[shape]),
            dtype=torch.bfloat16 if device == "cuda" else getattr(torch, args.dtype),
        )
        .to(device)
        .eval()
    )
    half = copy.deepcopy(model).bfloat16() if "bfloat16" in args.peers else None
    clock = time.process_time if device == "cpu" and args.threads == 1 else waited
    every = requests(max(args.batches), SHAPES[shape]["vocab_size"], args.shortest, args.longest)
    vllm = vllm_seconds(model, every, args) if args.vllm else {}
    found = []
    for count in args.batches:
        asked = every[:count]
        plan = EnginePlan(end_ids=[-1], pad_id=0, context=512)
        engine: Any = auto.build(plan, {"p": WholeModel(model)})
        work: dict[str, Callable[[], object]] = {"ours": lambda e=engine, a=asked: e.generate(a)}
        for most in args.at_once:
            fewer = auto.build(replace(plan, max_rows=most), {"p": WholeModel(model)})
            work[f"ours, {most} at once"] = lambda e=fewer, a=asked: e.generate(a)
        if half is not None:
            rounded = auto.build(plan, {"p": WholeModel(half)})
            work["ours, bfloat16"] = lambda e=rounded, a=asked: e.generate(a)
        if "eager" in args.peers:
            work["eager"] = lambda a=asked: generate(model, a)
        if "static" in args.peers:
            work["static, compiled"] = lambda a=asked: generate(model, a, static=True)
        if "continuous" in args.peers:
            work["continuous batching"] = lambda a=asked: continuous(model, a)
        seconds = measure(work, args.repeats, clock)
        if args.vllm:
            seconds["vLLM"] = vllm.get(str(count), vllm.get("why", ""))
        tokens = sum(r.sampling.max_tokens for r in asked)
        row: dict[str, Any] = {"model": shape, "batch": count, "new tokens": tokens}
        row |= {name: s if isinstance(s, str) else round(tokens / s) for name, s in seconds.items()}
        row |= {
            f"ratio to {name}": round(row["ours"] / v, 2)
            for name, v in list(row.items())[4:]
            if isinstance(v, int)
        }
        found.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return found


def vllm_seconds(model: Any, asked: list[Request], args: argparse.Namespace) -> dict[str, Any]:
    """Batch -> seconds of vLLM, or `why` there are none."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        told = Path(folder) / "requests.json"
        told.write_text(
            json.dumps(
                {
                    "prompts": [r.prompt_ids.tolist() for r in asked],
                    "limits": [r.sampling.max_tokens for r in asked],
                    "batches": args.batches,
                    "repeats": args.repeats,
                    "threads": args.threads,
                    "dtype": str(model.dtype).removeprefix("torch."),
                }
            )
        )
        peer = Path(__file__).with_name("vllm_peer.py")
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [args.vllm, peer, told, folder], capture_output=True, text=True, env=env, check=False
        )
    lines = done.stdout.strip().splitlines()
    return (
        json.loads(lines[-1])
        if done.returncode == 0
        else {"why": f"does not run: exit {done.returncode}"}
    )


def main() -> None:
    listed = lambda s: s.split(",")  # noqa: E731
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", type=listed, default=["tiny", "25M"])
    parser.add_argument(
        "--batches", type=lambda s: [int(x) for x in s.split(",")], default=[1, 8, 64]
    )
    parser.add_argument(
        "--peers",
        type=listed,
        default=["eager", "static", "continuous"],
        help="also bfloat16",
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="everybody's, on a CPU"
    )
    parser.add_argument(
        "--at-once",
        type=lambda s: [int(x) for x in s.split(",") if x],
        default=[],
        help="also our engine with `max_rows` of these",
    )
    parser.add_argument("--vllm", metavar="PYTHON", help="an interpreter with vLLM")
    parser.add_argument("--shortest", type=int, default=16)
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [row for shape in args.shapes for row in rows_of(shape, args)]
    names = list(dict.fromkeys(k for r in rows for k in r))
    table = Table(*names, title=f"new tokens per second, {args.threads} threads")
    for row in rows:
        table.add_row(*(str(row.get(n, "")) for n in names))
    Console(stderr=args.json, width=180).print(table)
    if args.json:
        device = (
            torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else platform.processor() or platform.machine()
        )
        print(json.dumps({"rows": rows, "device": f"{device}, {args.threads} threads"}))


if __name__ == "__main__":
    sys.exit(main())
