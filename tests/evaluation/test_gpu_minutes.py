"""The benchmark of a GPU's minutes runs on a CPU with a tiny model, and a part that hangs, or that
ends its process, leaves the others alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu_minutes.py"


def started(out: Path, parts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(out), "--tiny", "--parts", parts]
    return subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)


def test_all_parts_run_on_a_cpu_and_say_what_they_are_for(tmp_path: Path) -> None:
    parts = "card:99,correct:99,sample:99,train:99,step:300,whole:99,waits:9,tests:9"
    done = started(tmp_path, parts)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, list[dict[str, Any]]] = {}
    for line in (tmp_path / "results.jsonl").read_text().splitlines():
        facts = json.loads(line)
        assert "failed" not in facts, facts
        said.setdefault(facts["part"], []).append(facts)
    assert list(said) == ["command", *(part.partition(":")[0] for part in parts.split(","))]
    assert parts in said.pop("command")[0]["command"]
    assert all(facts[-1]["took"] >= 0 for facts in said.values())
    assert said["card"][1]["matmul_tflops"] > 0
    *distances, _ = said["correct"]
    assert [facts["who"] for facts in distances] == [
        "engine",
        "learner, packs",
        "learner, rows apart",
        "transformers",
    ]
    assert all(0 < facts["gap_mean"] <= facts["gap_max"] < 1e-5 for facts in distances)
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
    assert said["whole"][1]["gap_mean"] < 1e-5
    assert "| hf, base |" in (tmp_path / "tables.md").read_text()


def test_a_part_that_nobody_knows_is_one_line(tmp_path: Path) -> None:
    done = started(tmp_path, "card:9,sampel:9")
    assert done.returncode == 1
    assert done.stderr.startswith("--parts: 'sampel' is none of card, correct, sample")


PROCESS = """
import json, sys, time
parts = sys.argv[sys.argv.index("--parts") + 1].split(",")
for part in parts:
    name = part.partition(":")[0]
    print(json.dumps({"begins": name}), flush=True)
    print("a library's own words", flush=True)
    if name == "hangs":
        time.sleep(600)
    if name == "dies":
        sys.exit(3)
    print(json.dumps({"part": name, "found": 1}), flush=True)
    print(json.dumps({"ends": name}), flush=True)
"""


@pytest.mark.parametrize(
    ("bad", "why"),
    [("hangs", "it was late, and was ended"), ("dies", "its process ended with 3"), ("", "")],
)
def test_a_part_that_goes_wrong_is_told_and_those_behind_it_are_left(
    bad: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_minutes

    monkeypatch.setattr(gpu_minutes, "GRACE", 3.0)
    process = tmp_path / "process.py"
    process.write_text(PROCESS)
    names = ["one", *([bad] if bad else []), "two"]
    parts = [(name, 0.0) for name in names]
    found: list[dict[str, Any]] = []
    runs = 0
    while parts:
        over = gpu_minutes.supervise(
            parts,
            [sys.executable, str(process)],
            time.time() + 60,
            lambda **facts: found.append(facts),
        )
        parts = parts[over:]
        runs += 1
    wrong = [{"part": bad, "failed": why}] if bad else []
    assert found == [{"part": "one", "found": 1}, *wrong, {"part": "two", "found": 1}]
    assert runs == (2 if bad else 1)
