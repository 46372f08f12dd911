"""A base that is dealt to two processes of vLLM's, as to two GPUs: what they serve, a fault in one of
them, and that none is left behind.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from typing import Any

import pytest

from comas.engines import vllm
from comas.engines.vllm.library import Library
from comas.learners.lora.population import Population
from comas.seams import Adapter, StaleWeights
from tests.support.adapted import PLAN, gap, own, shake


def test_two_workers_serve_what_was_learnt_and_a_fault_in_one_is_found(
    population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = dict.fromkeys(population.policies, Adapter(population))
    engine = vllm.build(replace(PLAN, gpus=2), policies)
    try:
        assert len(engine.vllm.call(rank_of)) == 2
        for version in (1, 2):
            shake(own(population, "a"), version)
            engine.publish("a", Adapter(population), version)
            assert gap(engine, population, "a") < 1e-4
            assert gap(engine, population, "b") < 1e-4
        add = Library.add

        def spoilt(self: Library, adapter: Any) -> None:
            add(self, adapter)
            self.call(spoil, adapter.number)

        monkeypatch.setattr(Library, "add", spoilt)
        shake(own(population, "a"), 3)
        with pytest.raises(StaleWeights, match="not the learner's"):
            engine.publish("a", Adapter(population), 3)
    finally:
        engine.close()
    assert not multiprocessing.active_children()


def rank_of(worker: Any) -> int:
    return worker.rank


def spoil(worker: Any, number: int) -> None:
    """Change one number of an adapter, in the second worker."""
    if worker.rank == 1:
        adapters = worker.model_runner.lora_manager._adapter_manager
        slot = adapters.lora_index_to_id.index(number)
        module = next(iter(adapters.modules.values()))
        module.lora_a_stacked[0][slot, 0, 0, 0] += 1.0
