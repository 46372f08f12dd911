"""Golden transcripts: what the shipped methods say and pay under a fixed script.

`python -m tests.support.golden` writes those of tests/golden anew.
"""

from __future__ import annotations

from pathlib import Path

from comas.config.plugins import load_plugin
from comas.tasks import pick
from comas.testing import golden_script, play_step
from comas.testing.scripted import records
from comas.types import Episode, State

GOLDEN = {
    "azr": {"answers": 3},
    "comas": {"rounds": 2, "evaluations": 2},
    "comas_peer": {"evaluations": 3, "score": "expected", "blind": True},
    "comas_votes": {"votes": 5},
    "eva": {"votes": 3},
    "evol_rl": {"votes": 5},
    "knowrl": {"votes": 3},
    "mae": {"answers": 3},
    "maporl": {"revisions": 2},
    "optima": {},
    "r_zero": {"answers": 4, "proposing": 1, "solving": 1, "least": 1, "high": 0.9},
    "rise": {"votes": 2},
    "rlccf": {"votes": 3},
    "rlvr": {"votes": 3},
    "sec": {"votes": 3},
    "spc": {"spoilt": 2},
    "spo": {"votes": 3},
    "sppo": {"votes": 3, "readings": 2},
    "srlm": {"votes": 3},
    "star": {"votes": 2},
    "ttrl": {"votes": 5},
}
"""Methods that have a golden transcript, and its options."""
OFFERS = ((1, 2, 4, 5), (5, 2, 4, 1))
POSABLE = ((1, 2, 4, 6), (5, 2, 4, 8))
"""Numbers that nobody holds out, for methods that pose questions."""
STEPS = 3
"""Of the transcripts of methods that remember; others have one."""


def golden(name: str) -> str:
    """The transcript of a method under `golden_script`, as JSON."""
    method = load_plugin("method", name)
    first, second = POSABLE if method.draw else OFFERS
    questions = [pick.make_question(first, 7, "three"), pick.make_question(second, 11, "three")]
    episodes: list[Episode] = []
    state: State | None = None
    for step in range(STEPS if method.remembers else 1):
        played, _, state = play_step(
            method,
            pick.task,
            golden_script,
            questions,
            samples=2,
            step=step,
            state=state,
            options=GOLDEN[name],
        )
        episodes += played
    return "[" + ",\n".join(records(episodes)) + "]\n"


if __name__ == "__main__":
    for method_name in GOLDEN:
        transcript = Path(__file__).parents[1] / "golden" / f"{method_name}.json"
        transcript.write_text(golden(method_name), encoding="utf-8")
