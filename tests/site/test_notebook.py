"""The notebook runs in a kernel, and what is kept of it is small and says no place of a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_team.ipynb"


def test_the_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    target = tmp_path / "executed.ipynb"
    script = ROOT / "docs" / "site" / "notebook.py"
    command = [sys.executable, str(script), str(NOTEBOOK), str(target), "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads(target.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    printed = {cell["id"]: "".join(map(str, cell["outputs"])) for cell in code}
    assert "gain" in printed["result"]
    assert "4 steps" in printed["result"]
    assert "solution" in printed["discuss"]
    assert "image/png" in printed["plot"]
    assert "verdict=" in printed["compare"]
    assert [cell["source"] for cell in cells] == [cell["source"] for cell in kept()]


def kept() -> list[dict[str, object]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_outputs_are_kept_and_small() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert all(cell["outputs"] for cell in kept() if cell.get("id") in ("result", "plot"))
    for word in ("/tmp", "/home", "/root", "site-packages"):
        assert word not in text.replace("tempfile", "")
