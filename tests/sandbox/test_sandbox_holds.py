"""What a program could hold, reach or leave behind beside what the kernel counts for a process:
memory of nobody, secrets of the session, devices, the machine's own services. Every attack is
bounded in itself, to a few megabytes.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from comas import sandbox
from comas.sandbox import check, filter, jail, needed
from comas.sandbox.jail import Broken, Limits, probe
from tests.support.processes import running
from tests.support.programs import attack

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("unharmed")
MACHINE = platform.machine()
filtered = pytest.mark.skipif(
    MACHINE not in filter.MACHINES, reason="no filter of system calls for this machine"
)
LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfrom ctypes import c_long as n\n"
LIBC += "def call(*given):\n    found = libc.syscall(*map(n, given))\n"
LIBC += (
    "    if found < 0:\n        raise OSError(ctypes.get_errno(), 'refused')\n    return found\n"
)


def number(name: str) -> int:
    """Of a system call, on this machine."""
    column, _ = filter.MACHINES[MACHINE]
    found = {**filter.FORBIDDEN, **filter.CHECKED, **filter.ABSENT}[name][column]
    assert found is not None
    return found


def refusal(body: str, seconds: float = 8) -> int | str:
    """The error with which the kernel refuses `body`, by its number; or what it gave."""
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    program = f"{LIBC}import mmap, os, socket, sys, time\ndef f():\n    try:\n{lines}\n"
    program += "    except OSError as error:\n        return error.errno\n    return 'OPEN'\n"
    found = check(program, "raise ValueError(f())", names=["f"], limits=Limits(seconds=seconds))
    _, _, said = found.why.partition("ValueError: ")
    return int(said) if said.isdigit() else found.why


# --- memory that is counted for no process


@filtered
def test_memory_of_no_process_cannot_be_had(kind: str) -> None:
    assert refusal("os.memfd_create('x')") == errno.EPERM
    for name, given in {
        "shmget": (0, 4096, 0o1600),
        "msgget": (0, 0o1600),
        "semget": (0, 1, 0o1600),
    }.items():
        assert refusal(f"call({number(name)}, *{given})") == errno.EPERM, name
    name = "libc.mq_open.argtypes = None\nif libc.mq_open(b'/x', 0o102, 0o600, None) < 0:\n"
    assert refusal(name + "    raise OSError(ctypes.get_errno(), '')") == errno.EPERM


@filtered
def test_shared_anonymous_memory_cannot_be_had(kind: str) -> None:
    """Touched and given back it would stay, and not be counted: neither resident nor mapped by who
    holds it.
    """
    assert refusal("mmap.mmap(-1, 1 << 20)") == errno.EPERM
    assert refusal("mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE)").endswith("OPEN")  # type: ignore[union-attr]
    assert refusal(
        "with open('file', 'w+b') as file:\n    file.truncate(4096)\n    mmap.mmap(file.fileno(),"
        " 4096)[0] = 1"
    ).endswith("OPEN")  # type: ignore[union-attr]
    huge = 0x40000
    assert (
        refusal(f"mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | {huge})")
        == errno.EPERM
    )


def test_there_are_no_devices_but_two(kind: str) -> None:
    """`zero`, mapped as shared, is anonymous memory as well; `shm` and a folder that can be written
    to have no limit.
    """
    program = "import os\ndef f():\n    return sorted(os.listdir('/dev'))\n"
    assert check(program, "assert f() == ['null', 'urandom']", names=["f"]).verdict == "right"
    for place in ("/dev/file", "/dev/shm/file", "/dev/pts/file"):
        assert attack(f"open({place!r}, 'w').write('x')").verdict == "right", place


def test_there_are_no_large_pages_of_which_a_part_is_held(kind: str) -> None:
    program = "import ctypes\nlibc = ctypes.CDLL(None)\ndef f():\n    libc.prctl(41, 0, 0, 0, 0)\n"
    program += "    return libc.prctl(42, 0, 0, 0, 0)\n"
    assert check(program, "assert f() == 1", names=["f"]).verdict == "right"


@filtered
def test_buffers_of_the_kernel_stay_small(kind: str) -> None:
    pair = "a, b = socket.socketpair()\n"
    assert (
        refusal(pair + "a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)") == errno.EPERM
    )
    assert (
        refusal(pair + "a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)") == errno.EPERM
    )
    assert refusal("import fcntl\nfcntl.fcntl(os.pipe()[0], 1031, 1 << 20)") == errno.EPERM
    assert refusal(f"call({number('vmsplice')}, 1, 0, 0, 0)") == errno.EPERM
    assert refusal(f"call({number('inotify_init1')}, 0)") == errno.EPERM
    assert refusal(f"call({number('io_uring_setup')}, 1, 0)") == errno.EPERM
    assert refusal(f"call({number('userfaultfd')}, 0)") == errno.EPERM
    assert (
        refusal(
            "import fcntl\nwith open('x', 'w') as file:\n    fcntl.fcntl(file, 37, b'\\0' * 32)"
        )
        == errno.EPERM
    )


def test_locks_on_parts_of_files_are_counted(kind: str) -> None:
    """Each is kernel memory, and no limit of a process counts them."""
    locks = """
