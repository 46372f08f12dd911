"""On a GPU as on a CPU: what is sampled and weighed, gradients of learners, runs and their resumes.

Leaves out: speed (`benchmarks/gpu_minutes.py`), shapes that need no GPU
(`tests/engines/test_gpu_shapes.py`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import comas
from comas.hosts.local import make_local_host
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.seams import AdapterSpec, Weighing
from comas.storage.run import Run
from comas.types import TurnReward
from tests.support.adapters import EVEN, UNEVEN, distance, gradients, parts_of, population
from tests.support.engines import engine_of
from tests.support.learning import METHOD, rows, say
from tests.support.models import llama, requests
from tests.support.runs import essence

KINDS = ["whole", "adapters"]
TIE = 1e-4
"""Margin below which rounding may decide a draw in float32."""


def weights_on(device: str, kind: str) -> Any:
    if kind == "adapters":
        specs = {f"p{i}": AdapterSpec(rank, 2.0 * rank) for i, rank in enumerate((4, 12, 3))}
        return population(specs, torch.float32, model=llama(7).to(device))
    return {f"p{i}": llama(i).to(device) for i in range(3)}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.0}])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_a_cpu(kind: str, sampling: dict[str, float]) -> None:
    asked = requests(24, **sampling)
    there, here = (
        engine_of(weights_on(device, kind), [3], 0, 128, max_rows=8, engine="hf").generate(asked)
        for device in ("cuda", "cpu")
    )
    for a, b in zip(there, here, strict=True):
        assert abs(a.margin - b.margin) < 1e-3 or min(a.margin, b.margin) < TIE
        if min(a.margin, b.margin) > TIE:
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_words_are_those_of_a_cpu(kind: str) -> None:
    weighings = [
        Weighing(r.policy, r.prompt_ids, [np.array([5]), np.array([6, 7])]) for r in requests(9)
    ]

    async def weighed(device: str) -> Any:
        engine = engine_of(weights_on(device, kind), [3], 0, 128, engine="hf")
        return await asyncio.gather(*map(engine.weigh, weighings))

    for a, b in zip(asyncio.run(weighed("cuda")), asyncio.run(weighed("cpu")), strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("recipe", [{}, {"tokens_per_pass": 40}, {"checkpointing": True}])
@pytest.mark.parametrize("counts", [UNEVEN, EVEN])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float32, 1e-3), (torch.bfloat16, 0.5)]
)
def test_gradients_of_adapters_are_those_of_a_cpu_in_float64(
    counts: dict[str, int], recipe: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    parts = parts_of(counts)
    wanted = gradients(population(), parts, **recipe)  # but for old log-probs, kept in float32
    there = population(model=llama(7).to("cuda"), dtype=dtype)
    got = gradients(there, parts, **recipe)
    for policy in parts:
        assert distance(got[policy], wanted[policy]) < tolerance


def test_a_step_of_a_whole_model_is_that_of_a_cpu() -> None:
    stepped = {}
    for device in ("cuda", "cpu"):
        model = llama(3).double().to(device)
        learner = FullLearner({"a": model}, Recipe(1e-2), METHOD, 0)
        learner.step({"a": rows()})
        stepped[device] = torch.cat([w.detach().cpu().flatten() for w in model.parameters()])
    torch.testing.assert_close(stepped["cuda"], stepped["cpu"], atol=1e-4, rtol=0)


def test_what_was_sampled_is_what_is_learnt() -> None:
    host = make_local_host(
        "home", {"a": "tiny", "b": "tiny"}, method=METHOD, recipe=Recipe(1e-3), device="cuda"
    )

    async def gap() -> float:
        await asyncio.gather(*(say(host, f"t{i}") for i in range(8)))
        payoffs = {"a": [TurnReward(f"t{i}", float(i % 2), "g") for i in range(8)]}
        return (await host.learn(payoffs, 1.0)).policies["a"]["gap_max"]

    assert asyncio.run(gap()) < 1e-3


@pytest.mark.parametrize("learner", ["full", "adapters"])
def test_a_run_and_one_that_was_stopped(tmp_path: Path, learner: str) -> None:
    keys: dict[str, Any] = {
        "device": "cuda",
        "learner": learner,
        "questions": 8,
        "test_questions": 8,
        "eval_every": 0,
        "checkpoint_every": 1,
        "seed": 7,
    }
    whole = comas.train(steps=3, out=str(tmp_path / "whole"), **keys)
    comas.train(steps=2, out=str(tmp_path / "cut"), **keys)
    comas.resume(str(tmp_path / "cut"), steps=3)
    assert whole.steps == 3
    assert essence(Run(tmp_path / "cut")) == essence(Run(tmp_path / "whole"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_of_token_steps_says_what_its_calls_say(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = requests(24)
    weights = weights_on("cuda", kind)
    calls, graphs = (
        engine_of(weights, [3], 0, 128, max_rows=8, captured=captured).generate(asked)
        for captured in (False, True)
    )
    assert not caplog.messages  # of a graph that failed
    for a, b in zip(calls, graphs, strict=True):
        if min(a.margin, b.margin) > TIE:
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
