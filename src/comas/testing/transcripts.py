"""Golden transcripts: what the shipped methods say and pay under a fixed script.

Leaves out: the recorded transcripts (tests/golden).
"""

from __future__ import annotations

from comas.config.plugins import load_plugin
from comas.tasks import pick
from comas.testing.scripted import cut, play_step, records
from comas.types import Episode, Reply, State

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

SCORES = ["<score> 3 </score>", "<score> 1 </score>", "2", "<score> 2 </score>"]
PUZZLES = ["1 2 4 6 -> 7", "2 4 5 8 -> 11", "9 1 2 4 -> 7", "what ?"]
"""Of number sets that nobody holds out."""
CHECKS = ["1 in + 2 in = 3 + 4 in = 7 right", "2 in + 4 in = 6 wrong"]
SOLUTIONS: list[str | Reply] = [
    "1 + 2 = 3 + 4 = 7",
    "2 + 4 = 6 + 5 = 11",
    "<score> 3 </score>",
    cut("1 + 2 = 3 +"),
]
SAYINGS: dict[str, list[str | Reply]] = {
    "solution": SOLUTIONS,
    "revision": SOLUTIONS,
    "hint": SOLUTIONS,
    "sabotage": SOLUTIONS,
    "evaluation": [*CHECKS],
    "proxy": [*CHECKS],
    "propose": [*PUZZLES],
    "evolve": [*PUZZLES],
    "judging": [f"{CHECKS[place % 2]} {score}" for place, score in enumerate(SCORES)],
    "assess": ["1 in yes", "2 out no", "yes", "perhaps"],
}
"""Role -> what is said in it; in others a score."""


def golden_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Replies for the golden transcripts: right, wrong, cut and unreadable ones, drawn by the
    seed.
    """
    sayings = SAYINGS.get(role, SCORES)
    return sayings[seed % len(sayings)]


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
