"""The garbage collector rests while models are loaded, and is as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from comas.hosts import local
from comas.hosts.plan import HostPlan


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


@pytest.mark.parametrize("error", [None, RuntimeError("the file is cut")])
@pytest.mark.parametrize("before", [True, False])
def test_it_rests_while_a_host_is_built(
    before: bool, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def build(_: Any) -> Any:
        seen.append(gc.isenabled())
        if error:
            raise error

    monkeypatch.setattr(local, "_build", build)
    if not before:
        gc.disable()
    plan = HostPlan[Any](name="home", table=None, policies={})
    with suppress(RuntimeError):
        local.build(plan)
    assert seen == [False]
    assert gc.isenabled() is before
