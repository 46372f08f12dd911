"""Golden transcripts: what the shipped methods say and pay under a fixed script.

`python -m tests.support.golden` writes those of tests/golden anew, and the golden runs besides
(`tests.support.golden_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.config.plugins import load_plugin
from comas.tasks import demonstrations, facts, gate, mbpp, pick, repair, tictactoe
from comas.testing import golden_script, play_step
from comas.testing.scripted import Script, records
from comas.types import Episode, Question, State, Task
from tests.support import golden_runs
from tests.support.scripts import (
    SQUARE,
    player,
    programmer,
    red_script,
    repair_script,
    searcher,
    verifier,
)

GOLDEN: dict[str, dict[str, Any]] = {
    "azr": {"answers": 3},
    "comas": {"rounds": 2, "evaluations": 2},
    "comas_agree": {"evaluations": 3, "evaluate": False},
    "comas_peer": {
        "evaluations": 3,
        "evaluate": False,
        "score": "expected",
        "answer_first": True,
    },
    "comas_rules": {"evaluations": 2},
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
"""Methods that ask about the task `pick`, and the options of their transcripts."""
OFFERS = ((1, 2, 4, 5), (5, 2, 4, 1))
POSABLE = ((1, 2, 4, 6), (5, 2, 4, 8))
"""Numbers that nobody holds out, for methods that pose questions."""
STEPS = 3
"""Of the transcripts of methods that remember; others have one."""


@dataclass(frozen=True)
class Game:
    """A method's game of another task."""

    task: Task
    script: Script
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    form: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the task, of which two questions are loaded."""
    questions: Sequence[Question] = ()
    """Questions in the place of those."""


TOLD = [
    Question(id=f"told-{role}", prompt=prompt, answer=reply, meta={"role": role})
    for role, prompt, reply in (
        ("solution", "solve 1 2 4 5 -> 7", "1 + 2 = 3 + 4 = 7"),
        ("scoring", "score 1 2 4 5 -> 7 # 1 2 4", "<score> 3 </score>"),
    )
]
GAMES = {
    "agent0": Game(facts.task, searcher(), {"answers": 4}, {"form": "chains"}),
    "agent0_vl": Game(facts.task, verifier(), {"answers": 2}, {"hops": 3, "least": 3}),
    "comas_tests": Game(mbpp.task, programmer, {"programs": 4, "inputs": 3}, questions=[SQUARE]),
    "dr_zero": Game(facts.task, searcher(), {"answers": 4}, {"form": "documents"}),
    "mars": Game(tictactoe.task, player),
    "self_redteam": Game(gate.task, red_script),
    "sft": Game(demonstrations.task, golden_script, questions=TOLD),
    "spell": Game(facts.task, searcher(), {"answers": 4}, {"form": "pages"}),
    "spiral": Game(tictactoe.task, player),
    "ssp": Game(facts.task, searcher(), {"answers": 4}, {"form": "answers"}),
    "ssr": Game(repair.task, repair_script, {"tries": 3, "pool": 4}, {"form": "program"}),
}
"""Methods that have another task."""


def golden(name: str) -> str:
    """The transcript of a method under a script, as JSON."""
    method = load_plugin("method", name)
    game = GAMES.get(name)
    if game is None:
        first, second = POSABLE if method.memory.draw else OFFERS
        questions = [pick.make_question(first, 7, "three"), pick.make_question(second, 11, "three")]
        game = Game(pick.task, golden_script, GOLDEN[name], questions=questions)
    episodes: list[Episode] = []
    state: State | None = None
    for step in range(STEPS if method.remembers else 1):
        played, _, state = play_step(
            method,
            game.task,
            game.script,
            game.questions or game.task.load("train", limit=2, **game.form),
            samples=2,
            step=step,
            state=state,
            options=game.options,
        )
        episodes += played
    return "[" + ",\n".join(records(episodes)) + "]\n"


if __name__ == "__main__":
    for method_name in (*GOLDEN, *GAMES):
        transcript = Path(__file__).parents[1] / "golden" / f"{method_name}.json"
        transcript.write_text(golden(method_name), encoding="utf-8")
    golden_runs.write()
