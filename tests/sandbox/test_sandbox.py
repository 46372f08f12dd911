"""Hostile programs: each attack is contained, the parent unharmed, the verdict right. Every attack
is bounded in itself, so that a sandbox that fails fails the test and not the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas import sandbox
from comas.sandbox import check, jail
from comas.sandbox.filter import MACHINES
from comas.sandbox.jail import Broken, Limits, isolation, probe, system_folders
from comas.sandbox.literals import NotLiteral, decode, encode
from comas.types import UserMistake
from tests.support.processes import running
from tests.support.programs import attack

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("unharmed")


def test_right_and_wrong_programs(kind: str) -> None:
    good = "def f(x):\n    return x + 1\n"
    bad = "def f(x):\n    return x\n"
    tests = "assert f(1) == 2\nassert f(-1) == 0"
    programs = (good, bad, "", "def f(:", "def g(x): return x + 1")
    assert [check(p, tests, names=["f"]).verdict for p in programs] == ["right"] + ["wrong"] * 4
    assert "SyntaxError" in check("def f(:", tests, names=["f"]).why
    assert check(good, "", names=["f"]).verdict == "failed"  # no tests
    assert (
        check(
            good,
            "def test_a():\n    assert f(1) == 2\ndef test_b():\n    assert f(2) == 4",
            names=["f"],
        ).verdict
        == "wrong"
    )
    assert (
        check(good, "def check(candidate):\n    assert candidate(1) == 2", check="f").verdict
        == "right"
    )
    assert (
        check(
            good, "from solution import f\ndef test_a():\n    assert f(1) == 2", names=["f"]
        ).verdict
        == "right"
    )


def test_what_programs_need(kind: str) -> None:
    """The standard library, arguments that are changed in place, exceptions, containers, state, big
    numbers.
    """
    program = """
import collections, heapq, json, math, re, itertools, functools, string, random, datetime, decimal, fractions, statistics
seen = []
def sort(a): a.sort(); seen.append(1)
def kinds(): return {1: (2.5, {3}), "a": [b"x", None, True, float("inf"), 2j, frozenset([4])]}
def fail(): raise KeyError("k")
def big(n): return 7 ** n
def count(): return len(seen)
def counter(t): return collections.Counter(t)
def files():
    with open("notes.txt", "w") as file: file.write("x" * 1000)
    return len(open("notes.txt").read())
"""
    tests = """
a = [3, 1, 2]
sort(a)
assert a == [1, 2, 3]
assert kinds() == {1: (2.5, {3}), "a": [b"x", None, True, float("inf"), 2j, frozenset([4])]}
try:
    fail()
    assert False
except KeyError:
    pass
