"""Calls of tools in what agents write: in plain tags, or as the chat template of a model writes
them.

A call ends its reply: `<search>words</search>`, or the JSON object that the template shows. Of
several calls in one reply the last is one, and the others are counted. Leaves out: what tools do
with their arguments (`game.dialogue`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from comas.types import Calls, Tool


@dataclass(frozen=True)
class Call:
    """A call that ends a reply."""

    tool: str
    argument: str
    earlier: int = 0
    """Calls before it in the same reply, which nobody runs."""


@dataclass(frozen=True)
class Unread:
    """What begins as a call and is none."""

    why: str


Found = Call | Unread | None
"""None: the reply calls nothing."""


def in_tags(text: str, tools: Mapping[str, Tool]) -> Found:
    """The call `<name>argument</name>` that ends a text."""
    text = text.rstrip()
    begun = {name: start for name in tools if (start := text.rfind(f"<{name}>")) >= 0}
    for name, start in begun.items():
        closing = f"</{name}>"
        if text.endswith(closing):
            argument = text[start : -len(closing)].removeprefix(f"<{name}>")
            earlier = sum(text.count(f"</{other}>", 0, start) for other in tools)
            return Call(name, argument.strip(), earlier)
    if not begun:
        return None
    latest = max(begun, key=lambda name: begun[name])
    return Unread(f"a call of {latest} that does not end the reply")


def in_template(text: str, tools: Mapping[str, Tool], calls: Calls) -> Found:
    """The call that ends a text, as the model's own chat template writes it."""
    before, after = calls.before.strip(), calls.after.strip()
    start = text.rfind(before) if before else 0
    body = text[start + len(before) :].strip() if start >= 0 else ""
    if not body or (not before and not body.startswith("{")):
        return None
    if after and not body.endswith(after):
        return Unread("a call that does not end the reply")
    try:
        call: Any = json.loads(body[: len(body) - len(after)])
    except (ValueError, RecursionError) as error:
        return Unread(f"a call that is no JSON ({error})")
    found = _named(call, tools, calls)
    earlier = text.count(before, 0, start) if before else 0
    return replace(found, earlier=earlier) if isinstance(found, Call) else found


def _named(call: Any, tools: Mapping[str, Tool], calls: Calls) -> Found:
    """The call that a JSON object makes."""
    if not isinstance(call, dict):
        return Unread("a call that is no JSON object")
    there = cast("dict[str, Any]", call)
    name = there.get(calls.name)
    if not isinstance(name, str) or name not in tools:
        return Unread(f"a call of {name!r}, which is none of {', '.join(tools)}")
    tool = tools[name]
    arguments = there.get(calls.arguments)
    if isinstance(arguments, Mapping):
        values = list(cast("Mapping[str, Any]", arguments).values())
        arguments = values[0] if len(values) == 1 else None
    if not isinstance(arguments, str | int | float):
        return Unread(f"a call of {tool.name} without its one argument, {tool.argument}")
    return Call(tool.name, str(arguments).strip())


def schemas(tools: Mapping[str, Tool]) -> str:
    """The tools as JSON, in the form that chat templates show."""
    functions = [_schema(tool) for tool in tools.values()]
    return json.dumps([{"type": "function", "function": function} for function in functions])


def _schema(tool: Tool) -> dict[str, Any]:
    argument = {"type": "string", "description": tool.argument}
    parameters = {
        "type": "object",
        "properties": {tool.argument: argument},
        "required": [tool.argument],
    }
    return {"name": tool.name, "description": tool.does, "parameters": parameters}