import fcntl, time
def f():
    with open("x", "w") as file:
        for i in range(4000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * i)
        time.sleep(20)
"""
    found = check(locks, "assert f() == 1", names=["f"], limits=Limits(seconds=15))
    assert found.why == "it holds more than 2000 locks"
    database = (
        "import sqlite3\ndef f():\n    with sqlite3.connect('x') as it:\n        it.execute('create"
        " table t (a)')\n"
    )
    database += "    return 1\n"
    assert check(database, "assert f() == 1", names=["f"]).verdict == "right"


def test_files_are_counted(kind: str) -> None:
    """Empty ones have no bytes; bubblewrap itself sets no limit to their number."""
    many = """
import os, time
def f():
    for i in range(4000):
        os.close(os.open(str(i), os.O_CREAT | os.O_WRONLY))
    time.sleep(20)
    return 1
"""
    found = check(many, "assert f() == 1", names=["f"], limits=Limits(seconds=15))
    assert found.why.startswith(
        "OSError: [Errno 28]" if kind == "unshare" else "it has more than 2000 files"
    )
    assert found.seconds < 10


def test_what_their_folder_holds_counts_as_memory(kind: str) -> None:
    """So that files and processes together stay below the limit."""
    both = """
import time
def f():
    held = b"1" * (80 << 20)
    with open("x", "wb") as file:
        for _ in range(60):
            file.write(bytes(1 << 20))
    time.sleep(20)
"""
    found = check(
        both,
        "assert f() == 1",
        names=["f"],
        limits=Limits(seconds=15, memory=128 << 20, disk=64 << 20),
    )
    assert found.why == "it holds more than 128 MB in memory"


def test_threads_are_counted(kind: str) -> None:
    """Also where the kernel sets no limit to them, as to those of root."""
    threads = """
import threading, time
def f():
    for _ in range(60):
        try:
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        except RuntimeError:
            return 'refused'
    time.sleep(20)
"""
    found = check(threads, "assert f() == 'refused'", names=["f"], limits=Limits(seconds=15))
    assert found.verdict == "right" or found.why == "it has more than 16 processes"
    assert found.seconds < 10


def test_without_walls_the_machine_s_own_folders_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full:
        f_blocks = f_files = f_frsize = 1 << 20
        f_bfree = f_ffree = 0

    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    monkeypatch.setattr("comas.sandbox.watch.os.statvfs", lambda path: Full)
    program = "import time\ndef f():\n    time.sleep(0.3)\n    return 1\n"
    assert check(program, "assert f() == 1", names=["f"]).verdict == "right"


# --- secrets, and ways out


@filtered
def test_keyrings_are_out_of_reach(kind: str) -> None:
    for what in (
        "call({0}, 0, -3, 1)",
        "call({0}, 11, -3, 0, 0)",
        "call({0}, 1, 0)",
        "call({0}, 6, -4, 0, 0)",
    ):
        assert refusal(what.format(number("keyctl"))) == errno.EPERM
    assert refusal(f"call({number('request_key')}, 0, 0, 0, -3)") == errno.EPERM
    assert refusal(f"call({number('add_key')}, 0, 0, 0, 0, -3)") == errno.EPERM


@filtered
def test_where_there_is_no_filter_the_session_keyring_is_left() -> None:
    """A key of ours, in a session of its own, before and after."""
    script = f"""
import ctypes, errno
from comas.sandbox import walls
libc = ctypes.CDLL(None, use_errno=True)
keyctl, add = walls.KEYCTL[{MACHINE!r}], {number("add_key")}
if libc.syscall(keyctl, 1, None) < 0:
    print("no keyrings here")
