"""Models for tests: small, random, made from a config; and the walls around programs."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from comas import machine, sandbox
from comas.sandbox import jail
from comas.sandbox.jail import Broken, probe
from comas.testing import tiny_model
from tests.support.processes import running
from tools.tiny.teach import make_model, save

pytest_plugins = [
    "tests.support.adapters",
    "tests.support.endpoint",
    "tests.support.faults",
    "tests.support.payments",
    "tests.support.run_folders",
]
"""Where fixtures are."""

# how long an example takes is the machine's affair
settings.register_profile("comas", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("comas")


THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
"""Threads of a worker, as the environment says when tests begin."""


def pytest_configure() -> None:
    """A shell that starts tests in the background has them ignore Ctrl-C, which some of them send
    to themselves and wait for. Workers side by side, and what they start, compute with one thread
    each: threads that outnumber the cores wait for each other.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch.set_num_threads(THREADS)


def pytest_runtest_teardown() -> None:
    """A test that asks for two threads leaves none to the next."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(THREADS)


@pytest.fixture(scope="session", autouse=True)
def one_thread_each() -> Iterator[None]:
    """Runs that name no number of threads take one in a worker, too: the first of them would leave
    the worker with a thread per core for all tests behind it, which wait for each other.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "PYTEST_XDIST_WORKER" in os.environ:
            patch.setattr(machine, "usable_cpus", lambda: 1)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a byte-level tokenizer."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in the shape of the tiny models."""
    folder = tmp_path_factory.mktemp("models") / "untaught"
    save(make_model(5), folder)
    return folder


KINDS = ["unshare", "bwrap"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each isolation of programs that this machine has."""
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    try:
        probe(request.param)
    except Broken as error:
        pytest.skip(f"{request.param} does not work here: {error}")
    monkeypatch.setattr(sandbox, "isolation", lambda: request.param)
    return request.param


@pytest.fixture
def unharmed() -> Iterator[None]:
    """Nothing is left behind: no process of a sandbox, no file."""
    yield
    mine = f'"owner": {os.getpid()}([^0-9]|$)'
    # which stays, for the next
    warm = {jail.FORKS.process.pid} if jail.FORKS.process else set()
    until = time.monotonic() + 1.0  # what was killed may take a moment to be gone
    while left := set(running(mine)) - warm:
        assert time.monotonic() < until, left
        time.sleep(0.01)
    assert not (Path.home() / "comas-was-here").exists()
