"""System calls that are left to a program: a filter of the kernel (seccomp), written out as its
instructions.

It forbids what holds memory that no limit counts (memfds, System V segments, message queues,
anonymous shared maps, huge pages), what reaches secrets (keyrings, other processes), every socket
that is not a local one, and what a hole in the kernel would be reached by and Python never needs.
It is made outside, and put in force inside (`walls`). Leaves out: machines other than x86_64 and
aarch64, where `instructions` gives nothing and `comas env` says so.
"""

from __future__ import annotations

import errno
import struct
from functools import lru_cache


def _calls(table: str) -> dict[str, tuple[int | None, int | None]]:
    """Name -> its numbers on x86_64 and on aarch64, None where it is unknown there (`-`)."""
    rows = [row.split() for row in table.split(";")]
    numbers = [(name, *(None if n == "-" else int(n) for n in both)) for name, *both in rows]
    return {name: (one, other) for name, one, other in numbers}


FORBIDDEN = _calls(
    # memory that no limit counts
    "memfd_create 319 279; memfd_secret 447 447; shmget 29 194; msgget 68 186; semget 64 190; "
    "mq_open 240 180; remap_file_pages 216 234; vmsplice 278 75; inotify_init 253 -; "
    "inotify_init1 294 26; fanotify_init 300 262; "
    # secrets
    "add_key 248 217; request_key 249 218; keyctl 250 219; ptrace 101 117; "
    "process_vm_readv 310 270; process_vm_writev 311 271; process_madvise 440 440; "
    "pidfd_getfd 438 438; kcmp 312 272; open_by_handle_at 304 265; name_to_handle_at 303 264; "
    # namespaces and mounts
    "unshare 272 97; setns 308 268; mount 165 40; umount2 166 39; pivot_root 155 41; "
    "chroot 161 51; open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431; "
    "fsmount 432 432; fspick 433 433; mount_setattr 442 442; statmount 457 457; "
    "listmount 458 458; "
    # wide doors into the kernel
    "io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427; "
    "userfaultfd 323 282; bpf 321 280; perf_event_open 298 241; seccomp 317 277; "
    "personality 135 92; "
    # the machine itself
    "kexec_load 246 104; kexec_file_load 320 294; init_module 175 105; finit_module 313 273; "
    "delete_module 176 106; reboot 169 142; swapon 167 224; swapoff 168 225; acct 163 89; "
    "quotactl 179 60; quotactl_fd 443 443; settimeofday 164 170; clock_settime 227 112; "
    "clock_adjtime 305 266; adjtimex 159 171; syslog 103 116; vhangup 153 58; iopl 172 -; "
    "ioperm 173 -; modify_ldt 154 -; sethostname 170 161; setdomainname 171 162; "
    # where memory lies
    "mbind 237 235; set_mempolicy 238 237; migrate_pages 256 238; move_pages 279 239; "
    "set_mempolicy_home_node 450 450; "
    # what is old
    "lookup_dcookie 212 18; nfsservctl 180 42; uselib 134 -; ustat 136 -; sysfs 139 -; "
    "_sysctl 156 -"
)
"""Calls that fail with EPERM: their numbers on x86_64 and on aarch64."""
ABSENT = {"clone3": (435, 435)}
"""Calls that fail with ENOSYS, so that libraries take the older one, whose flags a filter can read.
"""
CHECKED = {
    "mmap": (9, 222),
    "clone": (56, 220),
    "fcntl": (72, 25),
    "madvise": (28, 233),
    "socket": (41, 198),
    "setsockopt": (54, 208),
    "prctl": (157, 167),
    "setrlimit": (160, 164),
    "prlimit64": (302, 261),
}
"""Calls that depend on an argument: see `_rules`."""
NEWEST = 462
"""The highest number that is known here (mseal, Linux 6.10); a later call fails with ENOSYS."""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the tables, and the kernel's name for the machine."""

ALLOW = 0x7FFF0000
FAIL = 0x00050000
KILL = 0x80000000
LOAD = 0x20
MASK = 0x54
ALWAYS = 0x05
EQUAL = 0x15
ABOVE = 0x25
ANY = 0x45
RETURN = 0x06
"""Instructions: load a word, and, jump, jump if equal, jump if greater, jump if a bit is set,
return.
"""
NUMBER = 0
MACHINE = 4
ARGUMENTS = 16
"""Offsets into what the kernel shows a filter of a call."""


