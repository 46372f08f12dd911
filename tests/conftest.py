"""Models for tests: small, random, made from a config."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from comas.seed.teach import make_model, save
from comas.testing import tiny_model


def pytest_configure() -> None:
    """A shell that starts tests in the background has them ignore Ctrl-C, which some of them send to themselves and wait for."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a byte-level tokenizer."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in the shape of the seed models."""
    folder = tmp_path_factory.mktemp("models") / "untaught"
    save(make_model(5), folder)
    return folder
