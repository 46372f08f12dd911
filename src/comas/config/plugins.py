"""Everything that is named in a config and found by that name: methods, tasks and setups, engines,
kinds of hosts, monitors, tools, trackers. `ttrl` is `comas.methods.ttrl`,
`./mine.py` that file. Adding one is adding a file.

What cannot be played, learnt by or called is a mistake in one line, and so is an option that its
function does not take. Leaves out: what they make.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeGuard, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from comas.config.mistakes import FORMER_MONITORS, current_name, meant, nearest
from comas.config.own_tasks import held
from comas.game.play import OWN, bare
from comas.game.prompts import check_holes
from comas.types import Method, Setup, Task, Tool, UserMistake


class Kind(NamedTuple):
    """Things that a config names."""

    folder: str
    """Below the package: the shipped ones, `ttrl` in `methods/ttrl.py`."""
    defines: str
    """Definition that the file of one has."""
    made: type = FunctionType
    """Class of that."""
    names: tuple[str, ...] = ()
    """The shipped ones, where other modules lie in the folder too."""


KINDS = {
    "method": Kind("methods", "method = Method(...)", Method),
    "task": Kind("tasks", "task = Task(...)", Task),
    "setup": Kind("setups", "setup = Setup(...)", Setup),
    "engine": Kind("engines", "build(plan, models)", names=("auto", "hf", "stacked", "vllm")),
    "host": Kind("hosts", "build(plan)", names=("api", "local", "ray")),
    "monitor": Kind(
        "monitors",
        "watch()",
        names=("habits", "late_fall", "probes", "rejections", "unreadable"),
    ),
    "tool": Kind("tools", "make()", names=("calculator", "python", "search")),
    "tracker": Kind("trackers", "open(run)", names=("mlflow", "tensorboard", "trackio", "wandb")),
}
PACKAGE = Path(__file__).parents[1]
SEVERAL = "benchmarks"
"""The file of `tasks` that defines several, by name, in `TASKS`."""


def names_file(name: Any) -> TypeGuard[str]:
    """Whether a name is that of a file of the user's own."""
    return isinstance(name, str) and name.endswith(".py")


def plugin_names(kind: str) -> list[str]:
    """The shipped ones of a kind."""
    folder, _, _, names = KINDS[kind]
    if names:
        return list(names)
    stems = {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}
    if kind == "task":
        tasks = importlib.import_module(f"comas.tasks.{SEVERAL}").TASKS
        stems = (stems - {SEVERAL}) | tasks.keys()
    return sorted(stems)


def check_plugin_name(kind: str, name: str, key: str = "") -> None:
    """Raise UserMistake where nothing has this name; nothing is imported but the file of several
    tasks. `key` is the config key that names it, for error messages.
    """
    named = _named(kind, name, key)
    if names_file(name):
        if not Path(name).is_file():
            raise UserMistake(f"{named}: no such file")
        return
    if kind == "monitor" and name in FORMER_MONITORS:
        raise UserMistake(
            f"{named}: it saw no collapse in time and is gone: leave it out (docs/monitors.md)"
        )
    if kind == "task" and name.endswith(".jsonl"):
        raise UserMistake(f"{named}: write task=jsonl data={name}")
    if name not in (known := plugin_names(kind)):
        raise UserMistake(f"{named}: {meant(name, known)} (or ./file.py)")


def load_plugin(kind: str, name: str, key: str = "", instead: str | None = None) -> Any:
    """The method, task or setup of this name, or the one of the kind that may stand `instead`; of
    other kinds the module, whose function is called. `ttrl` is `comas.methods.ttrl`, `./mine.py`
    that file; `key` is the config key that names it, for error messages.
    """
    if instead is not None and not names_file(name) and name in plugin_names(instead):
        kind = instead
    check_plugin_name(kind, name, key)
    named = _named(kind, name, key)
    module: Any
    if names_file(name):
        module = import_file(name, named)
        if instead is not None and isinstance(getattr(module, instead, None), KINDS[instead].made):
            kind = instead
    else:
        module = importlib.import_module(_module(kind, name))
    _, defines, made, _ = KINDS[kind]
    if made is FunctionType:
        if not callable(getattr(module, defines.partition("(")[0], None)):
            raise UserMistake(f"{named}: the file defines no `{defines}`")
        return module
    plugin: Any = getattr(module, kind, None) or getattr(module, "TASKS", {}).get(name)
    if not isinstance(plugin, made):
        raise UserMistake(f"{named}: the file defines no `{defines}`")
    _check_calls(plugin, named)
    if names_file(name):
        wording = plugin.wording if isinstance(plugin, Task) else getattr(module, "WORDING", None)
        check_holes(wording, named, Path(name).read_text(encoding="utf-8-sig"))
        if isinstance(plugin, Task):
            return held(plugin)
    return plugin


