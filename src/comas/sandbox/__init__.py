"""Programs that models write: run behind walls, judged from outside their own process.

`check(program, tests ...)` starts two sandboxes, one for the program and one for its tests, and
carries lines between them without reading what they say; `run(program)` asks what one prints.
Leaves out: which tests (tasks).
"""

from __future__ import annotations

import json
import os
import platform
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comas.sandbox import cgroup
from comas.sandbox.jail import Broken, Jail, Limits, greet, isolation, probe
from comas.sandbox.walls import KEYCTL
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


@dataclass(frozen=True)
class SeenBehaviour:
    """Behaviour of a program on shown calls; equal behaviour compares equal."""

    calls: int
    values: int
    """Calls that gave a value; the others raised an error."""
    digest: str
    """Digest of all values and errors in their order."""


@dataclass(frozen=True)
class Ran:
    """Output of a program."""

    printed: str
    why: str
    """The limit that it ran into; empty where it ran to its end, or to an error of its own, which
    is part of what it printed.
    """
    raised: bool = False
    """Whether it ended by an error of its own, or by an exit code that is not 0."""


PRINTING = """
import ast, contextlib, io, sys

def printed():
    out = io.StringIO()
    raised = False
    sys.modules["__main__"] = type(sys)("__main__")
    space = sys.modules["__main__"].__dict__
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            tree = ast.parse(SOURCE)
            shown = []
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                shown = [tree.body.pop()]
            exec(compile(tree, "<program>", "exec"), space)
            exec(compile(ast.Interactive(shown), "<program>", "single"), space)
        except SystemExit as end:
            raised = end.code not in (None, 0)
        except Exception as error:
            raised = True
            print(f"{type(error).__name__}: {error}")
    return [out.getvalue()[:1_000_000], raised]
"""
"""Put behind a program's source, it makes a function that runs it, and returns what it printed, and
whether it ended by an error; the value of a last expression and an error's last line are printed
too.
"""


def check(
    program: str,
    tests: str,
    *,
    names: Sequence[str] = (),
    setup: str = "",
    check: str = "",
    limits: Limits | None = None,
) -> Found:
    """Run `tests` against the functions `names` of `program`.

    `setup` runs before the tests, on their side. `check`: the function that the tests' own
    `check(candidate)` is given; without it all functions `test...` and all bare asserts have to
    hold. A program without one of `names` is wrong before any test; a builtin among them may be
    Python's own where the program has another of them. Arguments and results are literal values
    (numbers, texts, lists, tuples, sets, dicts); a function that returns something else fails.
    Failed: the sandbox broke down, there are no tests, or they call nothing of the program.
    """
    began = time.monotonic()
    case = _case(program, tests, names, setup=setup, check=check)
    try:
        outcome = _judged(case, limits or Limits())
    except Broken as error:
        return Found("failed", f"the sandbox broke down: {error}", time.monotonic() - began)
    return Found(outcome["verdict"], outcome["why"], time.monotonic() - began)


def observe(program: str, calls: str, *, names: Sequence[str]) -> SeenBehaviour | None:
    """Record what the functions `names` of `program` do when `calls` is run.

    Asserts in `calls` all count as true: what they expect is not looked at. None where the program
    does not run, ends early or reaches a limit. Raises Broken.
    """
    outcome = _judged(_case(program, calls, names, seen=[]), Limits())
    return SeenBehaviour(**outcome["seen"]) if "seen" in outcome else None


def run(program: str, *, limits: Limits | None = None) -> Ran:
    """Run a program and return what it prints. Raises Broken."""
    source = f"SOURCE = {program!r}\n{PRINTING}"
    outcome = _judged(_case(source, "", value="printed"), limits or Limits())
    if "value" not in outcome:
        return Ran("", outcome["why"])
    match outcome["value"]:
        case [str(printed), bool(raised)]:
            return Ran(printed, "", raised)
        case other:  # a program can reach what runs it
            return Ran(str(other), "", True)


