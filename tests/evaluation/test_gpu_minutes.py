"""The benchmark of a GPU's minutes runs on a CPU with a tiny model, and a part that fails or hangs
leaves the others alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_minutes.py"


def ran(out: Path, parts: str, code: int = 0) -> list[dict[str, Any]]:
    """Findings of these parts."""
    command = [sys.executable, str(SCRIPT), str(out), "--tiny", "--parts", parts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_all_parts_run_on_a_cpu_and_say_what_they_are_for(tmp_path: Path) -> None:
    parts = "card:99,refresh:99,sample:99,train:99,step:300,waits:9,tests:9"
    found = ran(tmp_path, parts)
    said = {part.partition(":")[0]: [] for part in parts.split(",")}
    for facts in found:
        assert "failed" not in facts, facts
        said[facts["part"]].append(facts)
    assert all(facts[-1]["took"] >= 0 for facts in said.values())
    assert said["card"][1]["matmul_tflops"] > 0
    assert said["refresh"][0]["gap_max"] < 1e-3
    for part, plain, ours in (
        ("sample", "generate", "hf, 2 adapters"),
        ("train", "peft, 1 adapter", "comas, 2 adapters"),
    ):
        rates = {facts["who"]: facts for facts in said[part] if "who" in facts}
        assert rates[plain]["times_plain"] == 1
        speed = rates[ours]["tokens_per_s"] / rates[plain]["tokens_per_s"]
        assert rates[ours]["times_plain"] == pytest.approx(speed)
    assert all(0 < facts["share_of_peak"] < 1 for facts in said["train"] if "who" in facts)
    dry, *steps, _, _ = said["step"]
    assert dry["peak_GB"] > 0
    assert [step["who"] for step in steps] == ["step 0", "step 1"]
    assert "| hf, base |" in (tmp_path / "tables.md").read_text()


def test_a_part_without_time_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    found = ran(tmp_path, "sample:0,card:99", code=1)
    of_sample = [facts for facts in found if facts["part"] == "sample" and "who" in facts]
    assert {facts["failed"] for facts in of_sample} == {"no time was left for its first run"}
    assert any("matmul_tflops" in facts for facts in found)


def test_a_part_that_nobody_knows_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--tiny", "--parts", "sampel:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("--parts: 'sampel' is none of card, refresh, sample")