assert big(500) == 7 ** 500
assert count() == 1
assert counter("aab") == {"a": 2, "b": 1}
assert files() == 1000
"""
    assert (
        check(
            program, tests, names=["sort", "kinds", "fail", "big", "count", "counter", "files"]
        ).verdict
        == "right"
    )


SECRET = "comas-secret-0123456789"
READS = {
    "shadow": "open('/etc/shadow').read()",
    "passwd": "open('/etc/passwd').read()",
    "homes": "os.listdir('/home')",
    "another user's file": f"open({str(Path(__file__))!r}).read()",
    "processes": "os.listdir('/proc')",
    "parent's memory": f"open('/proc/{os.getpid()}/mem', 'rb').read(10)",
    "parent's environment": f"open('/proc/{os.getpid()}/environ').read()",
    "disks": "os.listdir('/sys')",
    "devices": "open('/dev/mem', 'rb').read(1)",
}
WRITES = {
    "home": f"open(os.path.join({str(Path.home())!r}, 'comas-was-here'), 'w').write('x')",
    "root": "open('/was-here', 'w').write('x')",
    "system": "open('/usr/was-here', 'w').write('x')",
    "library": "open(os.__file__, 'a').write('x')",
    "temporary": "open('/tmp/was-here', 'w').write('x')",
    "remount": (
        "import ctypes\nif ctypes.CDLL(None, use_errno=True).mount(b'none', b'/', None, 33, None):"
        " raise OSError\n"
    ),
    "chroot": "os.chroot('/work')",
    "uid 0": "os.setuid(0) if os.getuid() else os.chown('/usr/bin', 1, 1)",
    "device": "os.mknod('/work/d', 0o20666, 259)",
    "hostname": "import socket\nsocket.sethostname('comas')",
}


@pytest.mark.parametrize("what", READS)
def test_nothing_can_be_read(kind: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attack(READS[what]).verdict == "right"


def test_of_the_home_there_is_at_most_the_way_to_the_interpreter(kind: str) -> None:
    home = str(Path.home())
    way = {Path(p).relative_to(home).parts[0] for p in system_folders() if p.startswith(home + "/")}
    program = (
        f"import os\ndef f():\n    return sorted(os.listdir({home!r})) if os.path.isdir({home!r})"
        " else []\n"
    )
    assert check(program, f"assert f() == {sorted(way)}", names=["f"]).verdict == "right"


@pytest.mark.parametrize("what", WRITES)
def test_nothing_can_be_changed(kind: str, what: str) -> None:
    assert attack(WRITES[what]).verdict == "right"


def test_no_secret_of_the_environment_is_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMAS_SECRET", SECRET)
    program = "import os\ndef f():\n    return repr(dict(os.environ))\n"
    assert (
        check(
            program, f"assert {SECRET!r} not in f()\nassert 'HOME' not in f()", names=["f"]
        ).verdict
        == "right"
    )


def test_no_network(kind: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert (
            attack(
                f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)"
            ).verdict
            == "right"
        )
    assert (
        attack("import socket\nsocket.getaddrinfo('localhost.localdomain.invalid', 80)").verdict
        == "right"
    )


def test_an_endless_loop_costs_its_limit(kind: str) -> None:
    began = time.monotonic()
    sleeping = "import time\ndef f():\n    time.sleep(60)"
    for program in (
        "while True: pass",
        "def f():\n    while True: pass",
        sleeping,
        "import os\nos.read(0, 1)\nwhile True: pass",
    ):
        assert (
            check(program, "assert f() == 1", names=["f"], limits=Limits(seconds=1)).verdict
            == "wrong"
        )
    assert time.monotonic() - began < 8


def test_a_fork_bomb(kind: str) -> None:
    bomb = """
import os, time
def f():
    n = 0
    for _ in range(300):
        try:
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            n += 1
        except OSError:
            return n
    return n
"""
    found = check(bomb, "assert f() < 40", names=["f"], limits=Limits(seconds=5))
    assert found.verdict == "right" or "processes" in found.why
    doubling = """
import os, time
def f():
    for _ in range(8):
        try:
            os.fork()
        except OSError:
            time.sleep(5)
"""
    assert (
        check(doubling, "f()\nassert f() == 1", names=["f"], limits=Limits(seconds=3)).verdict
        == "wrong"
    )


def test_memory_of_one_and_of_all_together(kind: str) -> None:
    assert attack("x = bytearray(4 << 30)").verdict == "right"
    assert attack("x = []\nfor _ in range(64):\n    x.append(b'1' * (64 << 20))").verdict == "right"
    spread = """
import os, time
def f():
    for _ in range(10):
        if os.fork() == 0:
            x = bytearray(os.urandom(1)) * (200 << 20)
            time.sleep(20)
            os._exit(0)
    time.sleep(20)
"""
    found = check(spread, "assert f() == 1", names=["f"], limits=Limits(seconds=15))
    assert found.verdict == "wrong"
    assert "MB in memory" in found.why
    assert found.seconds < 10


def test_files_and_output(kind: str) -> None:
    file = (
        "with open('big', 'wb') as file:\n    for _ in range(4096):\n        file.write(b'x' * (1"
        " << 20))"
    )
    # an error, or the signal for too large a file
    assert attack(file).verdict in ("right", "wrong")
    many = (
        "for i in range(300):\n    with open(str(i), 'wb') as file:\n        file.write(b'x' * (1"
        " << 20))"
    )
    assert attack(many).verdict == "right"
    loud = """
import sys
def f():
    for _ in range(100):
        print("x" * (1 << 20))
        sys.stderr.write("x" * 1000)
    return 1
