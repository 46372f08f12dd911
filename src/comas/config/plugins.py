"""Everything that is named in a config and found by that name: methods, tasks and setups, engines,
kinds of hosts, metrics, monitors, tools, trackers, transports. `ttrl` is `comas.methods.ttrl`,
`./mine.py` that file. Adding one is adding a file.

What cannot be played, learnt by or called is a mistake in one line. Leaves out: their options
(`config.options`), what they make.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from comas.config import former
from comas.config.mistakes import nearest
from comas.config.options import keywords, unwrapped
from comas.game.prompts import check_holes
from comas.types import Method, Row, Setup, Task, UserMistake

PLUGINS = {"method": Method, "task": Task, "setup": Setup}
PACKAGE = Path(__file__).parents[1]
CALLS = {
    "engines": "build(plan, models)",
    "hosts": "build(plan)",
    "trackers": "open(run)",
    "metrics": "metric(step)",
    "monitors": "watch()",
    "tools": "make()",
    "transports": "start(call, heard, ended)",
}
"""Folder -> how what is found there is called."""
BELOW = {"metrics": "training/metrics"}
"""Where a folder is that does not lie beside the others."""


# --- files that define an object: a method, a task, a setup


def load_plugin(kind: str, name: str, instead: str | None = None) -> Any:
    """`method`, `task` or `setup` by name: `ttrl` is `comas.methods.ttrl`, `./mine.py` that file;
    its attribute of that kind, or of the kind that may stand `instead`.
    """
    if name.endswith(".py"):
        module: Any = import_file(name, kind)
        if instead is not None and isinstance(getattr(module, instead, None), PLUGINS[instead]):
            kind = instead
    elif instead is not None and name in plugin_names(instead):
        return load_plugin(instead, name)
    else:
        known = plugin_names(kind)
        if name not in known:
            raise UserMistake(f"{kind} {name!r}: {nearest(name, known)} (or ./file.py)")
        module = importlib.import_module(f"comas.{kind}s.{name}")
    found = getattr(module, kind, None)
    if not isinstance(found, PLUGINS[kind]):
        raise UserMistake(f"{kind} {name!r}: the file defines no `{kind} = {kind.title()}(...)`")
    if isinstance(found, Method | Setup) and not inspect.iscoroutinefunction(unwrapped(found.play)):
        raise UserMistake(f"{kind} {name!r}: play has to be `async def`, and to await what it asks")
    if isinstance(found, Method):
        _check_functions(found, name)
        _check_order(found, name)
    if isinstance(found, Task):
        _check_load(found, name)
    if name.endswith(".py"):
        wording = found.wording if isinstance(found, Task) else getattr(module, "WORDING", None)
        check_holes(wording, f"{kind} {name!r}", Path(name).read_text(encoding="utf-8-sig"))
    return found


def _check_functions(method: Method, name: str) -> None:
    """An error where the functions of a method cannot be called as they will be, for instance
    because two were swapped.
    """
    wanted = {
        "play": "question, agents, rng, task",
        "settle": "episodes, task",
        "start": "questions, task",
        "draw": "state, questions, count, rng, task",
        "update": "state, episodes, task",
        "advantage": "rows, kl",
        "loss": "logprobs, batch",
    }
    for part, arguments in wanted.items():
        if getattr(method, part) is None:
            continue
        function = unwrapped(getattr(method, part))
        awaited = part != "play" and inspect.iscoroutinefunction(function)
        if awaited or not _takes(function, arguments.split(", ")):
            raise UserMistake(
                f"method {name!r}: {part} is called as {part}({arguments}), and {function.__name__}"
                " does not take that; the order is Method(play, settle, advantage, loss)"
            )


def _check_load(task: Task, name: str) -> None:
    """An error where a task's `load` cannot be called as it is, or would have options of its own
    under the names of what it is always given.
    """
    reason = ""
    try:
        inspect.signature(task.load).bind("train", path=None, limit=None, seed=0)
        taken = {"path", "limit", "seed"} & keywords(task.load).keys()
        if taken:
            reason = f"{min(taken)} stands behind a star, where options of its own do"
    except TypeError as error:
        reason = str(error)
    if reason:
        raise UserMistake(
            f"task {name!r}: load is called as load(split, path=None, limit=None, seed=0,"
            f" **options), and {_name_of(task.load)} does not take that: {reason}"
        )


def _name_of(function: Any) -> str:
    """What a function is called; of an object that is called like one, its kind."""
    found = unwrapped(function)
    return getattr(found, "__name__", type(found).__name__)


def _check_order(method: Method, name: str) -> None:
    """An error where what stands as the loss makes advantages: both take two arguments, and would
    fail in the first step only.

    Certain, not likely: a loss is given tensors, and nothing but an advantage makes one array per
    row out of rows.
    """
    rows = [_row(role, n) for role in method.paid for n in range(4)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = method.loss(rows, {})
    except Exception:  # noqa: BLE001 - as losses fail that are given no tensors, which is how they should
        return
    if not isinstance(made, Sequence):
        return
    shapes = [np.shape(part) for part in cast("Sequence[Any]", made)]
    if shapes == [(3,)] * len(rows):
        function = unwrapped(method.loss)
        raise UserMistake(
            f"method {name!r}: {function.__name__} makes advantages and stands where the loss is"
            " wanted; the order is Method(play, settle, advantage, loss)"
        )


def _row(role: str, n: int) -> Row:
    """One of four rows of two tokens behind a prompt of one: two groups, rewards 0 and 1."""
    return Row(
        turn=f"t{n}",
        role=role,
        temperature=1.0,
        token_ids_T=np.arange(3),
        mask_T=np.array([False, True, True]),
        logprobs_T=np.zeros(3, np.float32),
        group=f"g{n // 2}",
        reward=float(n % 2),
    )


def _takes(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Whether a function can be called with so many positional arguments and no more."""
    try:
        signature = inspect.signature(function)
        signature.bind_partial(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin tells nothing of its arguments
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in signature.parameters.values() if p.kind in kinds]
    further = positional[len(arguments) :]
    return all(p.default is not p.empty for p in further)