def _named(kind: str, name: str, key: str) -> str:
    """Name it as the config does, for error messages."""
    return f"{key} = {name!r}" if key else f"{kind} {name!r}"


def _module(kind: str, name: str) -> str:
    """The module of a shipped one."""
    folder = KINDS[kind].folder
    is_alone = kind != "task" or (PACKAGE / folder / f"{name}.py").is_file()
    return f"comas.{folder}.{name if is_alone else SEVERAL}"


def _check_calls(plugin: Method | Task | Setup, named: str) -> None:
    """Raise UserMistake where its functions cannot be called as they will be."""
    if isinstance(plugin, Task):
        try:
            inspect.signature(plugin.load).bind("train", path=None, limit=None, seed=0)
            if taken := {"path", "limit", "seed"} & keywords(plugin.load).keys():
                raise TypeError(f"{min(taken)} stands behind a star, where options do")
        except TypeError as error:
            raise UserMistake(
                f"{named}: load is called as load(split, path=None, limit=None, seed=0,"
                f" **options), and does not take that: {error}"
            ) from error
        return
    if not inspect.iscoroutinefunction(bare(plugin.play)):
        raise UserMistake(f"{named}: play has to be `async def`, and to await what it asks")
    if isinstance(plugin, Method):
        _check_functions(plugin, named)


def _check_functions(method: Method, named: str) -> None:
    """Raise UserMistake where the functions of a method cannot be called as they will be, such as
    because two were swapped.
    """
    wanted = {
        "play": "question, agents, rng, task",
        "settle": "episodes, task",
        "start": "questions, task",
        "draw": "state, questions, count, rng, task",
        "update": "state, episodes, task",
        "credit": "rows, kl",
        "loss": "logprobs, batch",
    }
    for part, arguments in wanted.items():
        defined = getattr(method.memory if hasattr(method.memory, part) else method, part)
        if defined is None:
            continue
        function = bare(defined)
        awaited = part != "play" and inspect.iscoroutinefunction(function)
        # credit and loss both take two arguments, and would fail in the first step only
        swapped = (
            part == "loss" and next(iter(inspect.signature(function).parameters), "") == "rows"
        )
        if awaited or swapped or not _takes(function, arguments.split(", ")):
            raise UserMistake(
                f"{named}: {part} is called as {part}({arguments}), and {function.__name__}"
                " does not take that; the order is Method(play, settle, credit, loss)"
            )


