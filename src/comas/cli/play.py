"""`comas play`: one discussion of a team on the terminal.

Leaves out: recorded discussions (`comas show`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comas.cli.output import Json, print_json, print_note
from comas.cli.train import read_config
from comas.program import command

if TYPE_CHECKING:
    from comas.team.build import Team
    from comas.types import Episode

System = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TEAM] [KEY=VALUE]...",
        help="A run, seed model, TOML or export (default: the latest run).",
    ),
]
Asked = Annotated[str | None, typer.Option(help="Ask this instead of a held-out question.")]
Seed = Annotated[int, typer.Option(help="Which question and which draws.")]


def play(
    ctx: typer.Context,
    arguments: System = None,
    question: Asked = None,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Watch one discussion: who says what, and what each turn is paid."""
    from comas.questions.checked import loaded
    from comas.storage.records import episode_record
    from comas.types import UserMistake

    if question is not None and not question.strip():
        raise UserMistake(
            "--question is empty: give a text, or leave it out for a held-out question"
        )
    team = _team(arguments)
    config = team.config
    try:
        asked = question
        if asked is None:
            options = config.task_options
            held_out = loaded(team.task, "test", path=config.data, limit=1, seed=seed, **options)
            if not held_out:
                raise UserMistake(
                    f"task {config.task} has no held-out question to be played: ask one of your own"
                    ' with --question "..."'
                )
            asked = held_out[0]
        episode = team.discuss(asked, seed)
        if episode.error:
            raise UserMistake(episode.error)
        if json_:
            print_json(ctx, episode_record(episode))
        else:
            _show(team, episode, is_held_out=question is None)
    finally:
        team.close()


def _show(team: Team, episode: Episode, is_held_out: bool) -> None:
    from rich.console import Console

    from comas.display import print_episode
    from comas.game.play import own_file

    def judge(answer: str) -> str:
        with own_file(team.task.verify, "verify"):
            return team.task.verify(episode.question, answer)

    print_episode(Console(), episode, judge=judge if is_held_out else None)


def _team(arguments: list[str] | None) -> Team:
    """The team that the arguments name: of a run, a model, an export or a config file; without any,
    of the latest run, or of the default.
    """
    from comas.config.resolve import resolve
    from comas.config.systems import found_at, is_model, is_run
    from comas.evaluation.systems import greeted, system_team
    from comas.models.sources import meant, team_file
    from comas.program import latest_run
    from comas.sync import run_sync
    from comas.types import UserMistake

    if not arguments and (run := latest_run()) is not None:
        print(f"{run} (the latest run)", file=sys.stderr)
        arguments = [str(run)]
    if arguments and ("=" not in arguments[0] or is_run(arguments[0])):
        name, *pairs = arguments
        if is_model(name):
            return system_team(name, pairs)
        if is_run(name) or team_file(name) is not None:
            resolved, weights = found_at(name, overrides=pairs)
            return run_sync(greeted(resolved, print_note, weights))
        if not Path(name).is_file():
            raise UserMistake(
                f"{name} is neither a run's folder, nor a team's, nor a config{meant(name)}; see"
                f" {command()} play --help"
            )
    return run_sync(greeted(resolve(read_config(arguments)), print_note))
