"""Facts about this machine, and how much memory it can give now: of the CPU within the limits of
control groups, and of a GPU; which GPUs there are, and what is particular about Apple's; threads,
large blocks and the garbage collector of this process.

Leaves out: swap, which is too slow to plan with, and what other processes are going to take.
"""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from comas.program import VERSION
from comas.types import Host

ROOT = Path("/")
"""Below it lie `proc` and `sys`."""
UNLIMITED = 2**60
"""A limit of a control group from which on it is none: version 1 writes a number next to 2**63."""
VERSION_2 = [(limit, "memory.current", "inactive_file") for limit in ("memory.max", "memory.high")]
VERSION_1 = [("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")]
"""Files of control groups with a limit and with what is used, and the name in memory.stat of what
the kernel can drop.
"""
LARGE_BLOCK = 2**20
"""Bytes from which on a block of memory goes back to the system when it is freed."""
KEPT_HEAP = 2**26
"""Bytes that may be free at the end of the heap before the system gets them back."""
MMAP_THRESHOLD = -3
TRIM_THRESHOLD = -1
"""Numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in glibc's malloc.h."""
APPLE_GPU = threading.RLock()
"""Held by the thread that computes on an Apple GPU: where two do at once, the process dies without
an exception (pytorch issue 197805).
"""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device; None where the system does not say."""

    free: int | None
    """Bytes that a process could have now."""
    total: int | None
    """Bytes in all, or the limit that this process is under."""

    @property
    def usable(self) -> int | None:
        """Bytes that a run may plan with: those free, or in all where that is not known."""
        return self.total if self.free is None else self.free

    def __str__(self) -> str:
        if self.free is not None:
            return f"{self.free / 1e9:.1f} GB free"
        return f"{self.total / 1e9:.1f} GB in all" if self.total else "memory that is not known"


def memory_of(device: str) -> DeviceMemory:
    """Measure the memory of a torch device: `cpu`, `cuda`, `cuda:1`, `mps`."""
    if device.startswith("cuda"):
        import torch

        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(free, total)
    if device.startswith("mps"):
        import torch

        # a part of the machine's memory; what other processes take of it is not known
        total = torch.mps.recommended_max_memory()
        return DeviceMemory(max(0, total - torch.mps.driver_allocated_memory()), total)
    if device != "cpu":
        return DeviceMemory(None, None)
    if sys.platform.startswith("linux"):
        return linux_memory(ROOT)
    return DeviceMemory(None, _physical())


def has_apple_gpu() -> bool:
    """Whether torch computes on an Apple GPU (`mps`) here, with bfloat16, which macOS 14 brings
    (pytorch pull request 119641).
    """
    import torch

    mps = torch.backends.mps
    return mps.is_available() and mps.is_macos_or_newer(14, 0)


def auto_device() -> str:
    """Resolve `device = "auto"`: a GPU where there is one."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if has_apple_gpu() else "cpu"


def in_turn(device: str) -> AbstractContextManager[object]:
    """Exclude other threads of this process from the same Apple GPU."""
    return APPLE_GPU if device.startswith("mps") else nullcontext()


