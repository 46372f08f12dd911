"""`comas serve`: a team behind an OpenAI-compatible endpoint.

Leaves out: the endpoint (`comas.serve`), evaluation on questions of ours (`comas eval`).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from comas.cli.output import Json, print_json, print_note, split
from comas.config.plan import Plan
from comas.config.schema import OF_TRAINING
from comas.evaluation import spec
from comas.evaluation.setups import asking_of
from comas.evaluation.systems import greeted
from comas.program import command
from comas.serve.playing import Players, check_task, models_of
from comas.sync import run_sync
from comas.team import spending
from comas.team.build import outline
from comas.types import UserMistake

UNUSED_HERE = (
    *("base", "temperature", "data", "samples", "out"),
    *("questions", "eval_questions", "test_questions"),
)
"""Keys of the config that clients or other options say, besides those of training."""

Team = Annotated[
    list[str],
    typer.Argument(
        metavar="TEAM [KEY=VALUE]...",
        help="A run (RUN, RUN@best, RUN@40), a model, TEAM.toml; key=value of its config.",
    ),
]
Setups = Annotated[
    str | None,
    typer.Option(
        help="Divided by commas: single,vote:votes=16,game ...; default: all that can be played."
    ),
]
Host = Annotated[
    str, typer.Option(help="Where to listen; beyond loopback only with COMAS_SERVE_KEY.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")]
AtOnce = Annotated[
    int,
    typer.Option(
        min=1,
        help="Discussions played at once; others wait, and beyond four times as many get a 429.",
    ),
]
Seconds = Annotated[float, typer.Option(min=0.001, help="That a request may take.")]


def serve(
    ctx: typer.Context,
    arguments: Team,
    setups: Setups = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    at_once: AtOnce = 64,
    seconds: Seconds = 600.0,
    json_: Json = False,
) -> None:
    """Answer clients of OpenAI's API with a team.

    Each of its setups is a model.
    """
    endpoint = _library()
    chosen = None
    if setups is not None:
        chosen = [name.strip() for name in setups.split(",") if name.strip()]
        if not chosen:
            raise UserMistake("--setups names none: one or more of single, vote, debate, game")
    plan = named_team(arguments)

    async def run(bound: socket.socket) -> None:
        key = endpoint.key_of(bound)
        asking = asking_of(plan.config)
        team = await greeted(plan, print_note, asking.sampling)
        try:
            models = models_of(team, chosen)
            players = Players(models, team.task, asking, team.config.seed, at_once)
            served = endpoint.Endpoint(players, host, key, seconds)
            url = served.url(bound)
            if json_:
                print_json(ctx, {"url": url, "models": list(models), "key": bool(key)})
            else:
                print(url, flush=True)
                print(f"models: {' '.join(models)}", file=sys.stderr)
                print("Ctrl-C ends it.", file=sys.stderr, flush=True)
            await served.answer_until_cancelled(bound)
        finally:
            for line in spending.cost_lines(spending.accounts(team.hosts)):
                print(line, file=sys.stderr)
            team.close()

    with endpoint.bound_to(host, port) as bound:
        run_sync(run(bound))


def _library() -> Any:
    """`comas.serve.endpoint`, where what it needs is installed."""
    try:
        from comas.serve import endpoint
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UserMistake(f'comas serve needs {error.name}: pip install "comas[serve]"') from error
    return endpoint


def named_team(arguments: Sequence[str]) -> Plan:
    """Plan the team that the arguments name, by the same rules as `comas eval`."""
    names, settings = split(arguments)
    if len(names) != 1 or "," in names[0]:
        raise UserMistake(
            f"serve takes one team, such as: {command()} serve tiny; not"
            f" {', '.join(names) or 'none'}"
        )
    (name,) = names
    for named, value in settings.items():
        key = named.split(".")[0]
        if key in UNUSED_HERE or key in OF_TRAINING:
            raise UserMistake(
                f"{named}={value}: {key} changes nothing where clients ask: leave it out"
            )
    evaluation = spec.placed(spec.EvaluationPlan([name], settings=settings))
    plan = evaluation.of(name)
    spec.check_hosts(evaluation.settings, [outline(plan)])
    check_task(plan.task)
    return plan
