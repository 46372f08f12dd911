"""The kind of host that `tests.support.faults` plays with."""

from typing import Any

from tests.support.faults import Chained


def build(plan: Any) -> Chained:
    return Chained()