"""
    assert check(loud, "assert f() == 1", names=["f"]).verdict == "right"
    assert (
        check("def f():\n    return 'x' * (64 << 20)\n", "assert f() == 1", names=["f"]).why
        == "it says too much"
    )


CHEATS = {
    p.stem: p.read_text(encoding="utf-8")
    for p in sorted((Path(__file__).parents[1] / "cheats").glob("*.py"))
}
"""Programs whose `f(1)` is not 2 and that would like it to look so, each bounded in itself."""


@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_makes_a_wrong_program_right(kind: str, name: str) -> None:
    parent = os.getpid()
    found = check(CHEATS[name], "assert f(1) == 2", names=["f"], limits=Limits(seconds=4))
    assert found.verdict == "wrong", found
    assert os.getpid() == parent


def test_ptrace_reaches_nobody(kind: str) -> None:
    program = (
        "import ctypes\ndef f(pid):\n    return ctypes.CDLL(None).ptrace(16, pid, None, None)\n"
    )
    assert (
        check(
            program, f"assert f({os.getpid()}) == -1\nassert f(1) == -1 or True", names=["f"]
        ).verdict
        == "right"
    )


def test_a_daemon_does_not_outlive_the_run(kind: str) -> None:
    daemon = """
import os, time
def f():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(300)
        os._exit(0)
    return 1
"""
    # and nothing is left: see `unharmed`
    assert check(daemon, "assert f() == 1", names=["f"]).verdict == "right"


def test_a_pool_of_four_survives_all_of_it(kind: str) -> None:
    good = "def f(x):\n    return x + 1\n"
    programs = [good, CHEATS["exit"], CHEATS["kill_everybody"], good, CHEATS["recursion"], good] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(
                lambda p: (
                    check(p, "assert f(1) == 2", names=["f"], limits=Limits(seconds=8)).verdict
                ),
                programs,
            )
        )
    assert found == ["right" if p == good else "wrong" for p in programs]
    assert threading.active_count() < 50


def test_what_sandboxes_are_forked_from_may_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        probe("unshare")
    except Broken as error:
        pytest.skip(f"unshare does not work here: {error}")
    monkeypatch.setattr(sandbox, "isolation", lambda: "unshare")
    good = "def f(x):\n    return x + 1\n"
    slow = "import time\ndef f(x):\n    time.sleep(20)\n"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(check, slow, "assert f(1) == 2", names=["f"])
        time.sleep(1)
        warm = jail.FORKS.process
        assert warm is not None
        warm.kill()
        assert waiting.result(10).verdict == "failed"  # the machine's fault, not the program's
    assert check(good, "assert f(1) == 2", names=["f"]).verdict == "right"
    assert jail.FORKS.process is not warm


def test_no_program_sees_what_another_one_did(kind: str) -> None:
    spoils = (
        "import builtins, json, sys\nbuiltins.left = 1\njson.left = 1\nsys.setrecursionlimit(50)\n"
    )
    spoils += "open('left', 'w').write('x')\n"
    looks = (
        "import builtins, json, sys, os\ndef f(x):\n    return [hasattr(builtins, 'left'),"
        " hasattr(json, 'left'), "
    )
    looks += "sys.getrecursionlimit(), os.listdir('.')]\n"
    assert (
        check(spoils + "def f(x):\n    return 1\n", "assert f(1) == 1", names=["f"]).verdict
        == "right"
    )
    assert check(looks, "assert f(1) == [False, False, 1000, []]", names=["f"]).verdict == "right"


def test_a_program_that_does_not_read_keeps_nobody_waiting(kind: str) -> None:
    program = """
import os, time
def f(x):
    for fd in range(3, 20):
        try:
            os.write(fd, b'{"value": 2, "args": ["list", 1]}\\n')
            break
        except OSError:
            pass
    time.sleep(60)
