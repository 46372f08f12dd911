"""Blocks of memory that are freed go back to the system: the estimate of a CPU counts on it. They
come in large pages.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from comas.cli import entry, main
from comas.machine import can_return_large_blocks

SCATTERED = """
import sys
import torch
from comas.machine import return_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if sys.argv[1] == "returned":
    return_large_blocks()
torch.ones(7_000_000)  # freed at once: from then on glibc takes blocks of this size for usual ones
before = resident()
large, small = [], []
for _ in range(40):
    large.append(torch.ones(1_000_000))
    small.append(torch.ones(2_000))  # stays, above the large one
del large
print(resident() - before)
"""


def kept_bytes(how: str) -> int:
    """Of 160 MB that were freed between small blocks, how much a fresh process still has."""
    command = [sys.executable, "-c", SCATTERED, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return int(done.stdout)


@pytest.mark.skipif(not can_return_large_blocks(), reason="another allocator than glibc's")
def test_large_blocks_that_are_freed_between_small_ones_go_back():
    assert kept_bytes("left alone") > 30_000_000
    assert kept_bytes("returned") < 5_000_000


ASKED = """
from pathlib import Path
import torch

kept = torch.ones(10_000_000)
flags = Path("/proc/self/smaps").read_text().split("VmFlags:")[1:]
print(sum("hg" in line.split("\\n")[0].split() for line in flags))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a system without huge pages"
)
def test_the_command_asks_for_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(entry.HUGE_PAGES, "0")  # so that it is put back, whatever it was
    monkeypatch.delenv(entry.HUGE_PAGES)

    def regions() -> int:
        """Regions of memory with huge pages in a process of its own."""
        command = [sys.executable, "-c", ASKED]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)

    unasked = regions()
    seen: list[str | None] = []
    monkeypatch.setattr(main, "main", lambda: seen.append(os.environ.get(entry.HUGE_PAGES)))
    entry.main()
    assert seen == ["1"]
    assert regions() > unasked
