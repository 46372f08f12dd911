"""Tools by name or file: `calculator` is `comas.tools.calculator`, `./mine.py` that file.

Leaves out: what they do (`tools`), and how agents call them (`game.dialogue`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.config.options import filled
from comas.config.plugins import load_builder
from comas.config.schema import Config
from comas.types import Task, Tool, UserMistake

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def with_tools(task: Task, config: Config) -> Task:
    """The task with the tools that a config names beside its own."""
    check_tool_options(config)
    if not config.tools:
        return task
    named = [_tool(name, config.tool_options) for name in config.tools]
    there = {**task.tools}
    for tool in named:
        if tool.name in there:
            raise UserMistake(
                f"tools: {tool.name!r} stands there twice, or task {task.name} brings it itself:"
                " name it once"
            )
        there[tool.name] = tool
    return replace(task, tools=there)


def check_tool_options(config: Config) -> None:
    """An error for options of a tool that is not named."""
    named = [Path(name).stem for name in config.tools]
    for name in config.tool_options:
        if name not in named:
            known = nearest(name, named) if named else "`tools` names none"
            raise UserMistake(f"unknown key tool_options.{name}: {known}")


def _tool(name: str, options: Mapping[str, Mapping[str, Any]]) -> Tool:
    """The tool of this name or file, with its options."""
    module = load_builder("tools", name, "tools")
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
    _check(tool, name)
    return tool


def _check(tool: Tool, name: str) -> None:
    """An error for a tool that could not be called, or never be waited for."""
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