else:
    libc.syscall(add, b"user", b"comas-test", b"secret", 6, -3)
    find = lambda: libc.syscall(keyctl, 10, -3, b"user", b"comas-test", 0) > 0
    before = find()
    walls.forget_keys()
    print(before, find())
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    if said == "no keyrings here":
        pytest.skip(said)
    assert said == "True False"


@filtered
def test_holes_in_the_kernel_are_further_away(kind: str) -> None:
    vsock = 40
    inet = 2
    netlink = 16
    packet = 17
    alg = 38
    for family in (vsock, inet, netlink, packet, alg):
        assert refusal(f"call({number('socket')}, {family}, 1, 0)") == errno.EAFNOSUPPORT
    user = 0x10000000
    mount = 0x00020000
    net = 0x40000000
    for flags in (user, mount, net, user | mount):
        assert refusal(f"call({number('unshare')}, {flags})") == errno.EPERM
        assert (
            refusal(
                f"if call({number('clone')}, {flags | signal.SIGCHLD}, 0, 0, 0, 0) == 0:\n   "
                " os._exit(0)"
            )
            == errno.EPERM
        )
    assert refusal(f"call({number('clone3')}, 0, 0)") == errno.ENOSYS
    assert refusal("call(4000)") == errno.ENOSYS
    for name in (
        "bpf",
        "perf_event_open",
        "mount",
        "ptrace",
        "process_vm_readv",
        "open_by_handle_at",
        "pidfd_getfd",
        "syslog",
    ):
        assert refusal(f"call({number(name)}, 0, 0, 0, 0, 0, 0)") == errno.EPERM, name


@filtered
def test_a_program_of_other_numbers_is_killed(kind: str) -> None:
    """The calls of 32 bits, which a filter for 64 bits would take for others."""
    if MACHINE != "x86_64":
        pytest.skip("an instruction of x86")
    program = """
import ctypes, mmap
def f():
    code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
    code.write(bytes.fromhex("53b814000000cd805bc3"))  # the number 20 by interrupt: getpid there, writev here
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
    assert (
        check(program, "assert f() > 0", names=["f"]).why == "the program ended before it answered"
    )


def test_a_home_as_prefix_is_not_shown(tmp_path: Path) -> None:
    """Python below a home: its files are not those of Python."""
    home = tmp_path / "home"
    copied = home / "bin" / "python3"
    copied.parent.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), copied)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = home / sys.platlibdir / version
    leave = shutil.ignore_patterns(
        "site-packages", "test", "__pycache__", "config-*", "idlelib", "ensurepip", "dist-packages"
    )
    shutil.copytree(Path(os.__file__).parent, library, ignore=leave)
    for shared in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
        shutil.copy(shared, home / "lib" / shared.name)
    secrets = [
        home / ".ssh" / "id_rsa",
        home / "lib" / "secret",
        library / "site-packages" / "secret.py",
    ]
    for secret in secrets:
        secret.parent.mkdir(exist_ok=True)
        secret.write_text("PRIVATE KEY")
    script = f"""
import sys
sys.path += {[p for p in sys.path if "site-packages" in p] + [str(Path(sandbox.__file__).parents[2])]!r}
from comas import sandbox
from comas.sandbox import jail
sandbox.isolation = lambda: sys.argv[1]
program = "import os, ctypes, hashlib, sys\\ndef f(path):\\n    return os.path.exists(path), sys.base_prefix\\n"
for secret in {list(map(str, secrets))!r}:
    print(sandbox.check(program, f"assert f({{secret!r}}) == (False, {str(home)!r})", names=["f"]))
