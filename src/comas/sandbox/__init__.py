"""Programs that models write: run behind walls, judged from outside their own process.

`check(program, tests ...)` starts two sandboxes, one for the program and one for its tests, and carries lines between them without
reading what they say. Leaves out: which tests (tasks).
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comas.sandbox.jail import Broken, Jail, Limits, greet, isolation
from comas.types import UserMistake, Verdict

LONGEST = 16 << 20
"""Bytes of one line between the two."""
TICK = 0.02
"""Seconds between two looks at memory and processes."""


@dataclass(frozen=True)
class Found:
    """How a program did."""

    verdict: Verdict
    why: str
    seconds: float


def check(
    program: str, tests: str, *, names: Sequence[str] = (), setup: str = "", check: str = "", limits: Limits | None = None
) -> Found:
    """Run `tests` against the functions `names` of `program`.

    `setup` runs before the tests, on their side. `check`: the function that the tests' own `check(candidate)` is given; without
    it all functions `test...` and all bare asserts have to hold. Arguments and results are literal values (numbers, texts,
    lists, tuples, sets, dicts); a function that returns something else fails. Failed: the sandbox broke down, or there are no
    tests.
    """
    began, kind, limits = time.monotonic(), isolation(), limits or Limits()
    case = {"program": program, "tests": tests, "names": list(names), "setup": setup, "check": check}
    jails: list[Jail] = []
    told: dict[str, Any]
    try:
        for side in ("program", "tests"):  # one by one: what has been started has to be ended
            jails += [Jail(side, limits, kind)]
        for jail in jails:
            greet(jail, began + 30)
        jails[1].stdin.write(json.dumps(case).encode() + b"\n")
        jails[1].stdin.flush()
        told = _carry(*jails, deadline=time.monotonic() + limits.seconds)
    except (Broken, OSError) as error:
        told = {"verdict": "failed", "why": f"the sandbox broke down: {error}"}
    finally:
        for jail in jails:
            jail.end()
    return Found(told["verdict"], told["why"], time.monotonic() - began)


def _carry(program: Jail, tests: Jail, deadline: float) -> dict[str, Any]:
    """Lines from the tests to the program and back, until the tests give their verdict or a limit is reached."""
    heard = {program: b"", tests: b""}
    by_fd = {jail.stdout.fileno(): jail for jail in heard}
    looked = time.monotonic()
    while True:
        now = time.monotonic()
        if now > deadline:
            return {"verdict": "wrong", "why": f"it took longer than {program.limits.seconds:g} s"}
        ready, _, _ = select.select(list(by_fd), [], [], TICK)
        if now - looked > TICK and (over := _over(program)):
            return {"verdict": "wrong", "why": over}
        looked = now if now - looked > TICK else looked
        for fd in ready:
            jail = by_fd[fd]
            said = os.read(fd, 1 << 16)
            if not said:
                if jail is tests:
                    return {"verdict": "failed", "why": "the tests ended without a verdict"}
                del by_fd[fd]
                tests.stdin.close()  # nobody will answer any more
                continue
            heard[jail] += said
            if len(heard[jail]) > LONGEST:
                return {"verdict": "wrong", "why": "it says too much"}
            if heard[jail].endswith(b"\n"):
                line, heard[jail] = heard[jail], b""
                if jail is tests and b'"verdict"' in line[:12]:
                    return json.loads(line)
                _pass_on(line, program if jail is tests else tests)


def _pass_on(line: bytes, to: Jail) -> None:
    try:
        to.stdin.write(line)
        to.stdin.flush()
    except (OSError, ValueError):
        return  # it is gone, which its own end says


def _over(jail: Jail) -> str | None:
    processes, resident = jail.used()
    if processes > jail.limits.processes + 2:  # the one that waits outside, and the first inside
        return f"it has more than {jail.limits.processes} processes"
    return f"it holds more than {jail.limits.memory >> 20} MB in memory" if resident > jail.limits.memory else None


ATTACKS = {
    "reading /etc/passwd": "open('/etc/passwd').read()",
    "a connection to this machine": "import socket\n        socket.create_connection(('127.0.0.1', {port}), timeout=1)",
    "4 GB of memory": "bytearray(4 << 30)",
}
"""What `comas doctor` tries, each bounded in itself."""


def prove() -> dict[str, str]:
    """The isolation that is in force here, and how three attacks on it ended."""
    try:
        found = {"isolation": isolation()}
    except UserMistake as error:
        return {"isolation": f"none: {error}"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, attack in ATTACKS.items():
            body = attack.format(port=server.getsockname()[1])
            program = f"def f():\n    try:\n        {body}\n    except (OSError, MemoryError):\n        return 'held'\n"
            told = check(program, "assert f() == 'held'", names=["f"])
            found[name] = "held" if told.verdict == "right" else f"NOT HELD ({told.why or told.verdict})"
    return found
