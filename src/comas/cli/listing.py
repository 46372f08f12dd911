"""`comas list`: everything that can be named, a line each: runs, methods, tasks, setups, keys.

Leaves out: what a run came to in full (`comas report`), what methods and keys mean in full (docs).
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console

from comas.cli.output import Json, print_json
from comas.config.plugins import PACKAGE, plugin_names
from comas.config.schema import AgentConfig, Config, HostConfig
from comas.display import clean
from comas.program import command, runs_by_time, touched
from comas.storage import files
from comas.storage.run import Run
from comas.training.result import Result, result_of
from comas.types import UserMistake


class Listed(StrEnum):
    """Things that can be listed."""

    RUNS = "runs"
    METHODS = "methods"
    TASKS = "tasks"
    SETUPS = "setups"
    KEYS = "keys"


def list_(
    ctx: typer.Context,
    kind: Annotated[Listed, typer.Argument(help="What is listed.")],
    word: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="Only lines with this word.")
    ] = None,
    json_: Json = False,
) -> None:
    """List runs, methods, tasks, setups or keys."""
    records = list(_RECORDS[kind]())
    if word is not None:
        wanted = word.casefold()
        records = [r for r in records if wanted in " ".join(map(str, r.values())).casefold()]
    if json_:
        print_json(ctx, {kind.value: records})
        return
    if not records:
        about = "" if word is None else f" with {word!r} in their lines"
        hint = f": begin one with {command()} train" if kind is Listed.RUNS and word is None else ""
        print(f"no {kind.value}{about}{hint}")
        return
    lines = [[clean(value, 1000) for value in record.values()] for record in records]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console = Console()
    for line in lines:
        padded = [part.ljust(width) for part, width in zip(line, widths, strict=True)]
        text = "  ".join(padded).rstrip()
        print(text[: console.width] if console.is_terminal else text)


# --- what is shipped


def _plugins(kind: str) -> Iterator[dict[str, str]]:
    """Name and first sentence of each shipped method, task or setup; nothing is imported but the
    file of several tasks.
    """
    for name in plugin_names(kind):
        file = PACKAGE / f"{kind}s" / f"{name}.py"
        says = "a benchmark of the hub (docs/evaluation.md)"
        if file.is_file():
            says = first_sentence(ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "")
        yield {"name": name, "says": says}


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    end = re.search(r"(?<!\bDr)\. ", paragraph)
    return paragraph if end is None else paragraph[: end.start() + 1]


TABLES: dict[str, type[BaseModel]] = {
    "": Config,
    "hosts.<name>.": HostConfig,
    "agents.<name>.": AgentConfig,
}
"""Where keys stand -> the class that has them."""


def _keys() -> Iterator[dict[str, str]]:
    """Dotted key, default and first sentence of each key of a config."""
    for prefix, table in TABLES.items():
        sentences = _first_sentences(table)
        for name, field in table.model_fields.items():
            if field.exclude:
                continue
            default = "" if field.default is None else _as_config(field.default)
            yield {"key": prefix + name, "default": default, "says": sentences.get(name, "")}


def _as_config(value: Any) -> str:
    """A default as it would be written; tables by their braces alone."""
    if isinstance(value, bool):
        return str(value).lower()
    return "{}" if isinstance(value, dict) else str(value)


def _first_sentences(table: type[BaseModel]) -> dict[str, str]:
    """Key -> the first sentence below it, of a class and of those that it is derived from."""
    sentences: dict[str, str] = {}
    for part in reversed(table.__mro__):
        module = part.__module__.removeprefix("comas.").replace(".", "/")
        file = PACKAGE / f"{module}.py"
        if not part.__module__.startswith("comas.") or not file.is_file():
            continue
        tree = ast.parse(file.read_text("utf-8"))
        bodies = [
            n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == part.__name__
        ]
        for body in bodies:
            sentences |= _below_fields(body)
    return sentences


def _below_fields(body: list[ast.stmt]) -> dict[str, str]:
    """Field -> the first sentence of the string below it."""
    sentences: dict[str, str] = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            sentences[field.target.id] = first_sentence(str(below.value.value))
    return sentences


# --- runs


def _runs() -> Iterator[dict[str, str]]:
    """Runs in the folder `runs`, the latest first."""
    for folder in runs_by_time():
        yield _run(Run(folder))


def _run(run: Run) -> dict[str, str]:
    """A run in a line; of one that cannot be read, why."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(touched(run.path)))
    line = {"run": str(run.path), "when": when}
    try:
        result = result_of(run)
    except (UserMistake, KeyError, TypeError, ValueError, OSError) as error:
        return {**line, "method": "", "base": "", "steps": "", "accuracy": "", "state": str(error)}
    config = result.config
    bases = {host.get("base", "") for host in config["hosts"].values()}
    bases |= {agent["base"] for agent in config["agents"].values() if agent.get("base")}
    return {
        **line,
        "method": Path(config["method"]).name,
        "base": ",".join(sorted(Path(base).name for base in bases if base)),
        "steps": f"{result.steps} of {config['steps']}",
        "accuracy": _accuracy(result),
        "state": _state(run, result),
    }


def _accuracy(result: Result) -> str:
    """Accuracy before and after on held-out questions, with the interval of the gain."""
    values = [result.accuracy.get(name) for name in ("before", "after")]
    accuracies = " -> ".join(f"{value.mean:.3f}" if value else "?" for value in values)
    return accuracies if result.gain is None else f"{accuracies} (gain {result.gain})"


def _state(run: Run, result: Result) -> str:
    """Whether somebody works on a run, and otherwise how it ended."""
    try:
        if (run.path / files.LOCK).exists():
            files.lock(run.path, "run").release()
    except UserMistake:
        return "running"
    except OSError:  # somebody else's, or a disk that cannot be written
        return "not known"
    if result.ended_by_alarm:
        return "ended by an alarm"
    return "done" if result.steps >= result.config["steps"] else "stopped"


_RECORDS = {
    Listed.RUNS: _runs,
    Listed.METHODS: lambda: _plugins("method"),
    Listed.TASKS: lambda: _plugins("task"),
    Listed.SETUPS: lambda: _plugins("setup"),
    Listed.KEYS: _keys,
}
