"""The notebooks run in a kernel, and what is kept of them is small and says no place of a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from comas.models.sources import how_to_install, installed_at

ROOT = Path(__file__).parents[2]
FIRST_TEAM = ROOT / "examples" / "first_team.ipynb"
MY_MODEL = ROOT / "examples" / "my_model.ipynb"


def cells(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def executed(notebook: Path, folder: Path, steps: int) -> dict[str, str]:
    """Cell -> what it printed and drew, in a kernel of its own."""
    target = folder / "executed.ipynb"
    script = ROOT / "docs" / "site" / "notebook.py"
    command = [sys.executable, str(script), str(notebook), str(target), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = cells(target)
    assert [cell["source"] for cell in found] == [cell["source"] for cell in cells(notebook)]
    code = [cell for cell in found if cell["cell_type"] == "code"]
    return {cell["id"]: "".join(map(str, cell["outputs"])) for cell in code}


@pytest.mark.slow
def test_the_first_team_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    printed = executed(FIRST_TEAM, tmp_path, steps=4)
    assert "gain" in printed["result"]
    assert "4 steps" in printed["result"]
    assert "solution" in printed["discuss"]
    assert "image/png" in printed["plot"]
    assert "verdict=" in printed["compare"]


@pytest.mark.real
@pytest.mark.skipif(
    installed_at("smollm2") is None,
    reason=f"the model is not installed: {how_to_install('smollm2')}",
)
def test_a_model_of_ones_own_runs_in_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    printed = executed(MY_MODEL, tmp_path, steps=1)
    assert "hours" in printed["questions"]
    assert "gain" in printed["train"]
    assert "1 steps" in printed["train"]
    assert "image/png" in printed["plot"]
    assert "adapter_model.safetensors" in printed["use"]


@pytest.mark.parametrize(
    ("notebook", "told"),
    [(FIRST_TEAM, ("result", "plot")), (MY_MODEL, ("train", "answers", "plot", "use"))],
    ids=("first_team", "my_model"),
)
def test_outputs_are_kept_and_small(notebook: Path, told: tuple[str, ...]) -> None:
    text = notebook.read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert all(cell["outputs"] for cell in cells(notebook) if cell.get("id") in told)
    for word in ("/tmp", "/home", "/root", "site-packages"):
        assert word not in text.replace("tempfile", "")
