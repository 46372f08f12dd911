"""The command line: assemble and call.

A user's mistake is one line and exit code 2; Ctrl-C says how to go on and exits with 130; where
nobody reads stdout any more (`comas report | head -1`) it is 141, as of other programs. With
`--json` the last line of stdout is one object and nothing else is printed there. Leaves out:
everything that could be a function elsewhere.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from comas.cli import evaluate, listing, look, new, preflight, serve, study, train
from comas.cli.output import Json, print_error, print_json
from comas.config.plugins import PACKAGE
from comas.config.schema import Config, consents
from comas.exit_codes import CLOSED, MISTAKE, STOPPED
from comas.program import VERSION, command
from comas.seams import StaleWeights
from comas.types import HostFailure, HostLost, UserMistake

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Teams of language models that teach each other by discussing questions.",
)


def main() -> None:
    """Run the command line; the only place that turns exceptions into exit codes."""
    # their retries and bars, between our lines
    for library in ("HF_HUB", "TRANSFORMERS", "DATASETS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an old code page lacks the lines of our tables
    if any("\udc80" <= letter <= "\udcff" for letter in "".join(sys.argv)):
        sys.exit(_fail("an argument is not UTF-8, or not in this locale: set PYTHONUTF8=1"))
    code = _run()
    if code == STOPPED and any(
        thread.name.startswith("verify") for thread in threading.enumerate()
    ):
        # a verifier of the user's own may never return, and Python waits for its thread
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STOPPED)
    if code == CLOSED and sys.stdout is not None:
        with suppress(OSError):  # what is left to write shall not fail once more while Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code if isinstance(code, int) else 0)


def _run() -> int | str | None:
    """Run the command that the arguments name, and return the exit code."""
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # as it is without any (`>&-`)
            sys.stdout.flush()
        # the parser's word for Ctrl-C; who has told how to go on has left by SystemExit
        return _stop() if code == STOPPED else code
    except BrokenPipeError:
        return CLOSED
    except SystemExit as left:
        where = traceback.extract_tb(left.__traceback__)[-1]
        file = Path(where.filename)
        if not file.is_relative_to(PACKAGE) and "rich" not in file.parts:
            return _fail(
                f"{file.name} line {where.lineno} ended the program: SystemExit: {left.code};"
                " raise an error there instead"
            )
        # rich's word for a closed pipe; nobody of ours says 1
        return CLOSED if left.code == 1 else left.code
    except (UserMistake, HostFailure, HostLost, StaleWeights, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _stop()
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C, in the words of older parsers
            return _stop()
        if not hasattr(error, "format_message"):  # not one of the parser's own complaints
            raise
        return _fail(_with_hint(error.format_message()))  # type: ignore[attr-defined]


def _stop() -> int:
    """Say that it was stopped, where there is no run to go on with."""
    print("stopped", file=sys.stderr)
    return STOPPED


def _fail(message: str) -> int:
    print_error(message)
    return MISTAKE


FORMER_VERBS = {"compare": "eval A B", "show": "report --discussions", "doctor": "env"}
"""Verbs of 0.1, and what does the same now."""


def _with_hint(message: str) -> str:
    """A complaint of the parser about `--steps`, or a verb of 0.1, with what is wanted instead."""
    message = message.replace(": Value error, ", ": ")  # the words of the parser's own library
    verb = re.search(r"No such command '(\w+)'", message)
    if verb and verb[1] in FORMER_VERBS:
        return f"{command()} {verb[1]} is {command()} {FORMER_VERBS[verb[1]]} now"
    option = re.search(r"No such option:? '?--([\w-]+)", message)
    key = option[1].replace("-", "_") if option else ""
    if key not in Config.model_fields:
        return message
    return f"{message} (keys of the config are written without dashes: {key}=...)"


def _version(show: bool) -> None:
    if show:
        print(VERSION)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _common(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


app.command()(train.train)
app.command()(train.resume)
app.command()(preflight.preflight)
app.command()(look.play)
app.command()(train.report)
app.command("eval")(evaluate.evaluate)
app.command()(look.view)
app.command()(serve.serve)
app.command()(study.study)
app.command("list")(listing.list_)
app.command()(new.new)


@app.command()
def export(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="RUN, RUN@best or RUN@40.")],
    folder: Annotated[str, typer.Argument(help="A new folder.")],
    merged: Annotated[
        bool, typer.Option(help="Also write whole models into which the adapters are merged.")
    ] = True,
    base: Annotated[
        str | None, typer.Option(help="Where the adapters' base is found: a hub name or a folder.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write a trained team as folders for others.

    transformers and peft load them; model cards and team.toml stand beside.
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
    # its own tools, say, are somebody else's code to whoever loads it
    here = " ".join([shlex.quote(str(done.folder)), *consents(done.folder / "team.toml")])
    size = f"{done.bytes / 1e6:.1f} MB"
    print(f"team: {done.folder} ({size}), step {done.step} of {done.run}; card: README.md")
    print(f"next: {command()} play {here}")
    print(f"next: {command()} eval {here}")


@app.command()
def env(ctx: typer.Context, json_: Json = False) -> None:
    """Show what is installed, and what would run where.

    Fit for an issue: no paths, names or keys.
    """
    from comas import installed

    facts = installed.examine()
    if json_:
        print_json(ctx, facts)
        return
    for key, value in facts.items():
        if not isinstance(value, dict):
            print(f"{key}: {value}")
            continue
        print(f"{key}:")
        for name, detail in value.items():
            print(f"  {name:14s} {detail}")


if __name__ == "__main__":
    main()