def _case(program: str, tests: str, names: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Return the case that the side of the tests gets."""
    case = {"program": program, "tests": tests, "names": list(names), "setup": "", "check": ""}
    return {**case, **more}


def _judged(case: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Run a case, and return what the tests' side says in the end. Raises Broken."""
    began = time.monotonic()
    kind = isolation()
    jails: list[Jail] = []
    try:
        for side in ("program", "tests"):  # one by one: what has been started has to be ended
            jails += [Jail(side, limits, kind)]
        for jail in jails:
            greet(jail, began + 30)
            jail.enclose()
        line = json.dumps(case).encode() + b"\n"
        outcome = _carry(*jails, case=line, deadline=time.monotonic() + limits.seconds)
        if any(jail.orphaned() for jail in jails):
            raise Broken("the process that forks sandboxes was killed")
        return outcome
    except OSError as error:
        raise Broken(str(error)) from error
    finally:
        for jail in jails:
            jail.end()


def _outcome(line: bytes | bytearray) -> dict[str, Any]:
    """Read what the tests' side says in the end, which a program that breaks into it may forge."""
    try:
        match json.loads(line):
            case {"verdict": "right" | "wrong" | "failed", "why": str()} as outcome:
                return outcome
            case _:
                pass
    except (ValueError, RecursionError):  # also of integers of thousands of digits
        pass
    return {"verdict": "wrong", "why": "what it says in the end cannot be read"}


def _carry(program: Jail, tests: Jail, case: bytes, deadline: float) -> dict[str, Any]:
    """Lines from the tests to the program and back, one at a time, until the tests give their
    verdict or a limit is reached.

    Never waits for a side to read: a program may choose not to.
    """
    received = {program: bytearray(), tests: bytearray()}
    owed = {program: memoryview(b""), tests: memoryview(case)}
    asked = False
    open_ = {program, tests}
    looked = time.monotonic()
    while True:
        now = time.monotonic()
        if now > deadline:
            return {"verdict": "wrong", "why": f"it took longer than {program.limits.seconds:g} s"}
        if now - looked > TICK:
            looked = now
            if over := _over(program):
                return {"verdict": "wrong", "why": over}
        if program not in open_ and not owed[tests]:
            tests.hang_up()  # nobody will answer any more
        full = [jail for jail in owed if owed[jail]]
        ready, free, _ = select.select([j.stdout for j in open_], [j.stdin for j in full], [], TICK)
        for jail in full:
            if jail.stdin in free:
                owed[jail] = _tell(jail, owed[jail])
        for jail in [j for j in open_ if j.stdout in ready]:
            chunk = os.read(jail.stdout, 1 << 16)
            received[jail] += chunk
            if len(received[jail]) > LONGEST:
                return {"verdict": "wrong", "why": "it says too much"}
            if jail is tests:
                if not chunk:
                    return {"verdict": "failed", "why": "the tests ended without a verdict"}
                if chunk.endswith(b"\n"):
                    if b'"verdict"' in received[tests][:12]:
                        return _outcome(received[tests])
                    asked, owed[program], received[tests] = (
                        True,
                        memoryview(received[tests]),
                        bytearray(),
                    )
                continue
            if not chunk:
                open_.remove(program)
            elif not asked or b"\n" in chunk[:-1]:
                return {"verdict": "wrong", "why": "it speaks when nobody has asked it"}
            elif chunk.endswith(b"\n"):
                asked, owed[tests], received[program] = (
                    False,
                    memoryview(received[program]),
                    bytearray(),
                )


def _tell(jail: Jail, line: memoryview) -> memoryview:
    """Give a side what its pipe takes of a line; the rest of the line."""
    try:
        return line[os.write(jail.stdin, line[: 1 << 16]) :]
    except BlockingIOError:
        return line
    except OSError:
        return memoryview(b"")  # it is gone, which its own end says


def _over(jail: Jail) -> str | None:
    limits = jail.limits
    used = jail.used()
    if used.tasks > limits.processes + 2:  # the one that waits outside, and the first inside
        return f"it has more than {limits.processes} processes"
    if used.files > limits.files:
        return f"it has more than {limits.files} files"
    if used.locks > limits.locks:
        return f"it holds more than {limits.locks} locks"
    if used.memory > limits.memory:
        return f"it holds more than {limits.memory >> 20} MB in memory"
    return None


ATTACKS = {
    "reading /etc/passwd": "open('/etc/passwd').read()",
    "a connection to this machine": (
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)"
    ),
    "4 GB of memory": "bytearray(4 << 30)",
    "memory that belongs to no process": "import os\nos.close(os.memfd_create('attack'))",
    "files in /dev": (
        "import os\nfor name in ('/dev/attack', '/dev/shm/attack'):\n    try:\n        open(name,"
        " 'x')\n    except OSError:\n        continue\n    os.remove(name)\n    return 'not"
        " held'\nraise OSError"
    ),
    "the kernel's keyrings": (
        "import ctypes\nif ctypes.CDLL(None).syscall({keyctl}, 6, -3, 0, 0, 0) < 0:\n    raise"
        " OSError"
    ),
}
"""Things that `comas env` tries, each bounded in itself."""


def prove() -> dict[str, str]:
    """Run known attacks in the isolation in force; returns attack -> how it ended."""
    try:
        kind = isolation()
        filtered = probe(kind)
    except (UserMistake, Broken) as error:
        return {"isolation": f"none: {error}"}
    facts = {"isolation": kind}
    group_folder = cgroup.place()
    watched = "watched from outside"
    none = f"{watched}; no control groups can be made here"
    facts["memory and processes"] = (
        f"control groups in {group_folder}, and {watched}" if group_folder else none
    )
    machine = platform.machine()
    missing = f"this kernel takes none, or there is none for {machine}"
    why = "there are no walls" if kind == "none" else missing
    facts["system calls"] = "filtered" if filtered else f"NOT FILTERED ({why})"
    with socket.create_server(("127.0.0.1", 0)) as server:
        holes = {"port": server.getsockname()[1], "keyctl": KEYCTL.get(machine)}
        for name, attack in ATTACKS.items():
            if "{keyctl}" in attack and machine not in KEYCTL:
                facts[name] = f"not tried: the number of the call is not known on {machine}"
                continue
            body = "".join(f"        {line}\n" for line in attack.format(**holes).splitlines())
            handler = "    except (OSError, MemoryError):\n        return 'held'\n"
            program = f"def f():\n    try:\n{body}{handler}"
            outcome = check(program, "assert f() == 'held'", names=["f"])
            held = outcome.verdict == "right"
            facts[name] = "held" if held else f"NOT HELD ({outcome.why or outcome.verdict})"
    return facts
