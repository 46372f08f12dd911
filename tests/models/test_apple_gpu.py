"""Apple GPUs as far as a machine without one can tell: when they are taken, in what numbers, how
much memory they have, and that one thread at a time computes on them.

Leaves out: shapes and dtypes of tensors there (`tests/engines/test_gpu_shapes.py`), and all that
only such a GPU can show: nothing was run on one.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from comas import machine
from comas.machine import DeviceMemory
from comas.models.loading import place_of
from comas.types import UserMistake


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac with macOS 14."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.backends.mps.is_macos_or_newer", lambda *version: version <= (14, 0))
    monkeypatch.setattr(
        "torch.empty", lambda *_, device: SimpleNamespace(device=torch.device(device, 0))
    )


@pytest.mark.usefixtures("apple")
def test_auto_takes_it_and_bfloat16() -> None:
    assert place_of("auto", "auto") == (torch.device("mps", 0), torch.bfloat16)
    assert place_of("mps", "float32") == (torch.device("mps", 0), torch.float32)
    assert place_of("cpu", "auto") == (torch.device("cpu", 0), torch.float32)


@pytest.mark.usefixtures("apple")
def test_auto_prefers_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert place_of("auto", "auto")[0].type == "cuda"


@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("torch.backends.mps.is_available", lambda: False),
        ("torch.backends.mps.is_macos_or_newer", lambda *version: version <= (13, 3)),
    ],
)
def test_without_macos_14_the_cpu_is_taken(
    what: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what, value)
    assert place_of("auto", "auto")[0].type == "cpu"
    with pytest.raises(UserMistake, match=r"^device 'mps' .*device=cpu$"):
        place_of("mps", "auto")


def test_memory_is_what_metal_recommends_without_what_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.mps.recommended_max_memory", lambda: 12 * 10**9)
    for taken in (5, 13):
        monkeypatch.setattr("torch.mps.driver_allocated_memory", lambda taken=taken: taken * 10**9)
        assert machine.memory_of("mps:0") == DeviceMemory(max(0, 12 - taken) * 10**9, 12 * 10**9)
        assert machine.peak_bytes_of("mps:0") == taken * 10**9


@pytest.mark.parametrize(("device", "together"), [("mps", False), ("cpu", True)])
def test_hosts_on_one_take_turns(device: str, together: bool) -> None:
    meeting = threading.Barrier(2)

    def meets() -> bool:
        try:
            meeting.wait(10 if together else 0.2)
        except threading.BrokenBarrierError:
            return False
        return True

    workers = [machine.own_thread(name, device) for name in ("left", "right")]
    done = [worker.submit(meets) for worker in workers]
    assert [future.result() for future in done] == [together, together]
    for worker in workers:
        worker.shutdown()
