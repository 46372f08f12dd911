"""`comas report --discussions`: recorded discussions on the terminal.

Leaves out: how one is drawn (`comas.display`), numbers (`cli.train`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from comas.cli.output import print_json
from comas.config.mistakes import current_name
from comas.display import print_episode
from comas.game.judgements import unreadable
from comas.storage.records import episode_of, kind_of
from comas.storage.run import Run
from comas.types import WORK, UserMistake

ONLY = ("unreadable", "cut", "unrewarded", "rewarded", "failed")


@dataclass(frozen=True)
class Wanted:
    """Selection of a run's discussions."""

    step: int | None = None
    """From 1; None is the last one."""
    question: str | None = None
    """Only of questions whose id or text contains this."""
    only: str | None = None
    """Only those with a turn of this kind of `ONLY`."""
    limit: int | None = None
    """At most so many; None is `LIMIT`."""


LIMIT = 3


def print_discussions(ctx: typer.Context, run: Run, wanted: Wanted, as_json: bool) -> None:
    """Print who wrote what, what was read in it, and its reward."""
    only = wanted.only and current_name("--only", wanted.only, ONLY)
    if only is not None and only not in ONLY:
        raise UserMistake(f"--only {only}: one of {', '.join(ONLY)}")
    done = sum(1 for _ in run.metrics())
    if done == 0:
        raise UserMistake(f"{run.path} has no step yet")
    if wanted.step is not None and wanted.step > done:
        raise UserMistake(f"--step {wanted.step}: {run.path} has {done} steps")
    number = wanted.step or done
    records = [
        record
        for record in run.episodes(number - 1)
        if any((wanted.question or "") in record["question"][key] for key in ("id", "prompt"))
        and (only is None or _is(only, record))
    ]
    shown = records[: wanted.limit or LIMIT]
    if as_json:
        print_json(ctx, {"run": str(run.path), "step": number, "discussions": shown})
        return
    console = Console()
    console.print(Text(f"{run.path}, step {number}: {len(records)} discussions", "bold"))
    for record in shown:
        console.print()
        print_episode(console, episode_of(record), limit=4000)
    if len(records) > len(shown):
        more = len(records) - len(shown)
        console.print(Text(f"\nand {more} more: --limit {len(records)}", "dim"))


def _is(kind: str, record: Mapping[str, Any]) -> bool:
    """Whether a discussion failed, or has a turn of another kind of `ONLY`."""
    if kind == "failed":
        return record["error"] is not None
    for turn in record["turns"]:
        reward = turn["reward"]
        kinds = {
            "unreadable": bool(unreadable(turn["info"])),
            "cut": not turn["finished"],
            "unrewarded": reward is None and kind_of(turn) in WORK,
            "rewarded": (reward or 0.0) > 0,
        }
        if kinds[kind]:
            return True
    return False
