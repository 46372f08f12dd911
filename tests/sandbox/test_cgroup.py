"""Control groups, in a folder that behaves as the kernel's; and in the kernel's own where this
machine has a writable one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from comas import sandbox
from comas.sandbox import cgroup, check, jail
from comas.sandbox.jail import Broken, Limits, isolation

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

FILES = (
    "memory.max",
    "memory.swap.max",
    "memory.oom.group",
    "pids.max",
    "cgroup.procs",
    "cgroup.kill",
)
PROGRAM = "def f(x):\n    return x + 1\n"
TESTS = "assert f(1) == 2"


class Kernel:
    """A tree of groups in a folder: `handed` are those whose groups get limits; writes are noted
    when a group is removed.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.handed = set[Path]()
        self.removed = list[tuple[str, dict[str, str]]]()
        self.busy = 0
        self.really = {"mkdir": os.mkdir, "rmdir": os.rmdir}
        (root / "cgroup.controllers").write_text("cpu memory pids\n")
        for name in ("mkdir", "rmdir"):
            monkeypatch.setattr(cgroup.os, name, getattr(self, name))

    def mkdir(self, path: Path, mode: int = 0o777, **more: int) -> None:
        if not str(path).startswith(str(self.root)):
            return self.really["mkdir"](path, mode, **more)
        self.really["mkdir"](path)
        for name in FILES if path.parent in self.handed else FILES[-2:]:
            (path / name).write_text("")
        return None

    def rmdir(self, path: Path, **more: int) -> None:
        if not str(path).startswith(str(self.root)):
            return self.really["rmdir"](path, **more)
        if self.busy:
            self.busy -= 1
            raise OSError(errno.EBUSY, "processes are in it")
        self.removed.append((path.name, {f.name: f.read_text() for f in path.iterdir()}))
        for file in path.iterdir():
            file.unlink()
        return self.really["rmdir"](path)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """This process is in the group /user/session below an invented root."""
    root = tmp_path / "cgroup"
    own = tmp_path / "own"
    (root / "user" / "session").mkdir(parents=True)
    own.write_text("1:name=systemd:/elsewhere\n0::/user/session\n")
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "OWN", own)
    cgroup.place.cache_clear()
    yield Kernel(root, monkeypatch)
    cgroup.place.cache_clear()


def test_a_group_is_made_where_limits_are_handed_down(kernel: Kernel) -> None:
    # as by systemd: a group that holds processes hands nothing down
    kernel.handed = {kernel.root / "user"}
    assert cgroup.place() == kernel.root / "user"
    # trials leave nothing
    assert list((kernel.root / "user").iterdir()) == [kernel.root / "user" / "session"]
    kernel.removed.clear()
    group = cgroup.Group(kernel.root / "user", 512 << 20, 18)
    group.take([12, 13])
    group.kill()
    kernel.busy = 3  # the last process takes its time
    group.end()
    ((_, written),) = kernel.removed
    assert written == {
        "memory.max": "536870912",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "18",
        # the last pid: one by one, as the kernel wants them
        "cgroup.procs": "13",
        "cgroup.kill": "1",
    }
    group.end()  # it is gone already


def test_own_group_first(kernel: Kernel) -> None:
    kernel.handed = {kernel.root / "user", kernel.root / "user" / "session"}
    assert cgroup.place() == kernel.root / "user" / "session"


def test_where_nothing_is_handed_down_there_are_none(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cgroup.place() is None
    assert {name.split("-")[0] for name, _ in kernel.removed} == {"comas"}
    kernel.handed = {kernel.root / "user"}

    def read_only(path: Path, mode: int = 0) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(cgroup.os, "mkdir", read_only)
    cgroup.place.cache_clear()
    assert cgroup.place() is None
    (kernel.root / "cgroup.controllers").unlink()  # version 1
    cgroup.place.cache_clear()
    assert cgroup.place() is None


def test_groups_that_killed_processes_left_are_removed(kernel: Kernel) -> None:
    kernel.handed = {kernel.root / "user"}
    left = kernel.root / "user" / "comas-999999999-0"
    alive = kernel.root / "user" / f"comas-{os.getpid()}-77"
    left.mkdir()
    alive.mkdir()
    cgroup.place()
    assert not left.exists()
    assert alive.exists()


def test_a_sandbox_goes_into_a_group_before_it_hears_of_a_program(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        isolation()
    except Exception as error:  # noqa: BLE001 - whatever it lacks
        pytest.skip(f"no isolation works here: {error}")
    kernel.handed = {kernel.root / "user"}
    taken: list[list[int]] = []
    real = cgroup.Group.take
    monkeypatch.setattr(
        cgroup.Group, "take", lambda self, pids: (taken.append(list(pids)), real(self, pids))[1]
    )
    assert cgroup.place() is not None
    kernel.removed.clear()
    assert check(PROGRAM, TESTS, names=["f"], limits=Limits(memory=256 << 20)).verdict == "right"
    # what waits outside and the first inside, of both sides
    assert [len(pids) >= 2 for pids in taken[1:]] == [True, True]
    programs = [written for _, written in kernel.removed]
    assert [w["cgroup.kill"] for w in programs] == ["1", "1"]
    assert {w["memory.max"] for w in programs} == {str(256 << 20)}
    assert sandbox.prove()["memory and processes"].startswith(
        f"control groups in {kernel.root / 'user'}, and watched"
    )


def test_a_group_that_cannot_be_entered_is_a_failure_and_no_verdict(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.handed = {kernel.root / "user"}
    assert cgroup.place() is not None

    def refuse(self: cgroup.Group, pids: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(cgroup.Group, "take", refuse)
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    found = check(PROGRAM, TESTS, names=["f"])
    assert found.verdict == "failed"
    assert "not yours" in found.why


@pytest.mark.skipif(cgroup.place() is None, reason="no control groups can be made here")
def test_the_kernel_keeps_the_limits() -> None:
    try:
        jail.probe("unshare")
    except Broken as error:
        pytest.skip(f"no namespaces here: {error}")
    hog = """
import os, time
def f():
    for _ in range(10):
        if os.fork() == 0:
            x = bytearray(os.urandom(1)) * (60 << 20)
            time.sleep(20)
            os._exit(0)
    time.sleep(20)
"""
    found = check(hog, "assert f() == 1", names=["f"], limits=Limits(seconds=15, memory=256 << 20))
    assert found.verdict == "wrong"
    assert found.seconds < 10
    assert list(Path(str(cgroup.place())).glob(f"comas-{os.getpid()}-*")) == []
