"""Sampling through torch.compile: the same texts from few graphs, with the weights of the moment,
and without a compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from comas.learners.lora.population import Population, Spec
from comas.models.loading import load_models
from comas.types import UserMistake
from tests.support.engines import engine_of, publish
from tests.support.families import family_model
from tests.support.models import llama
from tests.support.sampling import asked, same

GRAPHS = 4
"""For all batches of a test; one graph for each size of batch would be more than ten."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and guarded as ever, then run as it is: what follows needs a compiler and half a
    minute.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def weights(path: Path, kind: str) -> Any:
    if kind == "models":
        return {
            f"p{i}": (
                load_models({"p": str(family_model(path / str(i), "qwen2.5", i))})[0]["p"].double()
            )
            for i in range(3)
        }
    specs = {"p0": Spec(4, 8.0), "p1": Spec(2, 9.0, ("q_proj", "up_proj")), "p2": Spec(3, 8.0)}
    made = Population(
        load_models({"p": str(family_model(path, "qwen2.5"))})[0]["p"].double(), specs
    )
    shake(made)
    return made


def shake(found: Population | Mapping[str, Any]) -> None:
    """Other weights in the same place, as a learner leaves them."""
    tensors = (
        [found.flat_PN]
        if isinstance(found, Population)
        else [p for m in found.values() for p in m.parameters()]
    )
    with torch.no_grad():
        for tensor in tensors:
            tensor += 0.05 * torch.randn(
                tensor.shape, generator=torch.Generator().manual_seed(1), dtype=tensor.dtype
            )


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", ["population", "models"])
def test_compiled_it_says_the_same_from_few_graphs_and_follows_the_weights(
    kind: str, tmp_path: Path
) -> None:
    found = weights(tmp_path, kind)
    requests = asked(3, 18)
    plain = engine_of(found, [15], 0, 512, 7)
    engine = engine_of(found, [15], 0, 512, 7, compiled=True)
    first = [done.token_ids.tolist() for done in engine.generate(requests)]
    for count in (11, 1):
        same(plain.generate(requests[:count]), engine.generate(requests[:count]))
    shake(found)
    publish(engine, found)
    second = engine.generate(requests)
    same(plain.generate(requests), second)
    assert [done.token_ids.tolist() for done in second] != first
    assert 0 < counters["stats"]["unique_graphs"] <= GRAPHS
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_a_compiler_as_well(dtype: torch.dtype, tmp_path: Path) -> None:
    model = load_models({"p": str(family_model(tmp_path, "qwen2.5"))})[0]["p"].to(dtype)
    found = Population(model, {p: Spec(4) for p in ("p0", "p1", "p2")})
    shake(found)
    plain = engine_of(found, [15], 0, 512, 7)
    engine = engine_of(found, [15], 0, 512, 7, compiled=True)
    near = 1e-4 if dtype == torch.float32 else 0.05
    for a, b in zip(plain.generate(asked(3, 18)), engine.generate(asked(3, 18)), strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < near
    assert not engine.failures


def test_without_a_compiler_it_goes_on_as_it_is_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, str(tmp_path / "none")))
    found = weights(tmp_path, "population")
    requests = asked(3, 6)
    wanted = engine_of(found, [15], 0, 512).generate(requests)
    engine = engine_of(found, [15], 0, 512, compiled=True)
    with caplog.at_level(logging.WARNING, "comas"):
        for _ in range(2):
            same(wanted, engine.generate(requests))
    told = [r.getMessage() for r in caplog.records if r.name == "comas"]
    assert len(told) == 1
    assert "hosts.<name>.compile" in told[0]
    assert "compiler" in told[0]


def test_a_stack_of_small_models_is_not_compiled() -> None:
    with pytest.raises(UserMistake, match=r"compile: small Llamas.*leave it out"):
        engine_of({"p": llama(0)}, [3], 0, 128, compiled=True)