"""
    tried = 0
    for walls in ("unshare", "bwrap"):
        try:
            probe(walls)
        except (Broken, OSError):
            continue
        tried += 1
        told = subprocess.run(
            [copied, "-c", script, walls], capture_output=True, text=True, check=False
        )
        assert told.stdout.count("verdict='right'") == len(secrets), told
    if not tried:
        pytest.skip("neither wall works here")


def test_only_the_standard_library_is_there(kind: str) -> None:
    beside = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})[
        "purelib"
    ]
    program = f"import os, sys\ndef f():\n    sys.path.append({beside!r})\n    import pip\n"
    assert "ModuleNotFoundError" in check(program, "f()", names=["f"]).why
    program = (
        "import ctypes, decimal, hashlib, lzma, sqlite3, ssl, zlib, zoneinfo, bz2, multiprocessing,"
        " asyncio\n"
    )
    program += "order = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)\n"
    program += "async def later():\n    return 3\n"
    program += "def f():\n    return order(1), asyncio.run(later()), str(decimal.Decimal(1) / 8)\n"
    assert check(program, "assert f() == (2, 3, '0.125')", names=["f"]).verdict == "right"


def test_every_library_of_the_standard_library_is_found() -> None:
    """Nothing that the interpreter or its extensions are linked with lies outside what is shown."""
    extensions = [
        needed.python(),
        *map(str, Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so")),
    ]
    linked = subprocess.run(
        ["ldd", *extensions], capture_output=True, text=True, check=False
    ).stdout
    paths = {
        words[2]
        for line in linked.splitlines()
        if len(words := line.split()) > 2 and words[2].startswith("/")
    }
    shown = needed.system_folders()
    assert paths
    assert [p for p in paths if not any(p == s or p.startswith(s + "/") for s in shown)] == []


# --- the machine's services, and what outlives a program


def test_limits_that_a_user_may_have_are_not_handed_on(kind: str) -> None:
    """A core dump is not given to the machine's reader of them (a size of 0 would not keep the
    kernel from it), no real time.
    """
    program = (
        "import resource as r\ndef f(name):\n    return r.getrlimit(getattr(r, 'RLIMIT_' + name))\n"
    )
    if not resource.getrlimit(resource.RLIMIT_CORE)[1]:
        pytest.skip("core dumps are forbidden here already")
    tests = (
        "assert f('MEMLOCK') == f('MSGQUEUE') == f('RTPRIO') == f('NICE') == (0, 0)\nassert"
        " f('SIGPENDING') == (64, 64)\n"
    )
    assert check(program, tests, names=["f"]).verdict == "right"
    low = (
        "import resource\ndef f():\n    try:\n        resource.setrlimit(resource.RLIMIT_CORE, (0,"
        " 0))\n"
    )
    low += "    except (OSError, ValueError):\n        return 'refused'\n"
    if MACHINE in filter.MACHINES:
        assert check(low, "assert f() == 'refused'", names=["f"]).verdict == "right"


def test_a_user_with_lower_limits_has_a_sandbox_nonetheless(kind: str) -> None:
    script = "import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))\n"
    script += "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    script += "from comas import sandbox\nsandbox.isolation = lambda: sys.argv[1]\n"
    script += "print(sandbox.check('def f():\\n    return 1', 'assert f() == 1', names=['f']))\n"
    told = subprocess.run(
        [sys.executable, "-c", script, kind], capture_output=True, text=True, check=True
    )
    assert "verdict='right'" in told.stdout


def test_a_program_cannot_outlive_a_killed_comas(kind: str) -> None:
    """By asking the kernel not to be killed with what it was started from."""
    script = """
import sys
from comas import sandbox
sandbox.isolation = lambda: sys.argv[1]
program = "import ctypes, time\\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\\ntime.sleep(40)\\n"
sandbox.check(program, "assert f() == 1", names=["f"], limits=sandbox.Limits(seconds=40))
"""
    with subprocess.Popen([sys.executable, "-c", script, kind]) as ours:
        marked = f'"owner": {ours.pid}([^0-9]|$)'
        deadline = time.monotonic() + 30
        while len(found := running(marked)) < 4:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        time.sleep(1)
        ours.kill()
    deadline = time.monotonic() + 5
    while left := running(marked):
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"they outlive it: {left}")
        time.sleep(0.05)


def test_bubblewrap_is_started_from_where_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "started"
    command = tmp_path / "bin" / "bwrap"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho > {mark}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    jail.bubblewrap.cache_clear()
    try:
        with pytest.raises(Broken, match="before it was ready"):
            probe("bwrap")
    finally:
        jail.bubblewrap.cache_clear()
    assert mark.exists()


# --- verdicts


def test_a_program_cannot_end_its_tests_loops() -> None:
    stops = "def f(x):\n    raise StopIteration\n"
    assert (
        check(stops, "assert all(map(lambda x: f(x) == x + 1, [1, 2]))", names=["f"]).verdict
        == "wrong"
    )
    fails = "def f(x):\n    raise KeyError(x)\n"
    assert (
        check(
            fails, "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass", names=["f"]
        ).verdict
        == "right"
    )


def test_whole_numbers_of_any_length_cross() -> None:
    program = "def f(x, y):\n    return x * y\n"
    assert (
        check(program, "assert f(7 ** 6000, -(7 ** 6000)) == -(7 ** 12000)", names=["f"]).verdict
        == "right"
    )
    assert check(program, "assert f(7 ** 6000, 1) == 7 ** 6000 + 1", names=["f"]).verdict == "wrong"
    found = check(program, "{}[f(7 ** 6000, 1)]", names=["f"])
    assert found.verdict == "wrong"
    assert found.why.startswith("KeyError: 3874")
    assert len(found.why) <= 300


def test_a_value_that_keeps_the_tests_busy_is_wrong_and_no_failure() -> None:
    """Numbers of one hash, of which a set is built in quadratic time: the limit on the tests'
    processor is not reached first.
    """
    program = """