def plugin_names(kind: str) -> list[str]:
    """The methods, tasks or setups that are shipped."""
    folder = Path(__file__).parents[1] / f"{kind}s"
    names = {path.stem for path in folder.glob("*.py")}
    return sorted(names - {"__init__"})


# --- files that define a function which is called: engines, hosts, metrics ...


def builder_names(folder: str) -> list[str]:
    """The modules that are shipped: files and folders of `folder` that define what is called."""
    place = PACKAGE / BELOW.get(folder, folder)
    files = {path.stem: path for path in place.glob("*.py")}
    files |= {path.parent.name: path for path in place.glob("*/__init__.py")}
    definition = f"\ndef {_function(folder)}("
    return sorted(n for n, path in files.items() if definition in path.read_text(encoding="utf-8"))


def check_builder_name(folder: str, name: str, key: str) -> None:
    """An error where nothing is called so; nothing is imported."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UserMistake(f"{key} = {name!r}: no such file")
        return
    if folder == "monitors" and name in former.MONITORS:
        raise UserMistake(
            f"{key} = {name!r}: it saw no collapse in time and is gone: leave it out"
            " (docs/monitors.md)"
        )
    known = builder_names(folder)
    if name not in known:
        raise UserMistake(f"{key} = {name!r}: {nearest(name, known)} (or ./file.py)")


def load_builder(folder: str, name: str, key: str) -> Any:
    """The module of this name; `key` is the config key that names it, for error messages."""
    check_builder_name(folder, name, key)
    module: Any
    if name.endswith(".py"):
        module = import_file(name, f"{key} =")
    else:
        package = BELOW.get(folder, folder).replace("/", ".")
        module = importlib.import_module(f"comas.{package}.{name}")
    if not callable(getattr(module, _function(folder), None)):
        raise UserMistake(f"{key} = {name!r}: the file defines no `{CALLS[folder]}`")
    return module


def _function(folder: str) -> str:
    """The name of the function that is called."""
    return CALLS[folder].partition("(")[0]


def check_trackers(names: Iterable[str]) -> None:
    """An error for what is no tracker, or misses its package; nothing is imported."""
    for name in names:
        _check_tracker(name)


def _check_tracker(name: str) -> None:
    """A shipped tracker, its package and the extra that brings it have one name."""
    check_builder_name("trackers", name, "track")
    if name.endswith(".py"):
        return
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise UserMistake(
            f'track = {name!r} needs a package that is not installed: pip install "comas[{name}]",'
            " or leave it out of track"
        ) from error


# --- files of the user's own


def import_file(name: str, kind: str) -> ModuleType:
    """The module in the file `name`; `kind` says in errors what it was to be."""
    path = Path(name).resolve()
    spec = importlib.util.spec_from_file_location(f"comas_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserMistake(f"{kind} {name!r}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise UserMistake(f"{kind} {name!r} cannot be imported: {error}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise UserMistake(
            f"{kind} {name!r} cannot be imported: {type(error).__name__}: {error}{where}"
        ) from error
    return module
