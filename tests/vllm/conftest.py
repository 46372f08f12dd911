"""What tests with vLLM itself share: they run where it is installed, by `make test-vllm`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = find_spec("vllm") is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.filterwarnings("default"))  # of its own imports
            if missing:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make test-vllm"))