"""
    found = check(
        program,
        "assert f(1) == 2\nassert f('x' * (8 << 20)) == 2",
        names=["f"],
        limits=Limits(seconds=3),
    )
    assert found.verdict == "wrong"
    assert found.seconds < 8


def test_sandboxes_end_with_the_process_that_started_them(kind: str) -> None:
    script = (
        "import sys\nfrom comas import sandbox\nsandbox.isolation = lambda:"
        " sys.argv[1]\nsandbox.check('import time, os\\nif os.fork() or True:\\n   "
        " time.sleep(300)', 'assert f() == 1', names=['f'])"
    )
    with subprocess.Popen([sys.executable, "-c", script, kind]) as ours:
        marked = f'"owner": {ours.pid}([^0-9]|$)'
        deadline = time.monotonic() + 30
        while len(found := running(marked)) < 4:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        time.sleep(0.5)
        ours.kill()
    deadline = time.monotonic() + 10
    while running(marked):
        assert time.monotonic() < deadline, "they outlive it"
        time.sleep(0.05)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_literal_values_cross_unchanged(value: object) -> None:
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [Fraction(1, 3), Decimal("0.10"), {"a": (Fraction(2), [1.5])}])
def test_exact_numbers_cross(value: object) -> None:
    assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    ("value", "as_list"),
    [
        (range(7, 1, -2), [7, 5, 3]),
        ({"b": 1, "a": 2}.keys(), ["b", "a"]),
        ({"b": 1, "a": 2}.values(), [1, 2]),
        ({"b": 1, "a": [2]}.items(), [("b", 1), ("a", [2])]),
        (map(str, [3, 4]), ["3", "4"]),
        ((n * n for n in (2, 3)), [4, 9]),
        (zip("ab", [1, 2], strict=True), [("a", 1), ("b", 2)]),
    ],
)
def test_what_a_program_may_return_instead_of_a_list_crosses(
    value: Any, as_list: list[Any]
) -> None:
    crossed = decode(json.loads(json.dumps(encode(value))))
    assert crossed != as_list
    assert hasattr(crossed, "__next__") == hasattr(value, "__next__")
    assert list(crossed) == as_list
    assert isinstance(value, range) <= (crossed == value)


@pytest.mark.parametrize(
    ("program", "tests", "right"),
    [
        ("def f(x): return (n + 1 for n in x)", "assert list(f([1])) == [2]", "right"),
        ("def f(x): return (n + 1 for n in x)", "assert f([1]) == [2]", "wrong"),
        ("def f(x): return (1 / n for n in x)", "assert list(f([0])) == []", "wrong"),
        ("def f(x): return {n: 0 for n in x}.keys()", "assert set(f([3, 3])) == {3}", "right"),
        ("import itertools\ndef f(x): return itertools.count()", "assert next(f(1)) == 0", "wrong"),
        ("def f(n): return str(10**n)", "assert len(f(9000)) == 9001", "right"),
        ("def f(n): return int('7' * n)", "assert str(f(8000)) == '7' * 8000", "right"),
    ],
)
def test_programs_of_iterators_and_of_long_numbers(program: str, tests: str, right: str) -> None:
    assert sandbox.check(program, tests, names=["f"]).verdict == right


def test_programs_that_give_the_same_iterator_do_the_same() -> None:
    programs = ["def f(x): return map(abs, x)", "def f(x): yield from map(abs, x)"]
    seen = [sandbox.observe(program, "f([-1])\nf([2])", names=["f"]) for program in programs]
    assert seen[0] is not None
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "body",
    [
        "from dataclasses import dataclass\n@dataclass(order=True, slots=True)\nclass A:\n    x: int\nvalue = A(3).x",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nvalue = A(3).x",
        "import sys\nvalue = 3 if sys.modules[__name__] else 0",
        "import pickle\nclass A:\n    x = 3\nvalue = pickle.loads(pickle.dumps(A())).x",
    ],
)
def test_a_program_is_a_module(body: str) -> None:
    told = sandbox.check(f"{body}\ndef f(): return value", "assert f() == 3", names=["f"])
    assert told.verdict == "right", told.why
    assert sandbox.run(f"{body}\nvalue").printed.strip() == "3"


@pytest.mark.parametrize("told", [["object", 1], {"a": 1}, ["list", {"b": 2}]])
def test_nothing_else_is_built(told: object) -> None:
    with pytest.raises(NotLiteral):
        decode(told)
    with pytest.raises(NotLiteral):
        encode(object())


def test_without_any_isolation_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kind: str) -> None:
        raise Broken("operation not permitted")

    monkeypatch.setattr("comas.sandbox.jail.probe", broken)
    jail._working.cache_clear()
    try:
        with pytest.raises(
            UserMistake, match=r"operation not permitted.*apt install bubblewrap.*sandbox='none'"
        ):
            isolation()
        jail.choose("none")
        assert isolation() == "none"
        assert check("def f():\n    return 1", "assert f() == 1", names=["f"]).verdict == "right"
        assert check("import os\nos._exit(0)", "assert f() == 1", names=["f"]).verdict == "wrong"
    finally:
        jail.choose("auto")
        jail._working.cache_clear()


def test_the_doctor_proves_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sandbox.prove()
    assert found.pop("isolation") == kind
    assert "watched from outside" in found.pop("memory and processes")
    if os.uname().machine in MACHINES:
        assert found.pop("system calls") == "filtered"
        assert set(found) == set(sandbox.ATTACKS)
        assert set(found.values()) == {"held"}
    # the control: without walls the attacks get through
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    open_ = sandbox.prove()
    assert open_["system calls"] == "NOT FILTERED (there are no walls)"
    for name in (
        "reading /etc/passwd",
        "a connection to this machine",
        "memory that belongs to no process",
        "files in /dev",
    ):
        assert "NOT HELD" in open_[name] or (name == "files in /dev" and os.geteuid()), name


@pytest.mark.parametrize(
    "tests",
    [
        "class TestF:\n    def test_a(self):\n        assert f(1) == 2",
        "async def test_a():\n    assert f(1) == 2",
        "if __name__ == '__main__':\n    assert f(1) == 2",
        "def helper():\n    assert f(1) == 2",
    ],
)
def test_asserts_that_nobody_runs_are_no_tests(tests: str) -> None:
    """Otherwise any program would pass them."""
    found = check("def f(x):\n    return 'nonsense'", tests, names=["f"])
    assert (found.verdict, found.why) == ("failed", "there are no tests")


@pytest.mark.parametrize(
    "tests",
    ["for x in (1, 2):\n    assert f(x) == x + 1", "def g():\n    assert f(1) == 2\ng()"],
)
def test_asserts_that_are_run_are_tests_wherever_they_stand(tests: str) -> None:
    assert check("def f(x): return x + 1", tests, names=["f"]).verdict == "right"
    assert check("def f(x): return x", tests, names=["f"]).verdict == "wrong"


@pytest.mark.parametrize(
    "tests",
    [
        "import not_a_module\n\ndef test_f():\n    assert f(1) == 2",
        "def test_f():\n    from not_a_module import helper\n    assert f(1) == helper",
        "def test_f(fixture):\n    assert f(1) == fixture",
        "def test_f(*, fixture):\n    assert f(1) == fixture",
    ],
)
def test_what_no_program_could_pass_is_no_verdict_on_one(tests: str) -> None:
    found = check("def f(x): return x + 1", tests, names=["f"])
    assert found.verdict == "failed"
    assert found.why.startswith("the tests do not run: ")


@pytest.mark.parametrize(
    "tests",
    [
        "try:\n    import not_a_module\nexcept ImportError:\n    pass\nassert f(1) == 2",
        "def test_f():\n    from solution import f\n    assert f(1) == 2",
        "def test_f(wanted=2, *, given=1):\n    assert f(given) == wanted",
        "def twice(test):\n    return lambda: test(1, 2)\n\n"
        "@twice\ndef test_f(given, wanted):\n    assert f(given) == wanted",
    ],
)
def test_tests_that_help_themselves_are_run(tests: str) -> None:
    assert check("def f(x): return x + 1", tests, names=["f"]).verdict == "right"
    assert check("def f(x): return x", tests, names=["f"]).verdict == "wrong"


@pytest.mark.parametrize(
    "line",
    [
        *(b'["int", "' + b"f" * 5000, b"9" * 5000, b"[" * 100_000),
        *(b'["verdict", 1]', b'{"verdict": "right"}', b'{"verdict": "great", "why": ""}'),
    ],
)
def test_a_forged_end_that_cannot_be_read_is_wrong(line: bytes) -> None:
    assert sandbox._outcome(line + b"\n")["verdict"] == "wrong"


def test_a_program_cannot_make_the_message_of_a_test_too_large() -> None:
    tests = "assert f(1) == 2, f(1) * 500"
    assert check("def f(x): return 'a' * 1_000_000", tests, names=["f"]).verdict == "wrong"
