"""Tests that need a GPU are skipped without one, and never beside one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu import conftest


@pytest.fixture
def marked() -> Any:
    return SimpleNamespace(get_closest_marker=lambda name: name if name == "gpu" else None)


@pytest.fixture
def unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose torch sees no GPU; the folder of its driver, which is empty."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(conftest, "NVIDIA", tmp_path)
    return tmp_path


def reported(marked: Any, outcome: str) -> Any:
    report = SimpleNamespace(outcome=outcome, skipped=outcome == "skipped", longrepr="why")
    hook = conftest.pytest_runtest_makereport(marked, None)  # type: ignore[arg-type]
    next(hook)
    with pytest.raises(StopIteration) as ended:
        hook.send(report)  # type: ignore[arg-type]
    return ended.value.value


def test_without_a_gpu_a_test_is_skipped(unseen: Path, marked: Any) -> None:
    with pytest.raises(pytest.skip.Exception, match="no GPU is there"):
        conftest.pytest_runtest_setup(marked)
    assert reported(marked, "skipped").outcome == "skipped"


def test_a_gpu_that_torch_does_not_see_fails_it(unseen: Path, marked: Any) -> None:
    (unseen / "0000:01:00.0").mkdir()
    with pytest.raises(pytest.fail.Exception, match="torch with CUDA"):
        conftest.pytest_runtest_setup(marked)


def test_a_skip_beside_a_gpu_is_a_failure(unseen: Path, marked: Any) -> None:
    (unseen / "0000:01:00.0").mkdir()
    assert reported(marked, "skipped").outcome == "failed"
    assert reported(marked, "passed").outcome == "passed"


def test_what_is_not_marked_is_left_alone(unseen: Path) -> None:
    (unseen / "0000:01:00.0").mkdir()
    other = SimpleNamespace(get_closest_marker=lambda name: None)
    conftest.pytest_runtest_setup(other)  # type: ignore[arg-type]
    assert reported(other, "skipped").outcome == "skipped"
