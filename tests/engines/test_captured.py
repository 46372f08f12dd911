"""A token step as a graph says what its calls say. The graph of these tests is a list of operators on
the tensors that they had: what changes from token to token must lie in a tensor, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from comas.engines.hf import lanes
from comas.engines.hf.captured import Run
from comas.learners.lora.population import Population
from tests.support.adapters import population
from tests.support.engines import engine_of
from tests.support.models import llama, requests
from tests.support.sampling import same

pytestmark = pytest.mark.usefixtures("one_thread")


class Graph(TorchDispatchMode):
    """Operators in their order, with what they got and what they made."""

    made = 0
    replayed = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        Graph.replayed += 1
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def recorded(run: Run) -> Run:
    Graph.made += 1
    with Graph() as graph:
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "made", 0)
    monkeypatch.setattr(Graph, "replayed", 0)


def models_of(kind: str) -> Any:
    if kind == "whole":
        return {"p0": llama(1).double()}
    specs = {f"p{i}": spec for i, spec in enumerate(population().specs.values())}
    made = population(specs)
    made.joins = kind == "adapters that read together"
    return made


def engine(models: Any, captured: bool, capture: Any = recorded, max_rows: int = 8) -> Any:
    how = {"captured": captured, "capture": capture, "packed": False}
    return engine_of(models, [3], 0, 128, max_rows, **how)


def asked(models: Any, tokens: int = 30) -> Sequence[Any]:
    policies = len(models.policies) if isinstance(models, Population) else 1
    return requests(13, policies, tokens)


@pytest.mark.parametrize("kind", ["whole", "adapters", "adapters that read together"])
def test_a_graph_says_what_its_calls_say(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "AHEAD", 9)  # buffers grow while it is used
    models = models_of(kind)
    wanted = engine(models, captured=False).generate(asked(models))
    assert not Graph.made
    got = engine(models, captured=True).generate(asked(models))
    same(got, wanted)
    assert Graph.made > 1  # rows come and go
    assert Graph.replayed > 2 * Graph.made  # one replay of each is its trial


def test_a_graph_that_says_something_else_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    def stale(run: Run) -> Run:
        result = run() * 1.5
        return lambda: result

    models = models_of("whole")
    wanted = engine(models, captured=False).generate(asked(models))
    same(engine(models, True, stale).generate(asked(models)), wanted)
    (line,) = caplog.messages
    assert "not made as one graph: a graph's logits are 0.5 away" in line


def test_what_cannot_be_captured_runs_as_calls(caplog: pytest.LogCaptureFixture) -> None:
    def refused(run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    models = models_of("adapters")
    wanted = engine(models, captured=False).generate(asked(models))
    same(engine(models, True, refused).generate(asked(models)), wanted)
    (line,) = caplog.messages  # it is tried once
    assert "not permitted" in line


def test_too_little_memory_for_a_graph_is_not_hidden() -> None:
    def full(run: Run) -> Run:
        raise RuntimeError("CUDA out of memory")

    models = models_of("whole")
    with pytest.raises(RuntimeError, match="out of memory"):
        engine(models, True, full).generate(asked(models))


def test_sliding_windows_and_short_replies_have_no_graph() -> None:
    models = {"p0": llama(1, model_type="llama").double()}
    engine(models, captured=True).generate(asked(models, tokens=5))
    assert not Graph.made
    from transformers import MistralConfig, MistralForCausalLM

    shape = llama(1).config.to_dict()
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = MistralConfig(**{k: shape[k] for k in keys}, **heads, sliding_window=8)
    sliding = {"p0": MistralForCausalLM(config).double().eval()}
    engine(sliding, captured=True).generate(asked(sliding))
    assert not Graph.made
    assert np.isfinite(engine(sliding, True).generate(asked(sliding))[0].logprobs).all()
