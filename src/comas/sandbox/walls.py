"""Going in: namespaces, a root that holds nothing but a read-only system, limits, and the end of
every right.

Runs inside, before anything of a program is there; given to Python with `inside`, and imports
nothing of ours. Leaves out: limits on memory and processes as a group (`jail` watches from
outside), what the filter of system calls says (`filter`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

TYPE_CHECKING = False  # importing typing takes three milliseconds
if TYPE_CHECKING:
    from typing import Any

NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""Flags of `unshare`: mounts, processes, the network, IPC, the name of the host."""
OF_USERS = 0x10000000
READ_ONLY = 1
NO_SUID = 2
NO_DEV = 4
REMOUNT = 32
BIND = 4096
RECURSIVE = 16384
PRIVATE = 1 << 18
PDEATHSIG = 1
SECCOMP = 22
NO_NEW_PRIVS = 38
NO_HUGE_PAGES = 41
DEVICES = ("null", "urandom")
"""Without `zero`: mapped as shared, it is memory that nobody counts."""
HOST = b"sandbox"
KEYCTL = {"x86_64": 250, "aarch64": 219}


def enter(limits: dict[str, Any]) -> None:
    """Enter new namespaces with an empty root, a read-only system and no rights.

    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid = os.getuid()
    gid = os.getgid()
    _call(libc.unshare, NAMESPACES | (OF_USERS if limits["uid"] is None else 0))
    if limits["uid"] is None:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    libc.prctl(PDEATHSIG, signal.SIGKILL)  # with the process that forked it
    child = os.fork()
    # the first process of the namespace is the child; this one waits, and takes it along when it is
    # killed
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(PDEATHSIG, signal.SIGKILL)
    _call(libc.sethostname, HOST, len(HOST))
    if not takes_filters(libc, limits):
        _no_segments()
    _root(libc, limits)
    os.setsid()
    limit(limits)
    _drop(libc, limits["uid"])
    libc.prctl(PDEATHSIG, signal.SIGKILL)  # dropping rights cleared it


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function.__name__}: {os.strerror(code)}")


def _mount(
    libc: Any, source: str, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    coded = [x.encode() if x is not None else None for x in (source, target, kind)]
    _call(libc.mount, *coded, ctypes.c_ulong(flags), data.encode() or None)


def _root(libc: Any, limits: dict[str, Any]) -> None:
    """A root in memory with the system bound read-only, and an empty folder to work in."""
    stage = limits["stage"]
    _mount(libc, "none", "/", None, RECURSIVE | PRIVATE)
    _mount(libc, "tmpfs", stage, "tmpfs", NO_SUID | NO_DEV, "size=1m,mode=755")
    for path, kind, more in limits["system"]:
        target = stage + path
        if kind == "link":
            os.symlink(more, target)
            continue
        if kind != "file":
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        if kind == "way":
            continue
        _mount(libc, path, target, None, BIND)
        _mount(libc, path, target, None, BIND | REMOUNT | READ_ONLY | NO_SUID | more)
    for path in limits["hidden"]:
        _mount(
            libc,
            "tmpfs",
            stage + path,
            "tmpfs",
            READ_ONLY | NO_SUID | NO_DEV,
            "size=4k,nr_inodes=2",
        )
    os.mkdir(stage + "/dev")
    for name in DEVICES:
        os.close(os.open(f"{stage}/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(libc, f"/dev/{name}", f"{stage}/dev/{name}", None, BIND)
    os.mkdir(stage + "/work")
    room = f"size={limits['disk']},mode=1777,nr_inodes={limits['files']}"
    _mount(libc, "tmpfs", stage + "/work", "tmpfs", NO_SUID | NO_DEV, room)
    _mount(libc, "tmpfs", stage, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEV)
    os.chroot(stage)
    os.chdir("/work")


def limit(limits: dict[str, Any]) -> None:
    """Limit what the kernel counts per process or per user."""
    if sys.platform == "darwin":  # which refuses some of them
        return
    import resource  # which Windows has not

    bounds = {
        "CPU": limits["cpu"],
        "AS": limits["memory"],
        "FSIZE": limits["disk"],
        "NPROC": limits["processes"],
        "NOFILE": 64,
        # byte: at 0 the kernel would still start the machine's own reader of core dumps, where it
        # has one
        "CORE": 1,
        "SIGPENDING": 64,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
        "RTPRIO": 0,
        "NICE": 0,
    }
    for name, value in bounds.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, highest = resource.getrlimit(which)
        # which may be lower already
        value = value if highest == resource.RLIM_INFINITY else min(value, highest)
        resource.setrlimit(which, (value, value))


def _drop(libc: Any, uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _call(libc.prctl, NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call(libc.capset, header, (ctypes.c_uint32 * 6)())


def takes_filters(libc: Any, limits: dict[str, Any]) -> bool:
    """Whether system calls can be filtered here."""
    if not limits["filter"]:
        return False
    # no filter: a kernel that could take one finds a bad address
    libc.prctl(SECCOMP, ctypes.c_ulong(2), None)
    return ctypes.get_errno() == errno.EFAULT


def _no_segments() -> None:
    """Forbid System V segments and queues where no filter does: they are held by nobody, and
    counted nowhere.
    """
    for name in ("kernel/shmmni", "kernel/msgmni", "fs/mqueue/queues_max"):
        try:
            with open(f"/proc/sys/{name}", "w") as file:
                file.write("0")
        except OSError:  # read-only in some containers; `comas env` tries it out
            continue


def forget_keys() -> None:
    """Leave the session's keyring for an empty one: keys may be secrets."""
    if number := KEYCTL.get(os.uname().machine):
        join = 1
        ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), ctypes.c_long(join), None)


def close(limits: dict[str, Any]) -> bool:
    """No large pages, of which a part is held as a whole, and no system call that Python does not
    need; whether the latter could be had. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    libc.prctl(NO_HUGE_PAGES, ctypes.c_ulong(1), zero, zero, zero)
    if not takes_filters(libc, limits):
        return False
    _call(libc.prctl, NO_NEW_PRIVS, 1, 0, 0, 0)
    coded = bytes.fromhex(limits["filter"])
    kept = ctypes.create_string_buffer(coded, len(coded))
    # a length in 16 bits, padding, an address
    program = (ctypes.c_uint64 * 2)(len(coded) // 8, ctypes.addressof(kept))
    _call(libc.prctl, SECCOMP, ctypes.c_ulong(2), ctypes.byref(program))
    return True
