"""What runs inside the sandbox: it goes in, gives up every right, and then either runs a program that a model wrote and answers
calls of its functions, or runs tests and asks for those calls.

Two processes, so that the verdict is never in reach of the program: the tests see nothing of it but literal values. Given to
Python by `-c`; imports nothing of ours. Leaves out: limits on memory and processes as a group (`jail` watches from outside).
"""

from __future__ import annotations

import ast
import base64
import builtins
import ctypes
import json
import os
import signal
import sys
from typing import Any

DEPTH, ITEMS = 60, 1_000_000
"""Nesting and number of values that cross at once."""
CLONE = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000}
READ_ONLY, NO_SUID, NO_DEV, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PDEATHSIG, NO_NEW_PRIVS = 1, 38


class NotLiteral(TypeError):
    """A value that is not made of numbers, texts and containers."""


def encode(value: Any, depth: int = DEPTH, count: list[int] | None = None) -> Any:
    """A literal value as JSON: containers become lists that begin with their kind. Raises NotLiteral."""
    count = count if count is not None else [0]
    count[0] += 1
    if depth == 0 or count[0] > ITEMS:
        raise NotLiteral("too deep or too large")
    if value is None or isinstance(value, bool | int | float | str):
        return value if isinstance(value, bool | None) else _basic(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, dict):
        return ["dict", *[[encode(k, depth - 1, count), encode(v, depth - 1, count)] for k, v in dict.items(value)]]
    kind: Any
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):  # by the kind's own iterator, whatever a subclass says
            return [kind.__name__, *[encode(x, depth - 1, count) for x in kind.__iter__(value)]]
    raise NotLiteral(f"a {type(value).__name__} is no literal value")


def _basic(value: Any) -> Any:
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def decode(told: Any, depth: int = DEPTH) -> Any:
    """The inverse of `encode`; builds builtin values only. Raises NotLiteral."""
    if not isinstance(told, list):
        if isinstance(told, dict):
            raise NotLiteral("a bare object")
        return told
    kind, *parts = told
    if depth == 0:
        raise NotLiteral("too deep")
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return base64.b64decode(parts[0])
    if kind == "dict":
        return {decode(k, depth - 1): decode(v, depth - 1) for k, v in parts}
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}.get(kind)
    if made is None:
        raise NotLiteral(f"no kind of value: {str(kind)[:20]}")
    return made(decode(x, depth - 1) for x in parts)


# --- going in


