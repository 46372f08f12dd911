"""A model of one's own as a user meets it: `python benchmarks/own_model.py --base FILE_OR_NAME
[--rows 8,24,64] [--threads 2] [--rounds 3] [--vllm PYTHON] [--shape qwen2.5-3b --layers 4]`.

From the command to the first token, sampling at several numbers of rows, and a learning step: ours
and other libraries', in turn, with the same prompts, lengths of replies, threads and dtype. Each
measurement is a process of its own, so that its peak memory is its own; a first command that is not
counted fills caches. Medians over rounds, and the ranges. Prompt and decode rates come from two
batches, of one token a reply and of `--new` more. The learning step is that of `training.py`, on
one thread, whose peer needs TRL. With `--shape` weights are random, of that shape of `shapes.py`
with few layers, and only the tokenizer is that of the base. Leaves out: llama.cpp, whose Python
package decodes one sequence at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mixed import generate, vllm_seconds
from shapes import CONFIGS, machine, show

from comas.engines import auto
from comas.engines.chat import Chat
from comas.learners.precision import CLEARLY, bfloat16_speed
from comas.machine import use_threads
from comas.models.loading import load_models
from comas.models.sources import whole_model
from comas.seams import EnginePlan, Request, WholeModel
from comas.tasks.sums import task as sums
from comas.types import Sampling

HERE = Path(__file__)
GB = 1e9
SIDE = 1024
"""Rows and columns of the product that stands for the machine's peak."""


# --- what runs in a process of its own


def first_token_of_transformers(args: argparse.Namespace) -> None:
    """Load the model as its own library does, and sample one token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(args.threads)
    folder, _ = whole_model(args.base)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype))
    asked = [{"role": "user", "content": sums.load("test", limit=1)[0].prompt}]
    ids = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model.generate(**ids, max_new_tokens=1)


def requests_of(chat: Chat, rows: int, new: int) -> list[Request]:
    """A question each, with exactly `new` tokens for its reply."""
    questions = sums.load("train", limit=rows)
    return [
        Request(
            "p", chat.encode([{"role": "user", "content": q.prompt}]), Sampling(max_tokens=new), i
        )
        for i, q in enumerate(questions)
    ]


def sampled(args: argparse.Namespace, rows: int, ours: bool) -> dict[str, float]:
    """Seconds of a batch of one token a reply and of one with `--new` more, after a first one."""
    use_threads(args.threads)
    models, tokenizer, ends = load_models({"p": args.base}, dtype=getattr(torch, args.dtype))
    model = models["p"]
    chat = Chat(tokenizer, ends)
    # -1: no token ends a reply
    plan = EnginePlan(end_ids=[-1], pad_id=0, context=512, max_rows=rows)
    engine: Any = auto.build(plan, {"p": WholeModel(model)}) if ours else None

    def batch(new: int) -> float:
        asked = requests_of(chat, rows, new)
        began = time.perf_counter()
        engine.generate(asked) if ours else generate(model, asked)
        return time.perf_counter() - began

    batch(2)
    prompts = sum(len(r.prompt_ids) for r in requests_of(chat, rows, 1))
    numbers = sum(p.numel() for p in model.parameters())
    return {
        "short": batch(1),
        "long": batch(1 + args.new),
        "prompt tokens": prompts,
        "numbers": numbers,
        "peak": matmul_peak(getattr(torch, args.dtype)),
    }


def save_shape(base: str, shape: str, layers: int, folder: str) -> None:
    """Save random weights of a shape, with so many layers, and the tokenizer of `base`."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source, _ = whole_model(base)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    config = AutoConfig.for_model(**{**CONFIGS[shape], "num_hidden_layers": layers})
    config.eos_token_id = tokenizer.eos_token_id
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def matmul_peak(dtype: torch.dtype) -> float:
    """Operations per second of a large product with the threads of this process."""
    a = torch.randn(SIDE, SIDE).to(dtype)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        torch.nn.functional.linear(a, a)
        taken.append(time.perf_counter() - began)
    return 2 * SIDE**3 / min(taken)


# --- processes, in turn


