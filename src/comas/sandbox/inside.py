"""Code that runs inside the sandbox: it goes in, gives up every right, and then either runs a
program that a model wrote and answers calls of its functions, or runs tests and asks for those
calls.

Two processes, so that the verdict is never in reach of the program: the tests see nothing of it but
literal values. Given to Python by `-c`; imports nothing of ours but what is given with it
(`literals`, `walls`, `judging`), and what only one side needs only there, since starting is most of
what a small program costs. With the word `forks` it is a warm process instead, of which each
sandbox is a fork (see `forks`), and goes in nowhere itself. Leaves out: how it goes in (`walls`),
how tests are run (`judging`).
"""

from __future__ import annotations

import json
import os
import signal
import sys

from comas.sandbox.judging import judge, words
from comas.sandbox.literals import NotLiteral, decode, encode
from comas.sandbox.walls import close, enter, forget_keys, limit

TYPE_CHECKING = False  # importing typing takes three milliseconds
if TYPE_CHECKING:
    import socket
    from typing import Any


def answer(receive: Any, send: Any) -> None:
    """Run a program, then call its functions as asked, until nobody asks."""
    module = type(sys)("solution")
    sys.modules["solution"] = module  # where dataclasses and pickle look for a class's module
    space = module.__dict__
    for line in receive:
        asked = json.loads(line)
        try:
            if "program" in asked:
                exec(compile(asked["program"], "<answer>", "exec"), space)
                result: Any = {"missing": [name for name in asked["names"] if name not in space]}
            elif asked["call"] not in space:
                result = {"missing": asked["call"]}
            else:
                args = decode(asked["args"])
                named = decode(asked["named"])
                value = space[asked["call"]](*args, **named)
                result = {"value": encode(value), "args": encode(args), "named": encode(named)}
        except BaseException as error:  # noqa: BLE001 - whatever a program does is an answer to its tests
            result = _as_result(error)
        send(result)


def _as_result(error: BaseException) -> dict[str, Any]:
    """An error as its nearest builtin class and its arguments; where those are no literal values,
    its text.
    """
    mro = type(error).__mro__
    nearest = next(kind for kind in mro if kind.__module__ == "builtins")
    try:
        return {"error": nearest.__name__, "args": encode(error.args)}
    except NotLiteral:
        return {"error": nearest.__name__, "args": encode((words(error)[:200],))}


def take_side(limits: dict[str, Any]) -> None:
    """Go in, then be the program or its tests, on standard input and output."""
    # the limit came with later versions than the benchmarks; a sandbox has one of time
    sys.set_int_max_str_digits(0)
    receive = os.fdopen(os.dup(0), "r", encoding="ascii")
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    try:
        if limits["walls"] == "unshare":
            enter(limits)
        else:  # somebody else has built them, or nobody
            limit(limits)
        if limits["walls"] == "bwrap":
            forget_keys()
        filtered = limits["walls"] != "none" and close(limits)
    except OSError as error:
        print(json.dumps({"broken": str(error)}), file=out, flush=True)
        os._exit(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)

    def send(message: Any) -> None:
        print(json.dumps(message), file=out, flush=True)

    send({"ready": True, "filtered": filtered})
    if limits["side"] == "program":
        answer(receive, send)
    else:
        judge(receive, send, json.loads(receive.readline()))


def serve(asked: socket.socket) -> None:
    """Fork a sandbox per request, and end it when asked to, until nobody can ask any more. Runs
    nothing of a program itself, so that every sandbox starts from the same clean memory.
    """
    import ast  # noqa: F401 - for those that are forked
    import resource  # noqa: F401 - the same
    import socket

    forget_keys()
    mine: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(asked, 1 << 16, 2)
        if not message:
            return
        request = json.loads(message)
        if "bury" not in request:
            child = os.fork()
            if not child:
                asked.close()
                _become(request, fds)
            mine.add(child)
            for fd in fds:
                os.close(fd)
            asked.send(json.dumps({"pid": child}).encode())
            continue
        if request["bury"] in mine:  # until here its number belonged to nobody else
            mine.remove(request["bury"])
            os.kill(request["bury"], signal.SIGKILL)
            os.waitpid(request["bury"], 0)
        asked.send(b"{}")


def _become(limits: dict[str, Any], fds: list[int]) -> None:
    """Be a sandbox, in a process that was forked to be one."""
    try:
        os.setsid()
        for fd, target in zip(fds, (0, 1), strict=True):
            os.dup2(fd, target)
            os.close(fd)
        take_side(limits)
    finally:
        os._exit(0)  # never back into the loop of the process that it was


def main() -> None:
    """Entry point inside the walls: `sys.argv[1]` has the limits as JSON, or is `forks`.

    On the side of the tests the first line of stdin is the case.
    """
    if sys.argv[1] == "forks":
        import socket

        serve(socket.socket(fileno=0))
    else:
        take_side(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
