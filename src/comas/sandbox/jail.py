"""Processes behind walls: no network, no files but a read-only system and an empty folder, no
secrets, hard limits.

Linux: as root, namespaces and a uid of its own per process; otherwise bubblewrap where it is
installed, else user namespaces. Memory, files, locks and the number of processes are also watched
from outside (`watch`), for all processes of a sandbox together, and limited by the kernel where it
lets us (`cgroup`). Leaves out: other systems (an error says so).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import marshal
import math
import os
import platform
import select
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from comas.sandbox import cgroup
from comas.sandbox.filter import instructions
from comas.sandbox.forks import Forks
from comas.sandbox.needed import hidden_folders, python, shown, system_folders
from comas.sandbox.walls import DEVICES
from comas.sandbox.watch import Used, alive, descendants, used
from comas.types import UserMistake

FIRST_UID = 1_879_048_192
"""Uids from here on belong to nobody."""
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The whole environment of a sandbox: texts in a set have the same order in every run, so that a
verdict can be had again.
"""
_uids = itertools.count(os.getpid() % 20_000 * 10_000)


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox."""

    seconds: float = 10.0
    """Wall time of a whole case."""
    cpu: int = 10
    """Seconds of one process."""
    memory: int = 512 << 20
    """Bytes, of one process and of all together."""
    processes: int = 16
    disk: int = 16 << 20
    """Bytes of all files together."""
    files: int = 2000
    """Files and folders together."""
    locks: int = 2000
    """Locks of parts of files, which the kernel keeps in its own memory."""


class Broken(RuntimeError):
    """The sandbox itself could not be built."""


@lru_cache
def _source() -> str:
    """`inside`, with the modules that it imports: none of our files is there where it runs.
    Compiled here, by the same Python, since that is much of what it costs to start; in hex digits,
    since Linux takes 128 KiB in one argument, and escapes double what bytes need.
    """
    parts = []
    for name in ("literals", "walls", "judging", "inside"):
        text = (resources.files("comas.sandbox") / f"{name}.py").read_text(encoding="utf-8")
        code = marshal.dumps(compile(text, f"<{name}>", "exec"))
        parts.append((f"comas.sandbox.{name}", code.hex()))
    *modules, (_, inside) = parts
    return (
        f"import marshal, sys\nfor name, code in {modules!r}:\n    module = type(sys)(name)\n"
        "    exec(marshal.loads(bytes.fromhex(code)), module.__dict__)\n"
        "    sys.modules[name] = module\n"
        f"exec(marshal.loads(bytes.fromhex({inside!r})))"
    )


def _command(*arguments: str) -> list[str]:
    """Our side of the walls in Python: no site packages, nothing from the folder it starts in."""
    return [python(), "-s", "-P", "-S", "-B", "-X", "utf8", "-c", _source(), *arguments]


FORKS = Forks(lambda: _command("forks", f'"owner": {os.getpid()}'), ENVIRONMENT)
"""Where sandboxes come from that build their own walls: one for all threads."""


class Jail:
    """One process behind walls, and a line of talk with it."""

    def __init__(self, side: str, limits: Limits, kind: str) -> None:
        self.limits = limits
        self.uid = None
        self.filtered = False
        self.walled = kind != "none"
        if kind == "unshare" and os.geteuid() == 0:
            self.uid = FIRST_UID + next(_uids) % 200_000_000
        # a program can make its tests take long, which is then for the limit on the whole to say:
        # they never end without a verdict
        cpu = limits.cpu if side == "program" else limits.cpu + math.ceil(limits.seconds)
        own = {"side": side, "walls": kind, "uid": self.uid, "cpu": cpu, "owner": os.getpid()}
        settings = asdict(limits) | own
        if kind != "none":
            settings["filter"] = instructions(platform.machine()).hex()
        if kind == "unshare":
            settings |= {"system": shown(), "hidden": hidden_folders(), "stage": _stage()}
        self.process: subprocess.Popen[bytes] | None = None
        self._source: subprocess.Popen[bytes] | None = None
        self._group: cgroup.Group | None = None
        (theirs, stdin), (stdout, theirs_out) = os.pipe(), os.pipe()
        try:
            if kind == "unshare":
                self.pid, self._source = FORKS.born(settings, theirs, theirs_out)
            else:
                self.process = subprocess.Popen(
                    [*_walls(kind, limits), *_command(json.dumps(settings))],
                    stdin=theirs,
                    stdout=theirs_out,
                    stderr=subprocess.DEVNULL,
                    env=ENVIRONMENT,
                    cwd="/",
                    start_new_session=True,
                )
                self.pid = self.process.pid
        except BaseException:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(theirs)
            os.close(theirs_out)
        os.set_blocking(stdin, False)
        self.stdin = stdin
        self.stdout = stdout

    def enclose(self) -> None:
        """Let the kernel keep its limits, where there are control groups: to be called before it
        gets any program.
        """
        if (group_folder := cgroup.place()) is not None:
            pids = descendants(self.pid)
            self._group = cgroup.Group(
                group_folder, self.limits.memory, self.limits.processes + len(pids)
            )
            self._group.take(pids)

    def orphaned(self) -> bool:
        """Whether what it was forked from is gone, which takes it along: what it seems to have done
        is not its own doing.
        """
        return self._source is not None and self._source.poll() is not None

    def used(self) -> Used:
        """Measure what all of it together holds now."""
        return used(self.pid, self.walled)

    def end(self) -> None:
        """Kill everything in it, and wait until it is gone."""
        # the pid of an orphan may be another's by now
        children = [] if self.orphaned() else descendants(self.pid)
        if self._group is not None:
            self._group.kill()
        # the first of the namespace takes all others along, and is not gone before they are
        for pid in reversed(children):
            try:
                os.kill(pid, 9)
            except (ProcessLookupError, PermissionError):
                continue
        if not PROC.is_dir() and not self.orphaned():  # nobody lists what it started
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, 9)
        if self.process is None:
            # what it was forked from is gone, which has taken it along
            with contextlib.suppress(OSError):
                FORKS.bury(self.pid)
        else:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 5
        while any(map(alive, children)) and time.monotonic() < deadline:
            time.sleep(0.001)
        if self._group is not None:
            self._group.end()
        self.hang_up()
        os.close(self.stdout)

    def hang_up(self) -> None:
        """Tell it nothing more: it reads an end."""
        if self.stdin != -1:
            os.close(self.stdin)
            self.stdin = -1


def _stage() -> str:
    """A folder to build the new root on: one that hides nothing which is needed."""
    for path in ("/mnt", "/srv", "/media", "/tmp"):
        needed = any(folder.startswith(f"{path}/") for folder in system_folders())
        if os.path.isdir(path) and not os.path.islink(path) and not needed:
            return path
    raise Broken("no folder for the sandbox's root: /mnt, /srv, /media, /tmp are missing or in use")


def _walls(kind: str, limits: Limits) -> list[str]:
    """The command that builds them, for what does not build its own."""
    if kind != "bwrap":
        return []
    command = [bubblewrap() or "bwrap"]
    command += ["--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--cap-drop", "ALL", "--hostname", "sandbox"]
    command += [part for item in ENVIRONMENT.items() for part in ("--setenv", *item)]
    for path in system_folders():
        is_link = os.path.islink(path)
        command += ["--symlink", os.readlink(path)] if is_link else ["--ro-bind", path]
        command.append(path)
    for path in hidden_folders():
        command += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for name in DEVICES:  # `--dev` would make a folder that can be written to without limit
        command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    command += f"--size {limits.disk} --tmpfs /work --chdir /work --remount-ro / --".split()
    return command


@lru_cache
def bubblewrap() -> str | None:
    """Where its command lies: it is started without a PATH."""
    program = shutil.which("bwrap")
    return os.path.abspath(program) if program else None


def choose(kind: str) -> None:
    """`auto`: the best isolation that works here; `none`: programs run in processes of their own,
    but without walls.
    """
    global _chosen
    _chosen = kind


def isolation() -> str:
    """Return what builds the walls: `unshare`, `bwrap`, or `none` where the user wants none.

    Raises UserMistake where nothing does.
    """
    return "none" if _chosen == "none" else _working()


PROC = Path("/proc/self")
_chosen = "auto"


@lru_cache
def _working() -> str:
    if sys.platform != "linux":
        raise UserMistake(
            "programs that models write run in a sandbox, which needs Linux; sandbox='none' runs"
            " them without one"
        )
    kinds = ["unshare", "bwrap"] if os.geteuid() == 0 else ["bwrap", "unshare"]
    failures = []
    for kind in [k for k in kinds if k == "unshare" or bubblewrap()]:
        try:
            probe(kind)
        except Broken as error:
            failures.append(f"{kind}: {error}")
        else:
            return kind
    raise UserMistake(
        f"no sandbox can be built here ({'; '.join(failures)}): install bubblewrap (apt install"
        " bubblewrap), or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1,"
        " user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in Docker"
        " --security-opt seccomp=unconfined or --cap-add SYS_ADMIN); sandbox='none' runs programs"
        " that models write without one"
    )


def probe(kind: str) -> bool:
    """Go in once; whether system calls are filtered there. Raises Broken."""
    jail = Jail("program", Limits(), kind)
    try:
        greet(jail, time.monotonic() + 30)
    finally:
        jail.end()
    return jail.filtered


def greet(jail: Jail, deadline: float) -> None:
    """Wait until a sandbox is ready. Raises Broken."""
    received = b""
    while not received.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
        if select.select([jail.stdout], [], [], left)[0]:
            if not (more := os.read(jail.stdout, 1 << 16)):
                break
            received += more
    try:
        greeting: Any = json.loads(received)
    except ValueError:
        late = time.monotonic() > deadline
        outcome = "was not ready in time" if late else "ended before it was ready"
        raise Broken(f"it {outcome}") from None
    if "broken" in greeting:
        raise Broken(greeting["broken"])
    jail.filtered = greeting["filtered"]