import sys, time
def f(x):
    at = sys._getframe()
    while "send" not in at.f_locals:
        at = at.f_back
    same = ["set", *[i * ((1 << 61) - 1) for i in range(200_000)]]
    at.f_locals["send"]({"value": same, "args": ["list", 1]})
    time.sleep(20)
"""
    found = check(program, "assert f(1) == 1", names=["f"], limits=Limits(seconds=4, cpu=1))
    assert found.verdict == "wrong", found


# --- the filter by itself


def verdict(program: bytes, machine: int, call: int, *given: int) -> int:
    """What a filter says of a call: its instructions, carried out."""
    import struct

    shown = {0: call, 4: machine} | {
        16 + 8 * i: value & 0xFFFFFFFF for i, value in enumerate(given)
    }
    at = value = 0
    while True:
        code, yes, no, constant = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == filter.RETURN:
            return constant
        if code == filter.LOAD:
            value = shown.get(constant, 0)
        elif code == filter.MASK:
            value &= constant
        elif code == filter.ALWAYS:
            at += constant
        else:
            true = {
                filter.EQUAL: value == constant,
                filter.ABOVE: value > constant,
                filter.ANY: bool(value & constant),
            }[code]
            at += yes if true else no


@pytest.mark.parametrize("machine", filter.MACHINES)
def test_the_filter_says_what_its_tables_say(machine: str) -> None:
    program = filter.instructions(machine)
    column, name = filter.MACHINES[machine]
    refused = {pair[column]: errno.EPERM for pair in filter.FORBIDDEN.values()}
    refused |= {pair[column]: errno.ENOSYS for pair in filter.ABSENT.values()}
    checked = {pair[column] for pair in filter.CHECKED.values()}
    for call in range(700):
        expected = filter.FAIL | refused[call] if call in refused else filter.ALLOW
        if call > filter.NEWEST:
            expected = filter.FAIL | errno.ENOSYS
        if call not in checked:
            assert verdict(program, name, call) == expected, call
    assert verdict(program, 0x40000003, 3) == filter.KILL
    assert verdict(program, name, 0x40000000 + 1) == filter.FAIL | errno.ENOSYS  # x32
    of = {call: pair[column] for call, pair in filter.CHECKED.items()}
    private = 0x22
    shared = 0x21
    huge = 0x40022
    assert verdict(program, name, of["mmap"], 0, 9, 3, private) == filter.ALLOW
    assert verdict(program, name, of["mmap"], 0, 9, 3, 0x01) == filter.ALLOW  # of a file
    assert verdict(program, name, of["mmap"], 0, 9, 3, shared) == filter.FAIL | errno.EPERM
    assert verdict(program, name, of["mmap"], 0, 9, 3, huge) == filter.FAIL | errno.EPERM
    assert verdict(program, name, of["clone"], 0x003D0F00) == filter.ALLOW  # a thread
    assert verdict(program, name, of["clone"], 0x10000011) == filter.FAIL | errno.EPERM
    assert verdict(program, name, of["socket"], 1, 1, 0) == filter.ALLOW
    assert verdict(program, name, of["socket"], 40, 1, 0) == filter.FAIL | errno.EAFNOSUPPORT
    assert verdict(program, name, of["fcntl"], 3, 6) == filter.ALLOW
    assert verdict(program, name, of["prlimit64"], 0, 7) == filter.ALLOW
    assert filter.instructions("riscv64") == b""


HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", filter.MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    import re

    header = Path("/usr/include", HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    known = {name: int(value) for name, value in found}
    column, _ = filter.MACHINES[machine]
    ours = {**filter.FORBIDDEN, **filter.CHECKED, **filter.ABSENT}
    compared = 0
    for name, pair in ours.items():
        if name in known or pair[column] is None:
            assert pair[column] == known.get(name), name
            compared += 1
    assert compared > 70
