"""Peak memory against the number of agents: `python benchmarks/memory.py [--agents 1,2,4,8,16]
[--json]`.

Measured: a random model with N adapters of rank 16 that samples, learns and is saved, in a process
of its own (as in `memory_estimate.py`, which compares such peaks with what `comas train --dry-run`
says). Counted: the same 16 bytes per adapter parameter (float32 weights, gradients, two moments)
against bases that are too large to be run everywhere.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from memory_estimate import measured
from shapes import CONFIGS, arguments, show

from comas.learners.lora.population import Spec
from comas.learners.memory import adapter_parameters, facts_of

CASE = "llama, 4 adapters"
KEPT = 16
"""Bytes per adapter parameter."""
ROWS = 16
LONGEST = 64
"""The same work whatever the number of agents: rows, and tokens of each."""


def adapters_of(config: dict[str, Any]) -> tuple[int, int]:
    """Parameters of the base, and of one agent's adapter."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return facts_of(folder).parameters, adapter_parameters(folder, [Spec()], False)


def against_agents(agents: list[int]) -> list[dict[str, Any]]:
    """Peaks, and the bytes of each agent beyond the first number of them."""
    from memory_estimate import SHAPES

    base, adapter = adapters_of(SHAPES[CASE][0])
    rows: list[dict[str, Any]] = []
    for n in agents:
        peak = measured(CASE, n, ROWS, LONGEST)
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
    main()