def _takes(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Whether a function can be called with these positional arguments and options."""
    parameters = inspect.signature(function).parameters.values()
    options = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError:
        return False
    return True


def check_trackers(names: Iterable[str]) -> None:
    """Raise UserMistake for what is no tracker, or misses its package, and for two whose files have
    one name, by which it is noted what each was sent; nothing is imported.

    A shipped tracker, its package and the extra that brings it have one name.
    """
    first_named: dict[str, str] = {}
    for name in names:
        called = Path(name).name
        if first_named.setdefault(called, name) != name:
            raise UserMistake(
                f"track = {name!r}: two trackers are called {called}: rename one of the files"
            )
        check_plugin_name("tracker", name, "track")
        if names_file(name):
            continue
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise UserMistake(
                f"track = {name!r} needs a package that is not installed: pip install"
                f' "comas[{name}]", or leave it out of track'
            ) from error


# --- files of the user's own


def import_file(name: str, named: str) -> ModuleType:
    """The module in the file `name`; errors call it as it is `named`."""
    path = Path(name).resolve()
    spec = importlib.util.spec_from_file_location(f"{OWN}{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserMistake(f"{named}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise UserMistake(f"{named} cannot be imported: {error}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        unnamed = "__init__() takes 1 positional argument" in str(error)
        remedy = ": its fields are given by name, as in Task(name=...)" if unnamed else ""
        raise UserMistake(
            f"{named} cannot be imported: {type(error).__name__}: {error}{where}{remedy}"
        ) from error
    return module


# --- tools


_NAME = re.compile(r"[a-z][a-z0-9_]*")


def with_tools(task: Task, names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> Task:
    """Add the tools of these names or files, each with its options, to those of the task."""
    stems = [Path(name).stem for name in names]
    for name in options:
        if name not in stems:
            suggestion = nearest(name, stems) if stems else "`tools` names none"
            raise UserMistake(f"unknown key tool_options.{name}: {suggestion}")
    tools = dict(task.tools)
    for name in names:
        tool = _tool(name, options)
        if tool.name in tools:
            raise UserMistake(
                f"tools: {tool.name!r} stands there twice, or task {task.name} brings it itself:"
                " name it once"
            )
        tools[tool.name] = tool
    return replace(task, tools=tools) if names else task


def _tool(name: str, options: Mapping[str, Mapping[str, Any]]) -> Tool:
    """The tool of this name or file, with its options; an error for one that could not be called,
    or never be waited for.
    """
    module = load_plugin("tool", name, "tools")
    stem = Path(name).stem
    taken = filled(f"tool_options.{stem}", options.get(stem, {}), module.make)
    try:
        tool: Any = module.make(**taken)
    except UserMistake:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserMistake(f"tools = {name!r}: make() failed: {reason}") from error
    if not isinstance(tool, Tool):
        raise UserMistake(f"tools = {name!r}: make() returned {type(tool).__name__}, not a Tool")
    if not _NAME.fullmatch(tool.name):
        raise UserMistake(
            f"tools = {name!r}: a tool cannot be called {tool.name!r}: take small letters, digits"
            " and _, so that agents can write <name>"
        )
    if not callable(tool.run):
        raise UserMistake(f"tools = {name!r}: run={tool.run!r} is no function")
    if inspect.iscoroutinefunction(tool.run):
        raise UserMistake(
            f"tools = {name!r}: run is a coroutine: make it a function, which gets a thread of its"
            " own"
        )
    for bound in ("seconds", "longest", "at_once"):
        value = getattr(tool, bound)
        if not isinstance(value, int | float) or not value > 0:
            raise UserMistake(f"tools = {name!r}: {bound}={value!r}, wanted is a number above 0")
    return tool


# --- options: keywords of the functions that use them


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters of a function and their defaults; through `partial`.

    `state` is none of them: it is what a method remembers.
    """
    parameters = inspect.signature(bare(function)).parameters.values()
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "state"]
    return {p.name: p.default for p in keyword_only}


def filled(
    table: str, options: Mapping[str, Any], *functions: Callable[..., Any]
) -> dict[str, Any]:
    """Check the given options against the annotations of these functions' keywords, and add the
    defaults of the others.
    """
    defaults: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for function in functions:
        defaults |= keywords(function)
        hints |= _hints(function)
    values = dict(defaults)
    for key, value in options.items():
        if key not in defaults:
            raise UserMistake(f"unknown key {table}.{key}: {nearest(key, defaults)}")
        try:
            # as JSON: a list is a tuple where one is asked for, but text is never a number
            text = to_json(value, inf_nan_mode="strings")
            values[key] = TypeAdapter(hints.get(key, Any)).validate_json(text, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise UserMistake(f"{table}.{key} = {value!r}: {message}") from error
        except PydanticSerializationError as error:  # from Python
            raise UserMistake(
                f"{table}.{key} is {type(value).__name__}: take a value that TOML can hold"
            ) from error
    for key, value in values.items():
        if value is inspect.Parameter.empty:
            raise UserMistake(f"{table}.{key} has no default: set it")
    return values


def with_current_names(
    options: Mapping[str, Any], functions: Iterable[Callable[..., Any]]
) -> dict[str, Any]:
    """Options of these functions, with names and values of 0.1 as they are called now."""
    hints: dict[str, Any] = {}
    for function in functions:
        hints |= dict.fromkeys(keywords(function)) | _hints(function)
    current: dict[str, Any] = {}
    for written, value in options.items():
        key = current_name("option", written, hints)
        values = get_args(hints.get(key))
        is_word = isinstance(value, str) and all(isinstance(known, str) for known in values)
        current[key] = current_name(f"{key} =", value, values) if is_word else value
    return current


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = bare(function)
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:  # imported for the type checker only
        raise UserMistake(
            f"{function.__name__}: the annotation of an option cannot be read, {error}"
        ) from error


def split_options(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The options that this function takes."""
    taken = keywords(function)
    return {key: value for key, value in options.items() if key in taken}


def functions_of(method: Method) -> list[Callable[..., Any]]:
    """The functions of a method that take its options."""
    memory = method.memory
    functions = (method.settle, method.play, memory.start, memory.draw, memory.update)
    return [function for function in functions if function is not None]
