"""How far policies are from an equilibrium of Kuhn poker: `benchmarks/kuhn.py RUN@40 seed-games`.

Prints how often each bets at the 12 things that a seat may see, and what best responses win of it,
in chips per game: 0 for an equilibrium, .458 for random moves (`tools.kuhn_policy`). Leaves
out: policies of a team but that of its first agent.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from comas.evaluation.systems import system_team
from comas.stats import interval_record
from comas.team.build import run_sync
from comas.types import UserMistake

sys.path.append(str(Path(__file__).parents[1]))  # tools/ is no part of the package
from tools.kuhn_policy import measured_bets, measured_exploitability


def measured(name: str, asks: int, seed: int) -> dict[str, Any]:
    """The row of a run or a base."""
    with closing(system_team(name)) as team:
        bets = run_sync(measured_bets(team.members[0], asks, seed))
    found = measured_exploitability(bets, asks)
    shares = {view: count / asks for view, count in bets.items()}
    return {"system": name, **interval_record(found), "bets": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("systems", nargs="+", help="runs (RUN, RUN@40, RUN@best) or bases")
    parser.add_argument("--asks", type=int, default=500, help="of each view")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.systems:
        try:
            row = measured(name, args.asks, args.seed)
        except UserMistake as mistake:
            print(mistake, file=sys.stderr)
            raise SystemExit(2) from mistake
        rows.append(row)
        span = f"[{row['low']:.3f}, {row['high']:.3f}]"
        print(f"{name}: exploitability {row['mean']:.3f} {span} chips per game")
        print("  bets: " + ", ".join(f"{view} {bet:.2f}" for view, bet in row["bets"].items()))
    if args.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