def ran(command: Sequence[str]) -> dict[str, Any]:
    """What a process took, and the JSON on the last line that it printed; it has to succeed."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        for file in (out, err):
            file.seek(0)
        said = out.read().strip().splitlines()
        if status:
            raise SystemExit(f"{' '.join(command)} failed:\n{err.read()[-2000:]}")
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    printed = json.loads(said[-1]) if said and said[-1].startswith("{") else {}
    return {
        "clock": seconds,
        "processor": used.ru_utime + used.ru_stime,
        "memory": peak / GB,
        **printed,
    }


def in_turn(work: dict[str, Callable[[], dict[str, Any]]], rounds: int) -> dict[str, list[Any]]:
    """What each found in each round; contestants take turns."""
    found: dict[str, list[Any]] = {name: [] for name in work}
    for number in range(rounds):
        for name, run in work.items():
            found[name].append(run())
            print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    return found


def spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def starts(args: argparse.Namespace, child: Callable[..., list[str]]) -> list[dict[str, Any]]:
    """From the command to the end of a reply of one token."""

    def ours() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            keys = [f"threads={args.threads}", f"dtype={args.dtype}", "room.solution=1"]
            where = ["--tasks", "sums", "--limit", "1", "--out", f"{folder}/eval"]
            return ran([sys.executable, "-m", "comas.cli.main", "eval", args.base, *where, *keys])

    ours()
    work = {"ours": ours, "transformers": lambda: ran(child("first"))}
    found = in_turn(work, args.rounds)
    return [
        {
            "one token by": name,
            "clock, s": spread([f["clock"] for f in each]),
            "processor, s": spread([f["processor"] for f in each]),
            "times theirs": statistics.median(
                f["processor"] / g["processor"]
                for f, g in zip(each, found["transformers"], strict=True)
            ),
            "memory, GB": max(f["memory"] for f in each),
        }
        for name, each in found.items()
    ]


def samplings(args: argparse.Namespace, child: Callable[..., list[str]]) -> list[dict[str, Any]]:
    """Rates of prompts and of decoding, by rows."""
    lines = []
    for rows in args.rows:
        work = {
            name: lambda name=name, rows=rows: ran(child(name, rows))
            for name in ("ours", "generate")
        }
        found = in_turn(work, args.rounds)
        for name, each in found.items():
            decoded = [rows * args.new / (f["long"] - f["short"]) for f in each]
            theirs = [rows * args.new / (f["long"] - f["short"]) for f in found["generate"]]
            done = [
                2 * f["numbers"] * (f["prompt tokens"] + rows * args.new) / f["long"] / f["peak"]
                for f in each
            ]
            lines.append(
                {
                    "rows": rows,
                    "by": name,
                    "prompt tokens/s": spread([f["prompt tokens"] / f["short"] for f in each]),
                    "decoded tokens/s": spread(decoded),
                    "times generate": statistics.median(
                        a / b for a, b in zip(decoded, theirs, strict=True)
                    ),
                    "whole batch, s": spread([f["long"] for f in each]),
                    "share of the matmul peak": statistics.median(done),
                    "memory, GB": max(f["memory"] for f in each),
                }
            )
    if args.vllm:
        lines += of_vllm(args)
    return lines


def of_vllm(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of vLLM (eager) for whole batches, prompts included."""
    models, tokenizer, ends = load_models({"p": args.base}, dtype=getattr(torch, args.dtype))
    asked = requests_of(Chat(tokenizer, ends), max(args.rows), 1 + args.new)
    told = argparse.Namespace(
        batches=args.rows, repeats=args.rounds, threads=args.threads, vllm=args.vllm
    )
    seconds = vllm_seconds(models["p"], asked, told)
    return [
        {
            "rows": rows,
            "by": "vLLM",
            "whole batch, s": seconds.get(str(rows), seconds.get("why")),
        }
        for rows in args.rows
    ]


def learning(args: argparse.Namespace) -> dict[str, Any]:
    """A step of adapters, by `training.py`, which prints its own table."""
    folder, _ = whole_model(args.base)
    script = str(HERE.with_name("training.py"))
    options = ["--base", folder, "--dtype", args.dtype, "--repeats", str(args.rounds), "--json"]
    return ran([sys.executable, script, *options])


def main() -> None:
    listed = lambda s: [int(x) for x in s.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--rows", type=listed, default=[8, 24, 64])
    parser.add_argument("--new", type=int, default=24, help="tokens of a reply")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="default: as `comas train` chooses"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", metavar="PYTHON", help="an interpreter with vLLM")
    parser.add_argument("--shape", choices=sorted(CONFIGS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--only", choices=("start", "sampling", "learning"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, *rest = args.child
        if kind == "first":
            first_token_of_transformers(args)
        else:
            print(json.dumps(sampled(args, int(rest[0]), kind == "ours")))
        return
    made = tempfile.TemporaryDirectory(prefix="comas-shape-")
    if args.shape:
        save_shape(args.base, args.shape, args.layers, made.name)
        args.base = made.name

    if args.dtype is None:
        speed = bfloat16_speed(whole_model(args.base)[0])
        args.dtype = "bfloat16" if speed >= CLEARLY else "float32"

    def child(*what: Any) -> list[str]:
        same = [f"--{name}={getattr(args, name)}" for name in ("base", "new", "threads", "dtype")]
        return [sys.executable, str(HERE), *same, "--child", *map(str, what)]

    rows: list[dict[str, Any]] = []
    if args.only in (None, "start"):
        rows += starts(args, child)
        show(rows, False)
    if args.only in (None, "sampling"):
        found = samplings(args, child)
        show(found, False)
        rows += found
    if args.only in (None, "learning"):
        step = learning(args)
        show(step.get("rows", []), False)
        rows.append({"learning": step})
    if args.json:
        print(json.dumps({"rows": rows, "dtype": args.dtype, "device": machine()}))


if __name__ == "__main__":
    sys.exit(main())