def enter(limits: dict[str, Any]) -> None:
    """Namespaces of its own, a root that holds nothing but a read-only system, and no rights. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    kinds = ["mount", "pid", "net", "ipc", "uts"] + (["user"] if limits["uid"] is None else [])
    uid, gid = os.getuid(), os.getgid()
    _call(libc.unshare, sum(CLONE[k] for k in kinds))
    if limits["uid"] is None:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    child = os.fork()
    if child:  # the first process of the namespace is the child; this one waits, and takes it along when it is killed
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(PDEATHSIG, signal.SIGKILL)
    _root(libc, limits)
    os.setsid()
    _limit(limits)
    _drop(libc, limits["uid"])
    libc.prctl(PDEATHSIG, signal.SIGKILL)  # dropping rights cleared it


def _call(function: Any, *given: Any) -> None:
    if function(*given) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function.__name__}: {os.strerror(error)}")


def _mount(libc: Any, source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    coded = [x.encode() if x is not None else None for x in (source, target, kind)]
    _call(libc.mount, *coded, ctypes.c_ulong(flags), data.encode() or None)


def _root(libc: Any, limits: dict[str, Any]) -> None:
    """A root in memory with the system bound read-only, and an empty folder to work in."""
    stage = limits["stage"]
    _mount(libc, "none", "/", None, RECURSIVE | PRIVATE)
    _mount(libc, "tmpfs", stage, "tmpfs", NO_SUID | NO_DEV, "size=1m,mode=755")
    for path in limits["system"]:
        target = stage + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(path), target)
            continue
        os.makedirs(target, exist_ok=True)
        kept = os.statvfs(path).f_flag & (NO_SUID | NO_DEV | 8)
        _mount(libc, path, target, None, BIND)
        _mount(libc, path, target, None, BIND | REMOUNT | READ_ONLY | NO_SUID | kept)
    os.mkdir(stage + "/dev")
    for name in ("null", "zero", "urandom"):
        with open(f"{stage}/dev/{name}", "w"):
            pass
        _mount(libc, f"/dev/{name}", f"{stage}/dev/{name}", None, BIND)
    os.mkdir(stage + "/work")
    _mount(libc, "tmpfs", stage + "/work", "tmpfs", NO_SUID | NO_DEV, f"size={limits['disk']},mode=1777,nr_inodes=2000")
    _mount(libc, "tmpfs", stage, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEV)
    os.chroot(stage)
    os.chdir("/work")


def _limit(limits: dict[str, Any]) -> None:
    import resource

    if sys.platform == "darwin":  # which refuses some of them
        return
    wanted = {"CPU": limits["cpu"], "AS": limits["memory"], "FSIZE": limits["disk"], "NPROC": limits["processes"], "NOFILE": 64,
              "CORE": 0}
    for name, value in wanted.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _drop(libc: Any, uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _call(libc.prctl, NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call(libc.capset, header, (ctypes.c_uint32 * 6)())


# --- the program's side


def answer(receive: Any, send: Any) -> None:
    """Run a program, then call its functions as asked, until nobody asks."""
    space: dict[str, Any] = {"__name__": "solution"}
    for line in receive:
        asked = json.loads(line)
        try:
            if "program" in asked:
                exec(compile(asked["program"], "<answer>", "exec"), space)
                told: Any = {"value": None}
            else:
                given, named = decode(asked["args"]), decode(asked["named"])
                value = space[asked["call"]](*given, **named)
                told = {"value": encode(value), "args": encode(given)}
        except BaseException as error:  # noqa: BLE001 - whatever a program does is an answer to its tests
            told = {"error": type(error).__name__, "text": str(error)[:200]}
        send(told)


# --- the tests' side


class _Asked:
    """A function of the program, as its tests see it."""

    def __init__(self, name: str, receive: Any, send: Any) -> None:
        self.name, self.receive, self.send = name, receive, send

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.send({"call": self.name, "args": encode(given), "named": encode(named)})
        told = _told(self.receive)
        for before, after in zip(given, decode(told["args"]), strict=True):  # what it did to its arguments
            if isinstance(before, list) and type(after) is list:
                before[:] = after
            elif isinstance(before, dict | set) and type(after) is type(before):
                before.clear()
                before.update(after)
        return decode(told["value"])


class _Gone(BaseException):
    """The program ended, or was ended, before it answered."""


def _told(receive: Any) -> Any:
    line = receive.readline()
    if not line.endswith("\n"):
        raise _Gone
    told = json.loads(line)
    if "error" in told:
        kind = getattr(builtins, str(told["error"]), None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        made: Any = kind if known else RuntimeError
        raise made(told.get("text", "") if known else f"{told['error']}: {told.get('text', '')}")
    return told


def judge(receive: Any, send: Any, case: dict[str, Any]) -> None:
    """Run the tests of a case against the program on the other side, and say how it went."""
    try:
        space, tests = _prepared(case, receive, send)
    except BaseException as error:  # noqa: BLE001 - the tests' own
        send({"verdict": "failed", "why": f"the tests do not run: {type(error).__name__}: {error}"[:300]})
        return
    try:
        send({"program": case["program"]})
        try:
            _told(receive)
        except Exception as error:  # noqa: BLE001 - the program's own
            send({"verdict": "wrong", "why": f"the program does not run: {type(error).__name__}: {error}"[:300]})
            return
        tested = _passes(case, space, tests, receive, send)
        send({"verdict": "right", "why": ""} if tested else {"verdict": "failed", "why": "there are no tests"})
    except _Gone:
        send({"verdict": "wrong", "why": "the program ended before it answered"})
    except AssertionError as error:
        send({"verdict": "wrong", "why": f"a test does not hold {error}"[:300]})
    except BaseException as error:  # noqa: BLE001 - raised by the program, or by what it returned
        send({"verdict": "wrong", "why": f"{type(error).__name__}: {error}"[:300]})


def _prepared(case: dict[str, Any], receive: Any, send: Any) -> tuple[dict[str, Any], ast.Module]:
    """What the tests see, and the tests; the program's functions are asked for over there."""
    space: dict[str, Any] = {"__name__": "tests"}
    exec(compile(case["setup"], "<setup>", "exec"), space)
    tests = ast.parse(case["tests"])
    tests.body = [n for n in tests.body if not (isinstance(n, ast.ImportFrom) and n.module == "solution")]
    for name in case["names"]:
        space[name] = _Asked(name, receive, send)
    return space, tests


def _passes(case: dict[str, Any], space: dict[str, Any], tests: ast.Module, receive: Any, send: Any) -> bool:
    """Whether there were tests; what fails raises."""
    exec(compile(tests, "<tests>", "exec"), space)
    if case["check"]:
        space["check"](_Asked(case["check"], receive, send))
        return True
    found = [n.name for n in tests.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    for name in found:
        space[name]()
    return bool(found) or any(isinstance(n, ast.Assert) for n in ast.walk(tests))


def main() -> None:
    """Go in, then take a side. `sys.argv[1]`: limits as JSON; the first line of stdin: the case, for the tests' side."""
    limits = json.loads(sys.argv[1])
    receive, out = os.fdopen(os.dup(0), "r", encoding="ascii"), os.fdopen(os.dup(1), "w", encoding="ascii")
    try:
        if limits["enter"]:
            enter(limits)
        else:  # somebody else has built the walls
            _limit(limits)
    except OSError as error:
        print(json.dumps({"broken": str(error)}), file=out, flush=True)
        os._exit(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)

    def send(told: Any) -> None:
        print(json.dumps(told), file=out, flush=True)

    send({"ready": True})
    if limits["side"] == "program":
        answer(receive, send)
    else:
        judge(receive, send, json.loads(receive.readline()))


if __name__ == "__main__":
    main()
