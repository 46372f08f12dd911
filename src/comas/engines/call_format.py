"""How a chat template writes a call of a tool: found out by rendering one.

A template that shows no tools, that writes calls otherwise than as one JSON object, or that refuses
what comes back as a message of the role `tool`, has no format of its own. Leaves out: several calls
in one reply, calls in XML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from comas.types import Calls, UserMistake

Render = Callable[[Sequence[Mapping[str, Any]], list[Any] | None, bool], str]
"""`render(messages, tools, asking)`: the template's text; UserMistake where it refuses."""

TOOL = "comasprobe"
KEY = "comaskey"
VALUE = "comasvalue"
SAID = "comassaid"
SCHEMA = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "A probe."}},
            "required": [KEY],
        },
    },
}
USER = {"role": "user", "content": "?"}


def calls_of(render: Render) -> Calls | None:
    """The format in which a template writes calls; None where it has none that can be used."""
    function = {"name": TOOL, "arguments": {KEY: VALUE}}
    call = {"id": "000000000", "type": "function", "function": function}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    speaking = {"role": "assistant", "content": SAID}
    back = {"role": "tool", "content": VALUE}
    try:
        asked = render([USER], [SCHEMA], True)
        written = render([USER, calling], [SCHEMA], False)
        plain = render([USER, speaking], [SCHEMA], False)
        whole = render([USER, speaking, back], [SCHEMA], True)
    except UserMistake:
        return None
    shown = TOOL in asked and SAID in plain and VALUE in whole.partition(SAID)[2]
    if not shown or not written.startswith(asked):
        return None
    return _format(written[len(asked) :], plain.partition(SAID)[2])


def _format(reply: str, ending: str) -> Calls | None:
    """The format of a reply that calls; `ending` is what ends every reply."""
    start, end, call = _object(reply)
    names = [key for key, value in call.items() if value == TOOL]
    arguments = [key for key, value in call.items() if value == {KEY: VALUE}]
    if len(names) != 1 or len(arguments) != 1 or not reply.endswith(ending):
        return None
    after = reply[end : len(reply) - len(ending)]
    return Calls(reply[:start], names[0], arguments[0], after)


def _object(text: str) -> tuple[int, int, dict[str, Any]]:
    """Where the first JSON object of a text begins and ends, and the object; an empty one where
    there is none.
    """
    decoder = json.JSONDecoder()
    for start, character in enumerate(text):
        if character != "{":
            continue
        try:
            found, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        return start, end, cast("dict[str, Any]", found)
    return 0, 0, {}
