"""Tests of a GPU: `make test-gpu` lists them and runs them. Without one they are skipped; where one
is there, whatever would skip a test fails it instead.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Where the driver of NVIDIA has a folder for each GPU."""


def gpu_is_there() -> bool:
    """Whether this machine has a GPU, whatever this torch sees of it."""
    return torch.cuda.is_available() or (NVIDIA.is_dir() and any(NVIDIA.iterdir()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if gpu_is_there():
        pytest.fail("a GPU is there that this torch does not see: install a torch with CUDA")
    pytest.skip("no GPU is there")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.get_closest_marker("gpu") is not None and gpu_is_there():
        report.outcome = "failed"
        report.longrepr = f"skipped although a GPU is there: {report.longrepr}"
    return report
