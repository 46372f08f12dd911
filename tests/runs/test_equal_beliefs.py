"""A judge that believes the same of all work teaches nothing, however its beliefs are rounded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import comas
from comas.engines import stacked
from comas.seams import Weighing

SCALED = """\"\"\"CoMAS whose works are compared within their question.\"\"\"

from dataclasses import replace

from comas.methods.comas import method as comas
from comas.methods.comas import settle as settle_comas
from comas.objective.credit import grpo


def settle(episodes, task):
    settle_comas(episodes, task)
    for episode in episodes:
        for turn in episode.turns:
            turn.group = f"{episode.question.id} {turn.role}"


method = replace(comas, settle=settle, credit=grpo)
"""


def weights_at(run: Path, step: int) -> dict[str, np.ndarray]:
    """All weights and optimizer states of a checkpoint, by file and name."""
    checkpoint = run / "checkpoints" / f"step-{step}"
    return {
        f"{file.relative_to(checkpoint)} {name}": tensor
        for file in sorted(checkpoint.rglob("model*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.mark.parametrize("changes", [{}, {"method": "./scaled.py"}], ids=["reinforce_pp", "grpo"])
def test_a_judge_that_always_believes_the_same_moves_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    rounding = np.random.default_rng(0)

    def equal_but_for_rounding(
        weighings: Sequence[Weighing], _: object, *, apart: bool
    ) -> list[list[np.ndarray]]:
        """The shares .3 and .7 of the choices, as two batches of bfloat16 round them."""
        results: list[list[np.ndarray]] = []
        for weighing in weighings:
            logprobs = [np.zeros(len(choice), np.float32) for choice in weighing.choices]
            for of_choice, share in zip(logprobs, (0.3, 0.7), strict=True):
                of_choice[0] = math.log(share) + 1e-8 * rounding.standard_normal()
            results.append(logprobs)
        return results

    monkeypatch.setattr(stacked, "weigh_all", equal_but_for_rounding)
    monkeypatch.chdir(tmp_path)
    Path("scaled.py").write_text(SCALED)
    run = tmp_path / "run"
    comas.train(
        out=str(run),
        preset="p_true",
        steps=2,
        questions=4,
        samples=4,
        test_questions=0,
        eval_every=0,
        checkpoint_every=1,
        monitors=[],
        kl={},
        **changes,
    )
    start = weights_at(run, 1)
    end = weights_at(run, 2)
    assert start.keys() == end.keys()
    assert len(start) > 0
    for name in start:
        assert np.array_equal(start[name], end[name]), name
    for step in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        solutions = step["signal"]["solution"]
        assert solutions["flat"] == solutions["groups"] > 0
        assert all(policy["grad_norm"] == 0 for policy in step["policies"].values())