def _rules() -> dict[str, tuple[int, list[tuple[str, int]], int]]:
    """Return for each checked call the argument that is looked at, values of it that are refused,
    and the error.
    """
    # kept when nothing maps it any more, and not counted by who has touched it
    shared_and_anonymous = 0x01 | 0x20
    huge = 0x40000
    namespaces = 0x7E020000
    pipe_size = 1031
    lease = 1024
    notify = 1026
    open_lock = 37
    open_lock_wait = 38
    page_out = 21
    local = 1
    buffer_sizes = (7, 8, 32, 33)  # two of them the forced ones
    parent_death = 1
    transparent_huge = 41
    filters = 22
    core_size = 4
    of_fcntl = [("is", cmd) for cmd in (pipe_size, lease, notify, open_lock, open_lock_wait)]
    return {
        "mmap": (3, [("all", shared_and_anonymous), ("all", huge)], errno.EPERM),
        "clone": (0, [("any", namespaces)], errno.EPERM),
        "fcntl": (1, of_fcntl, errno.EPERM),
        "madvise": (2, [("is", page_out)], errno.EPERM),
        "socket": (0, [("not", local)], errno.EAFNOSUPPORT),
        "setsockopt": (2, [("is", name) for name in buffer_sizes], errno.EPERM),
        "prctl": (
            0,
            [("is", option) for option in (parent_death, transparent_huge, filters)],
            errno.EPERM,
        ),
        "setrlimit": (0, [("is", core_size)], errno.EPERM),
        "prlimit64": (1, [("is", core_size)], errno.EPERM),
    }


@lru_cache
def instructions(machine: str) -> bytes:
    """The filter for a machine as `os.uname` calls it; empty where there is none."""
    if machine not in MACHINES:
        return b""
    column, name = MACHINES[machine]
    program = [
        _step(LOAD, MACHINE),
        _step(EQUAL, name, yes=1),
        _step(RETURN, KILL),  # calls of a 32-bit program have other numbers
        _step(LOAD, NUMBER),
        _step(ABOVE, NEWEST, no=1),
        _step(RETURN, FAIL | errno.ENOSYS),
    ]
    for call, (argument, refused, error) in _rules().items():
        number = CHECKED[call][column]
        block = _argument(argument, refused, error)
        program += [_step(EQUAL, number, no=len(block)), *block]
    for table, error in ((FORBIDDEN, errno.EPERM), (ABSENT, errno.ENOSYS)):
        numbers = [number for pair in table.values() if (number := pair[column]) is not None]
        program += _among(sorted(numbers), error)
    return b"".join([*program, _step(RETURN, ALLOW)])


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many to leap over."""
    return struct.pack("<HBBI", code, yes, no, value)


def _argument(index: int, refused: list[tuple[str, int]], error: int) -> list[bytes]:
    """Look at the lower half of an argument, which is all that the kernel itself looks at of these;
    then it is over.
    """
    steps: list[bytes] = []
    for how, value in refused:
        steps.append(_step(LOAD, ARGUMENTS + 8 * index))
        if how == "all":
            steps.append(_step(MASK, value))
        fails_if_true = how != "not"
        steps.append(
            _step(ANY if how == "any" else EQUAL, value, yes=not fails_if_true, no=fails_if_true)
        )
        steps.append(_step(RETURN, FAIL | error))
    return [*steps, _step(RETURN, ALLOW)]


def _among(numbers: list[int], error: int) -> list[bytes]:
    """Build filter instructions that fail a listed system call.

    The list is searched by bisection: the kernel runs the filter for every system call number when
    it loads it, and refuses filters that take too many instructions.
    """
    if len(numbers) <= 4:
        last = len(numbers) - 1
        tests = [_step(EQUAL, n, yes=last - i, no=i == last) for i, n in enumerate(numbers)]
        return [*tests, _step(RETURN, FAIL | error)]
    middle = len(numbers) // 2
    below = _among(numbers[:middle], error)
    above = _among(numbers[middle:], error)
    leap = _step(ALWAYS, len(above))
    return [_step(ABOVE, numbers[middle - 1], yes=len(below) + 1), *below, leap, *above]
