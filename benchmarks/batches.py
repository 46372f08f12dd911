"""Texts that change with the batch they are decoded in (fp32): `python benchmarks/batches.py [RUN
...] [--json]`.

Decodes solutions of the seed models in one batch, then in smaller ones, and counts those that
differ. Of the runs that are named, counts the replies with a near-tie: a draw within 1e-4 of
probability mass of another token.
"""

from __future__ import annotations

import argparse
import json
import platform

import numpy as np
from rich.console import Console
from rich.table import Table

from comas.config.plan import plan
from comas.config.schema import read
from comas.seams import TIE, Request
from comas.storage.run import Run
from comas.team.build import build_team
from comas.types import Sampling


def decoded(count: int, sizes: list[int]) -> list[dict]:
    """A row per batch size: texts that are not those of one batch of all."""
    team = build_team(plan(read(None, ["threads=1"]), learn=False))
    host = team.hosts["home"]
    policies = sorted(host.versions)
    questions = team.task.load("train", limit=count)
    prompts = [
        host.chat.encode([{"role": "user", "content": f"solve {q.prompt}"}]) for q in questions
    ]
    asked = [
        Request(policies[i % len(policies)], ids, Sampling(max_tokens=64), i)
        for i, ids in enumerate(prompts)
    ]
    whole = host.engine.generate(asked)
    rows = []
    for size in sizes:
        parts = [
            g for i in range(0, len(asked), size) for g in host.engine.generate(asked[i : i + size])
        ]
        changed = sum(
            not np.array_equal(a.token_ids, b.token_ids) for a, b in zip(whole, parts, strict=True)
        )
        near = sum(g.margin < TIE for g in whole)
        rows.append(
            {
                "what": f"batches of {size} against one of {count}",
                "replies": count,
                "near-ties": near,
                "changed": changed,
            }
        )
    team.close()
    return rows


def recorded(path: str) -> dict:
    """Near-ties among the replies of a run."""
    counts = [m["counts"] for m in Run.open(path).metrics()]
    near, replies = (sum(c[k] for c in counts) for k in ("near_ties", "turns"))
    return {"what": path, "replies": replies, "near-ties": near, "changed": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = decoded(args.count, [1, 7, 64]) + [recorded(run) for run in args.runs]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*("" if v is None else str(v) for v in row.values()))
    Console(stderr=args.json, width=120).print(table)
    if args.json:
        print(json.dumps({"rows": rows, "device": platform.processor() or platform.machine()}))


if __name__ == "__main__":
    main()
