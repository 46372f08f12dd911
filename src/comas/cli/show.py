"""`comas show`: recorded discussions of a run on the terminal; nothing is played or computed.

Leaves out: new discussions (`comas play`), numbers (`comas report`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli.output import Json, print_json

if TYPE_CHECKING:
    from comas.storage.run import Run

Step = Annotated[int | None, typer.Option(min=1, help="From 1; the last one unless named.")]
Role = Annotated[
    str | None, typer.Option(help="Only turns of this role, and those that they are about.")
]
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
    role: Role = None,
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
    records = list(opened.episodes(number))
    found = [record for record in records if _wanted(record, role, question, only)]
    if json_:
        print_json(ctx, {"run": str(opened.path), "step": number + 1, "discussions": found[:limit]})
        return
    _print(opened, number, found, limit, role)
    roles = {turn["role"] for record in records for turn in record["turns"]}
    if role is not None and role not in roles:
        known = ", ".join(sorted(roles)) or "none"
        print(f"nobody was asked as {role} in this step; roles here: {known}")


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


def _wanted(
    record: dict[str, Any], role: str | None, question: str | None, only: str | None
) -> bool:
    turns = record["turns"]
    if role is not None and role not in [turn["role"] for turn in turns]:
        return False
    asked = record["question"]
    if question is not None and question not in asked["id"] and question not in asked["prompt"]:
        return False
    if only == "failed":
        return record["error"] is not None
    return only is None or any(_is(only, turn) for turn in turns)


def _is(kind: str, turn: dict[str, Any]) -> bool:
    from comas.game.judgements import unreadable

    if kind == "unreadable":
        return bool(unreadable(turn["info"]))
    if kind == "cut":
        return not turn["finished"]
    if kind == "unpaid":
        return turn["reward"] is None
    return kind == "paid" and (turn["reward"] or 0.0) > 0


def _print(run: Run, step: int, found: list[dict[str, Any]], limit: int, role: str | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from comas.display import print_episode
    from comas.storage.records import episode_of

    console = Console()
    title = f"{run.path}, step {step + 1}: {len(found)} discussions"
    console.print(Text(title, "bold"))
    for record in found[:limit]:
        episode = episode_of(record)
        ids = set(_ids_of_role(record, role))
        turns = [turn for turn in episode.turns if turn.id in ids]
        console.print()
        print_episode(console, episode, turns, limit=4000)
    if len(found) > limit:
        console.print(Text(f"\nand {len(found) - limit} more: --limit {len(found)}", "dim"))


def _ids_of_role(record: dict[str, Any], role: str | None) -> Iterator[str]:
    """Ids of the turns of a role, and of those that they are about."""
    about = {turn["id"]: turn["about"] for turn in record["turns"]}
    for turn in record["turns"]:
        if role is None or turn["role"] == role:
            place: str | None = turn["id"]
            while place is not None:
                yield place
                place = about.get(place)
