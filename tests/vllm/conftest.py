"""What tests with vLLM itself share: they run where it is installed, by `make test-vllm`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from comas.engines.vllm import VLLMEngine
from comas.learners.lora.population import Population
from tests.support.adapted import ROOM, SPECS, own, shake
from tests.support.models import llama

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = find_spec("vllm") is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.filterwarnings("default"))  # of its own imports
            if missing:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make test-vllm"))


@pytest.fixture(scope="module")
def population() -> Population:
    """Two policies; one head of keys and values."""
    made = Population(llama(1, tie_word_embeddings=False, **ROOM), SPECS)
    for seed, policy in enumerate(SPECS):
        shake(own(made, policy), seed)
    return made


@pytest.fixture
def engine(shared: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> VLLMEngine:
    """The same, with log-probs compared at each publish."""
    monkeypatch.setattr(shared.weights, "prove_every", 1)
    return shared
