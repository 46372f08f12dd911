"""How long a run takes is counted from what it asks for: by whom it is measured, and what its
method remembers.
"""

from __future__ import annotations

import pytest

from comas.config.resolve import resolve
from comas.config.schema import read
from comas.forecast import hours
from comas.forecast.overview import plan


def test_a_step_of_a_method_that_remembers_can_be_timed() -> None:
    found = plan(read(None, ["method=comas_planted", "threads=1"]))
    assert found.hours is not None, found.untimed


@pytest.mark.parametrize(
    ("roles", "count"),
    [
        ({"a": ["solution"], "b": ["evaluation", "scoring"], "c": None}, 2),
        ({"a": ["evaluation"], "b": ["scoring", "evaluation"]}, 2),
    ],
)
def test_agents_count_whose_accuracy_is_measured(
    roles: dict[str, list[str] | None], count: int
) -> None:
    agents = {name: {} if own is None else {"roles": own} for name, own in roles.items()}
    resolved = resolve(read(None, {"agents": agents}))
    assert hours._different(resolved, {"home": None}) == {"home": count}
