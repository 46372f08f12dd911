"""Dialogues with tools: a reply that ends with a call is answered with what the tool says, until a
reply calls nothing.

A call ends its reply, in plain tags or as the chat template of a model writes it:
`<search>words</search>`, or the JSON object that the template shows. Of several calls in one reply
the last is one, and the others are counted.

Every reply is a turn with tokens of its own; what tools say is prompt, so that no token of theirs
is ever learnt. Each turn is about the one before it, whoever else is talking: names follow from the
program. What came back is defused like an agent's words. Leaves out: several calls in one reply,
and whom to reward (`objective.rewards`).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from comas.game.agent import Agent, Message
from comas.game.prompts import clean, words
from comas.types import Calls, HostFailure, Task, Tool, ToolFailure, Turn, UserMistake

WORDING = {
    "tools": (
        "You may use tools. To use one, end your reply with a call of it, and wait for what comes"
        " back:\n{calls}\n\n"
    ),
    "call": "<{name}>{argument}</{name}>: {does}",
    "back": "{back}",
}


async def converse(
    agent: Agent,
    role: str,
    prompt: str,
    task: Task,
    *,
    turns: int,
    about: Turn | None = None,
    after: Sequence[Turn] = (),
) -> list[Turn]:
    """Ask, and answer calls of the task's tools, until a reply calls nothing or there
    are `turns` replies; returns all replies, of which the last is the answer.

    `after` are replies of an earlier dialogue, all of which called: this one goes on from what came
    back of them, and its `turns` are further ones.

    `info["dialogue"]` of each reply is the id of the first. `info["call"]` of one that called has
    `tool`, `argument`, `back` (what came back), `failed` (why, or None), `cut` (characters that
    were left out) and `seconds`. Two calls end the dialogue: one that cannot be read, of which
    `info["unread"]` says why, and one in the last of `turns`, whose tool is `info["unanswered"]`.
    """
    tools = task.tools
    template = calls_of(agent) if tools else None
    shown = schemas(tools) if template is not None else None
    if template is None:
        prompt = described(tools, task) + prompt
    exchanges = [message for reply in after for message in _exchange(reply, template, task)]
    replies: list[Turn] = []
    while True:
        turn = await agent.ask(role, prompt, about=about, exchanges=exchanges, tools=shown)
        replies.append(turn)
        turn.info["dialogue"] = replies[0].id
        call = _call(turn, tools, template)
        if call is None:
            return replies
        if len(replies) >= turns:
            turn.info["unanswered"] = call.tool
            return replies
        back = await _answered(call, tools[call.tool])
        turn.info["call"] = {"tool": call.tool, "argument": call.argument, **back}
        if call.earlier:
            turn.info["call"]["earlier"] = call.earlier
        exchanges += _exchange(turn, template, task)
        about = turn


def _exchange(reply: Turn, own: Calls | None, task: Task) -> list[Message]:
    """A reply that called and what came back, as the next reply's prompt has them."""
    result_text = words(WORDING, task, "back", back=reply.info["call"]["back"])
    return [
        {"role": "assistant", "content": reply.text},
        {"role": "user" if own is None else "tool", "content": result_text},
    ]


def calls_of(agent: Agent) -> Calls | None:
    """Ask how the agent's own chat template writes calls; None: it has no way to."""
    try:
        calls = agent.member.host.calls
    except AttributeError:  # a host of somebody's own that answers, and no more
        return None
    return calls(agent.member.policy)


def described(tools: Mapping[str, Tool], task: Task) -> str:
    """Describe the tools, to stand before a prompt; empty without any."""
    if not tools:
        return ""
    lines = [
        words(WORDING, task, "call", name=tool.name, argument=tool.argument, does=tool.does)
        for tool in tools.values()
    ]
    text = words(WORDING, task, "tools", calls="\n".join(lines))
    return f"{text}\n\n" if text else ""


def _call(turn: Turn, tools: Mapping[str, Tool], own: Calls | None) -> Call | None:
    """The call that a reply ends with; notes what begins as one and is none."""
    if not turn.finished:
        return None
    call = in_tags(turn.text, tools)
    if own is not None and not isinstance(call, Call):  # a tag may be a mere word
        call = in_template(turn.text, tools, own) or call
    if call is None or isinstance(call, Call):
        return call
    turn.info["unread"] = call.why
    return None


