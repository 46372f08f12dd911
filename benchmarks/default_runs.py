"""What `comas train method=NAME` comes to without any other argument: `python
benchmarks/default_runs.py OUT [--only mars,ssp] [--write PAGE] [--pictures FOLDER]`.

One run per method, with its own task, team, tiny model and length, as a newcomer makes it; the time
is that of the whole command. Prints a row per method; `--write` makes the page, `--pictures` a
learning curve of each. A run that is finished is kept, one that was interrupted begins again. One
seed says how a run looks and what it takes, not what a method achieves: claims are those of
`docs/results.md`. Leaves out: methods that `family.py` draws over five seeds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
from figures import Curve, curve
from learning import made_with_folders
from method_pictures import draw
from tables import page_lines

from comas.storage.run import Run

METHODS = (
    *("ssp", "dr_zero", "agent0", "agent0_vl", "spell"),
    *("self_redteam", "ssr", "star", "optima", "sec", "mars", "spiral"),
)
HEAD = """# One run of each

After this page you know what `comas train method=NAME` takes and comes to for twelve methods, with
seed 0 and nothing else set: the share of right answers to unseen questions (of games: won against
random moves), with 95 % intervals over questions. Minutes are of two busy cores. Over several
seeds: [Results](results.md).
"""
COMMAND = """```sh
python benchmarks/default_runs.py OUT --write docs/default-runs.md --pictures docs/pictures/default
```
"""
HEADINGS = ("method", "task", "before", "after", "gain", "steps", "tokens", "minutes")


def ran(out: Path, method: str) -> dict[str, Any]:
    """What the command prints as JSON, and the seconds from its start to its end."""
    done = out / f"{method}.json"
    if not done.exists():
        folder = out / method
        shutil.rmtree(folder, ignore_errors=True)
        command = ["train", f"method={method}", f"out={folder}", "--json"]
        begun = time.perf_counter()
        printed = subprocess.run(
            [sys.executable, "-m", "comas", *command],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - begun
        result = json.loads(printed.stdout.splitlines()[-1])
        done.write_text(json.dumps(result | {"command_seconds": seconds}), encoding="utf-8")
    return json.loads(done.read_text(encoding="utf-8"))


def whole_curve(folder: Path) -> Curve:
    """Test questions at both ends, those of the validation split between them."""
    tokens, shares = curve(folder)
    run = Run.open(folder)
    after = run.read_eval("after")
    last = list(run.metrics())[-1]
    if after:
        tokens.append(last["tokens"] / 1e6)
        shares.append(after["accuracy"]["mean"])
    return tokens, shares


def cells(out: Path, method: str, result: dict[str, Any]) -> list[str]:
    """A row of the table."""
    accuracy = result["accuracy"]
    task = Run.open(out / method).config()["task"]
    return [
        f"`{method}`",
        f"`{task}`",
        _interval(accuracy["before"]),
        _interval(accuracy["after"]),
        _interval(result["gain"]),
        str(result["steps"]),
        f"{result['tokens'] / 1e3:,.0f}k",
        f"{result['command_seconds'] / 60:.1f}",
    ]


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def page(rows: list[list[str]], made: str) -> str:
    """The page as Markdown."""
    lines = [HEAD, *page_lines(HEADINGS, rows), f"\nMade at {made}.\n", COMMAND]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(METHODS))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    for method in args.only:
        results[method] = ran(args.out, method)
        print("  ".join(cells(args.out, method, results[method])), flush=True)
    if args.write:
        rows = [cells(args.out, method, result) for method, result in results.items()]
        made = made_with_folders([args.out / method for method in results])
        args.write.write_text(page(rows, made), encoding="utf-8")
    if args.pictures:
        mpl.rcParams["svg.hashsalt"] = "comas"
        mpl.rcParams["svg.fonttype"] = "none"
        args.pictures.mkdir(parents=True, exist_ok=True)
        for method in results:
            tokens, shares = whole_curve(args.out / method)
            target = args.pictures / f"{method}.svg"
            draw([(tokens, shares)], tokens[-1], target, "questions")
    if args.json:
        print(json.dumps({"rows": list(results.values())}))


if __name__ == "__main__":
    main()