def linux_memory(root: Path) -> DeviceMemory:
    """Read what the kernel calls available, or less where a control group of this process leaves
    less.
    """
    meminfo = _numbers(root / "proc" / "meminfo")
    free = meminfo.get("MemAvailable")
    total = meminfo.get("MemTotal") or _physical()
    for limit, used in _limits(root):
        room = max(0, limit - used)
        free = room if free is None else min(free, room)
        total = limit if total is None else min(total, limit)
    return DeviceMemory(free, total)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of this process's control groups; what the kernel can drop at once
    is no use.
    """
    for folder, is_version_1 in _groups(root, "memory"):
        for limit, used, droppable in VERSION_1 if is_version_1 else VERSION_2:
            try:
                most = int((folder / limit).read_text("utf-8"))  # `max`, no number, is no limit
                taken = int((folder / used).read_text("utf-8"))
            except (OSError, ValueError):
                continue
            if most < UNLIMITED:
                dropped = _numbers(folder / "memory.stat").get(droppable, 0)
                yield most, max(0, taken - dropped)


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Folders of the control groups that this process is in, and of those above them, each with
    whether it is one of version 1.

    In a container the path may be that of the machine, and only the root is there.
    """
    for line in _lines(root / "proc" / "self" / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, colon, place = rest.partition(":")
        if not colon or "\0" in line or (controllers and controller not in controllers.split(",")):
            continue
        for below in (controller,) if controllers else ("", "unified"):  # alone, or beside 1
            mounted = root / "sys" / "fs" / "cgroup" / below
            here = mounted / place.strip("/")
            yield here, bool(controllers)
            for above in here.parents:
                if above == mounted or mounted in above.parents:
                    yield above, bool(controllers)


def _numbers(path: Path) -> dict[str, int]:
    """Read a file of the kernel with a name and a number per line, in bytes: `MemTotal: 5 kB`,
    `inactive_file 300`; other lines are left out.
    """
    numbers: dict[str, int] = {}
    for name, number, *unit in (line.split() for line in _lines(path) if len(line.split()) > 1):
        if number.isdecimal():
            numbers[name.rstrip(":")] = int(number) * (1024 if unit == ["kB"] else 1)
    return numbers


def _lines(path: Path) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def _physical() -> int | None:
    """All memory of the machine, as POSIX tells it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def usable_cpus() -> int:
    """CPUs that this process may use: those that it may run on, or fewer where a control group
    (`docker run --cpus`) gives it the time of fewer.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    return min([count, *(max(1, math.ceil(quota)) for quota in cpu_quotas(ROOT))])


def cpu_quotas(root: Path) -> Iterator[float]:
    """CPUs whose time each control group of this process gets, of those that have a limit."""
    for folder, is_version_1 in _groups(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_version_1 else ("cpu.max",)
        texts = [line for name in names for line in _lines(folder / name)]
        numbers = " ".join(texts).split()
        if len(numbers) == 2 and all(map(str.isdecimal, numbers)):  # otherwise -1 or `max`
            quota, period = map(int, numbers)
            if quota and period:
                yield quota / period


def use_threads(count: int | None) -> None:
    """Set the threads of torch in this process; None is what OMP_NUM_THREADS says, otherwise one
    per CPU that it may use (torch itself counts the machine's).
    """
    import torch

    torch.set_num_threads(threads_of(count))


def threads_of(count: int | None) -> int:
    """The threads that `use_threads` sets."""
    return count or _threads_wished() or usable_cpus()


def _threads_wished() -> int | None:
    """The number in OMP_NUM_THREADS, the first of a list of them; None where it has none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) or None if first.isascii() and first.isdigit() else None


class Worker(ThreadPoolExecutor):
    """One thread that computes on a device, on an Apple GPU in turn with others."""

    def __init__(self, name: str, device: str) -> None:
        super().__init__(max_workers=1, thread_name_prefix=name)
        self.device = device

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function in the thread."""

        def call() -> Any:
            with in_turn(self.device):
                return fn(*args, **kwargs)

        return super().submit(call)


def own_thread(name: str, device: str) -> Worker:
    """One thread of this name that computes with as many threads as torch has now. It would take
    their number when it first computes, and somebody may have set it to one for a while then.
    """
    import torch

    worker = Worker(name, device)
    ThreadPoolExecutor.submit(worker, torch.get_num_threads).result()
    return worker


def return_large_blocks() -> None:
    """Have this process give each large block of memory back as soon as it is freed, where
    `can_return_large_blocks`.

    Left alone, glibc raises that size to 32 MB, and keeps what is smaller in a heap that gets
    scattered: a pass of a learner took two thirds more (docs/performance.md). The end of the heap
    stays: given the one size, glibc would give back and fetch every 128 kB of it again and again.
    """
    if library := _glibc():
        library.mallopt(MMAP_THRESHOLD, LARGE_BLOCK)
        library.mallopt(TRIM_THRESHOLD, KEPT_HEAP)


def can_return_large_blocks() -> bool:
    """Whether this process has an allocator that can be set so: glibc's."""
    return _glibc() is not None


def _glibc() -> Any:
    """The C library of this process; None where it is another one, whose mallopt says nothing."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: while torch is imported and a model loaded, nearly all that is
    made stays, and looking through it again and again took a sixth of the time to the first token.
    """
    if not gc.isenabled():  # somebody else's decision, or inside another pause
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_bytes_of(device: str) -> int:
    """The most memory so far: of a GPU, otherwise of this process; 0 where the system does not
    tell.
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    if device.startswith("mps"):
        import torch

        return torch.mps.driver_allocated_memory()  # what it has freed stays with torch
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_bytes(hosts: Mapping[str, Host]) -> int:
    """The most memory so far: of all GPUs that hosts use, otherwise of this process and those of
    hosts elsewhere.
    """
    peaks_here: dict[str, int] = {}
    elsewhere: list[tuple[str, int]] = []
    for facts in (host.facts() for host in hosts.values()):
        device = str(facts.get("device", "cpu"))
        peak = int(facts.get("peak_bytes", 0))
        if "where" in facts:
            elsewhere.append((device, peak))
        else:
            peaks_here[device] = peak
    peaks = [*peaks_here.items(), *elsewhere]
    of_gpus = [peak for device, peak in peaks if device.startswith(("cuda", "mps"))]
    return sum(of_gpus) or peak_bytes_of("cpu") + sum(peak for _, peak in elsewhere)


def process_facts(hosts: Mapping[str, Host]) -> dict[str, Any]:
    """Gather what results may depend on besides the config: versions, processor, devices."""
    import torch

    facts: dict[str, Any] = {
        "comas": VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    if commit := _commit():
        facts["commit"] = commit
    facts |= {name: version_of(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    facts["processor"] = processor()
    facts["threads"] = torch.get_num_threads()
    host_facts = {name: host.facts() for name, host in hosts.items()}
    devices = sorted(
        f"{name}: {host.get('device', 'its own')}" for name, host in host_facts.items()
    )
    facts["devices"] = ", ".join(devices)

    def joined(key: str) -> str:
        """`left: float32, right: bfloat16` of the hosts that tell it; truths as in JSON."""
        values = {name: host[key] for name, host in host_facts.items() if key in host}
        texts = {n: json.dumps(v) if isinstance(v, bool) else v for n, v in values.items()}
        return ", ".join(f"{name}: {text}" for name, text in texts.items())

    facts["dtypes"] = joined("dtype")
    for name, key in (("engines", "engine"), ("where", "where")):
        if text := joined(key):
            facts[name] = text
    return {**facts, **{key: joined(key) for key in ("deterministic", "margin_known")}}


def version_of(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The git commit of the checkout that this code lies in, as 12 digits; None where it was
    installed from a package.
    """
    git = Path(__file__).parents[2] / ".git"
    if not git.exists():  # git itself would look further up, where somebody else's may be
        return None
    command = ["git", f"--git-dir={git}", "rev-parse", "--short=12", "HEAD"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return revision.stdout.strip()


def processor() -> str:
    """Return the processor's name, as far as it can be learnt."""
    lines = [line.partition(":") for line in _lines(Path("/proc/cpuinfo"))]
    facts = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    if "model name" in facts:
        return facts["model name"]
    name = platform.processor() or platform.machine()
    if "CPU part" in facts:  # ARM has numbers alone
        return f"{name} {facts.get('CPU implementer', '')} {facts['CPU part']}"
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        with suppress(OSError, subprocess.CalledProcessError):
            told = subprocess.run(command, capture_output=True, text=True, check=True)
            return told.stdout.strip() or name
    return name
