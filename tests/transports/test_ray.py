"""Hosts as actors of Ray: what holds of every transport, and what Ray would do by itself. `make
test-ray` runs this.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.hosts.remote import RemoteHost
from comas.storage.run import Run
from comas.testing import check_host
from comas.types import HostLost, UserMistake
from tests.hosts.test_elsewhere import trained
from tests.support.runs import essence
from tests.transports.test_lines import DEADLINE, ask, call_of, dialled, gone, shipment

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
from comas.transports import ray as over_ray  # noqa: E402 - only where there is Ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def far() -> Iterator[RemoteHost]:
    host = dialled(over_ray, shipment())
    host.ready()
    yield host
    host.close()


def test_the_contract_of_hosts(far: RemoteHost) -> None:
    asyncio.run(asyncio.wait_for(check_host(far, "a0"), DEADLINE))


def test_texts_are_those_of_the_host(far: RemoteHost) -> None:
    async def many() -> list[str]:
        return await asyncio.gather(*(ask(far, f"q{i}", f"t{i}") for i in range(200)))

    assert asyncio.run(many()) == [f"a0 says q{i} 3" for i in range(200)]
    assert asyncio.run(ask(far, "long")) == "word " * 100_000


def test_errors_travel(far: RemoteHost) -> None:
    with pytest.raises(UserMistake) as mistaken:
        asyncio.run(ask(far, "mistake"))
    assert str(mistaken.value) == "a mistake of the user's"


def test_an_actor_that_dies_is_told(far: RemoteHost) -> None:
    with pytest.raises(HostLost, match=r"host far \(ray actor \w+\) is lost: .*Actor"):
        asyncio.run(ask(far, "die"))
    with pytest.raises(HostLost):
        asyncio.run(ask(far, "anybody?"))


def test_what_the_cluster_has_not_is_told_at_once() -> None:
    began = time.monotonic()
    call = call_of(shipment())
    for changes, line in (
        ({"device": "cuda"}, "asks for 1 GPU, and the cluster has 0 in all"),
        ({"threads": 1000}, "asks for 1000 CPU, and the cluster has"),
    ):
        asked = type(call)(**{**call.__dict__, **changes})
        with pytest.raises(UserMistake, match=line):
            over_ray.start(asked, print, print)
    assert time.monotonic() - began < DEADLINE
    ray.shutdown()


def test_an_address_where_nobody_is() -> None:
    ray.shutdown()
    with pytest.raises(UserMistake, match=r"the cluster at 127\.0\.0\.1:9 cannot be had"):
        over_ray.start(call_of(shipment(), address="127.0.0.1:9"), print, print)


def test_a_cluster_that_is_started_here_wants_a_token(
    far: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["RAY_AUTH_MODE"] == "token"
    far.close()
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UserMistake, match="would obey anybody"):
        over_ray.start(call_of(shipment()), print, print)


def test_keys_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    ray.shutdown()
    monkeypatch.setenv("JUDGE_API_KEY", "hidden")
    host = dialled(over_ray, shipment())
    host.ready()
    seen = asyncio.run(ask(host, "environment")).split()
    host.close()
    assert "PATH" in seen
    assert "JUDGE_API_KEY" not in seen
    assert os.environ["JUDGE_API_KEY"] == "hidden"


@pytest.mark.parametrize("learner", ["full", "adapters"])
def test_the_same_bits_here_and_on_ray(learner: str, untaught: Path, tmp_path: Path) -> None:
    here = trained(tmp_path / "here", untaught, host_learner=learner)
    there = trained(tmp_path / "there", untaught, "ray", host_learner=learner)
    assert essence(there) == essence(here)


def test_a_run_goes_on_at_another_place(untaught: Path, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", untaught, steps=2)
    trained(tmp_path / "parts", untaught, "ray", steps=1)
    comas.resume(
        tmp_path / "parts",
        steps=2,
        hosts__left__where="process",
        hosts__right__where="here",
    )
    assert essence(Run.open(tmp_path / "parts")) == essence(whole)


NEAR = """
import os, time
from tests.transports.test_ray import dialled, over_ray, shipment, ask, asyncio
host = dialled(over_ray, shipment())
host.ready()
import ray
print(host._line._actor.__ray_ready__ and ray.get(host._line._actor.__ray_call__.remote(lambda a: os.getpid())), flush=True)
time.sleep(600)
"""


def test_no_actor_is_left_behind() -> None:
    root = Path(__file__).parents[2]
    near = subprocess.Popen(
        [sys.executable, "-c", NEAR], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert near.stdout is not None
    pid = int(near.stdout.readline())
    near.send_signal(signal.SIGKILL)
    near.communicate(timeout=DEADLINE)
    assert gone(pid)