async def _answered(call: Call, tool: Tool) -> dict[str, Any]:
    """Run a call, and return what comes back and how it went."""
    began = time.monotonic()
    failed = None
    try:
        async with _place(tool):
            text = await _run(tool, call.argument)
    except TimeoutError:
        failed = f"{tool.name} took longer than {tool.seconds:g} s"
        text = failed
    except ToolFailure as error:
        failed = str(error)
        text = failed
        failed = failed[: tool.longest]
    left_out = max(0, len(text) - tool.longest)
    text = clean(text[: tool.longest])
    return {
        "back": f"{text} ... ({left_out} more characters)" if left_out else text,
        "failed": failed,
        "cut": left_out,
        "seconds": time.monotonic() - began,
    }


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]]
_places = WeakKeyDictionary()
"""Event loop -> tool -> the places of its calls."""


def _place(tool: Tool) -> asyncio.Semaphore:
    """Return the semaphore at which a call waits until it may run."""
    of_loop = _places.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(tool.name, asyncio.Semaphore(tool.at_once))


async def _run(tool: Tool, argument: str) -> str:
    """Run a tool in a thread of its own, which nobody waits for when the program ends: one that
    hangs must not hold a worker, nor the end of the run.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def settle(result: str | None, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is None:
            answer.set_result(result or "")
        else:
            answer.set_exception(error)

    def work() -> None:
        result = None
        failure: BaseException | None = None
        try:
            returned: Any = tool.run(argument)
            if not isinstance(returned, str):
                raise ToolFailure(f"{tool.name} returned {type(returned).__name__}, not text")
            result = returned
        except (ToolFailure, HostFailure, UserMistake) as error:
            failure = error
        except BaseException as error:  # noqa: BLE001 - anybody's: what it raises is told, exits too
            failure = ToolFailure(f"{tool.name} failed: {_said(error)}")
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True, name=f"tool-{tool.name}").start()
    return await asyncio.wait_for(answer, tool.seconds)


def _said(error: BaseException) -> str:
    """An error in words; its name alone where it has none to say."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ is anybody's too
        return name


# --- tools most of whose calls fail

MANY = 0.5
"""Share of calls that failed from which on a tool is reported."""
SHOWN = 120
"""Characters of the failure that is shown."""


class Failing(NamedTuple):
    """A tool most of whose calls fail."""

    tool: str
    share: float
    """Share of its calls that failed."""
    text: str


def failing(calls: Iterable[Mapping[str, Any]]) -> Iterator[Failing]:
    """Find the tools most of whose calls failed, of calls as `converse` noted them."""
    failures: dict[str, list[str | None]] = {}
    for call in calls:
        failures.setdefault(call["tool"], []).append(call["failed"])
    for tool, of_tool in failures.items():
        failed = [failure for failure in of_tool if failure is not None]
        share = len(failed) / len(of_tool)
        if share >= MANY:
            count = f"{len(failed)} of {len(of_tool)} calls of {tool} failed"
            yield Failing(tool, share, f"{count}, the first: {failed[0][:SHOWN]}")


def called(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The calls among turns, as `converse` noted them."""
    return [turn.info["call"] for turn in turns if "call" in turn.info]


# --- calls in what agents write


@dataclass(frozen=True)
class Call:
    """A call that ends a reply."""

    tool: str
    argument: str
    earlier: int = 0
    """Calls before it in the same reply, which nobody runs."""


@dataclass(frozen=True)
class Unread:
    """Text that begins as a call and is none."""

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
    named_call = _named(call, tools, calls)
    earlier = text.count(before, 0, start) if before else 0
    return replace(named_call, earlier=earlier) if isinstance(named_call, Call) else named_call


def _named(call: Any, tools: Mapping[str, Tool], calls: Calls) -> Found:
    """The call that a JSON object makes."""
    if not isinstance(call, dict):
        return Unread("a call that is no JSON object")
    fields = cast("dict[str, Any]", call)
    name = fields.get(calls.name)
    if not isinstance(name, str) or name not in tools:
        return Unread(f"a call of {name!r}, which is none of {', '.join(tools)}")
    tool = tools[name]
    arguments = fields.get(calls.arguments)
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
