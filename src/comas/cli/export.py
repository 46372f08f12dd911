"""`comas export`: a trained team as folders for transformers, peft and comas.

Leaves out: writing them (`export.team`).
"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from comas.cli.output import Json, print_json
from comas.program import command


def export(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="RUN, RUN@best or RUN@40.")],
    folder: Annotated[str, typer.Argument(help="A new folder.")],
    merged: Annotated[
        bool, typer.Option(help="Besides adapters, whole models to which they are added.")
    ] = True,
    base: Annotated[
        str | None, typer.Option(help="Where the adapters' base is found: a hub name or a folder.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write a trained team for others: folders that transformers and peft load, model cards, and
    team.toml.
    """
    from comas.export.team import export as write

    done = write(run, folder, merged=merged, base=base, note=print)
    if json_:
        record = {
            "folder": str(done.folder),
            "run": str(done.run),
            "step": done.step,
            "team": str(done.folder / "team.toml"),
            "policies": list(done.policies),
            "bytes": done.bytes,
        }
        print_json(ctx, record)
        return
    here = shlex.quote(str(done.folder))
    size = f"{done.bytes / 1e6:.1f} MB"
    print(f"team: {done.folder} ({size}), step {done.step} of {done.run}; card: README.md")
    print(f"next: {command()} play {here}")
    print(f"next: {command()} eval {here}")
