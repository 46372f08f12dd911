"""`comas show`: recorded discussions of a run on the terminal; nothing is played or computed.

Leaves out: new discussions (`comas play`), numbers (`comas report`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli.output import Json, print_json

if TYPE_CHECKING:
    from comas.storage.run import Run

Step = Annotated[int | None, typer.Option(min=1, help="From 1; the last one unless named.")]
Question = Annotated[
    str | None, typer.Option(help="Only questions whose id or text contains this.")
]
Only = Annotated[
    str | None,
    typer.Option(
        help="unreadable, cut, unpaid, paid or failed: only discussions with such a turn."
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="Discussions at most.")]


def show(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run; the latest one unless named.")] = None,
    step: Step = None,
    question: Question = None,
    only: Only = None,
    limit: Limit = 3,
    json_: Json = False,
) -> None:
    """Read recorded discussions: who said what, what was read in it, and what it was paid."""
    from comas.program import named_or_latest
    from comas.storage.run import Run
    from comas.types import UserMistake

    opened = Run.open(named_or_latest(run))
    if only is not None and only not in ONLY:
        raise UserMistake(f"--only {only}: one of {', '.join(ONLY)}")
    number = _step(opened, step)
    found = [record for record in opened.episodes(number) if _wanted(record, question, only)]
    if json_:
        print_json(ctx, {"run": str(opened.path), "step": number + 1, "discussions": found[:limit]})
        return
    _print(opened, number, found, limit)


def _step(run: Run, step: int | None) -> int:
    """The step's number from 0."""
    from comas.types import UserMistake

    done = sum(1 for _ in run.metrics())
    if done == 0:
        raise UserMistake(f"{run.path} has no step yet")
    if step is not None and step > done:
        raise UserMistake(f"--step {step}: {run.path} has {done} steps")
    return (step or done) - 1


ONLY = ("unreadable", "cut", "unpaid", "paid", "failed")


def _wanted(record: dict[str, Any], question: str | None, only: str | None) -> bool:
    asked = record["question"]
    if question is not None and question not in asked["id"] and question not in asked["prompt"]:
        return False
    if only == "failed":
        return record["error"] is not None
    return only is None or any(_is(only, turn) for turn in record["turns"])


def _is(kind: str, turn: dict[str, Any]) -> bool:
    from comas.game.judgements import unreadable

    if kind == "unreadable":
        return bool(unreadable(turn["info"]))
    if kind == "cut":
        return not turn["finished"]
    if kind == "unpaid":
        return turn["reward"] is None
    return kind == "paid" and (turn["reward"] or 0.0) > 0


def _print(run: Run, step: int, found: list[dict[str, Any]], limit: int) -> None:
    from rich.console import Console
    from rich.text import Text

    from comas.display import print_episode
    from comas.storage.records import episode_of

    console = Console()
    title = f"{run.path}, step {step + 1}: {len(found)} discussions"
    console.print(Text(title, "bold"))
    for record in found[:limit]:
        console.print()
        print_episode(console, episode_of(record), limit=4000)
    if len(found) > limit:
        console.print(Text(f"\nand {len(found) - limit} more: --limit {len(found)}", "dim"))
