"""A scripted host and discussions at it: games without a model.

Leaves out: what a method has to hold to (`testing.methods`).
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comas.config.plan import Plan
from comas.game import memory
from comas.game.agent import TeamMember
from comas.game.play import GameContext, play_all, settle_all
from comas.game.weighing import said_of
from comas.storage.records import episode_record
from comas.types import (
    Account,
    Ask,
    Calls,
    Episode,
    Fit,
    Learned,
    Method,
    Question,
    Reply,
    Sampling,
    State,
    Task,
    TurnReward,
    UserMistake,
)

Said = str | Reply
Script = Callable[[str, str, str, int], Said]
"""`script(agent's policy, role, prompt, seed)` -> what it says.

`check_method` needs one without a memory.
"""
Beliefs = Callable[[str, str, str, Sequence[str]], Sequence[float]]
"""`beliefs(agent's policy, role, prompt, choices)` -> the probability of each choice, above 0."""
Table = Mapping[str, Said | Sequence[Said]]
"""Role, or `policy/role`, -> its replies; of a list one per ask, the last one from then on."""


def script_of(table: Table) -> Script:
    """A script that reads from a table; a role that is not in it is an error."""
    times_asked: dict[str, int] = {}

    def script(policy: str, role: str, prompt: str, seed: int) -> Said:
        key = f"{policy}/{role}" if f"{policy}/{role}" in table else role
        replies = table[key]
        if isinstance(replies, str | Reply):
            return replies
        times_asked[key] = times_asked.get(key, -1) + 1
        return replies[min(times_asked[key], len(replies) - 1)]

    return script


class Scripted:
    """A host whose policies say what a function says; records every ask.

    Pays no attention to learning but its rules.
    """

    learns = True
    meter = None

    def __init__(
        self,
        script: Script | Table,
        name: str = "script",
        room: int | None = None,
        beliefs: Beliefs | None = None,
    ) -> None:
        """`beliefs` says what `weigh` gives; without it each choice of a prompt is as probable as
        the others.
        """
        self.script = script if callable(script) else script_of(script)
        self.beliefs = beliefs
        self.name = name
        self.room = room
        self.asked: list[tuple[str, str, str, str, int]] = []
        """(turn, policy, role, prompt, seed) in the order of arrival."""
        self.buffer: dict[str, set[str]] = {}
        self.versions: dict[str, int] = {}

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Whether the prompt has at most `room` characters."""
        length = len(messages[-1]["content"])
        return Fit(self.room is None or length <= self.room)

    async def ask(self, ask: Ask) -> Reply:
        """The script's reply; its length is counted in words."""
        prompt = await self._hear(ask)
        reply = self.script(ask.policy, ask.role, prompt, ask.seed)
        if isinstance(reply, Reply):
            return reply
        return self._reply(ask, reply, len(reply.split()) + 1, -1.0)

    async def _hear(self, ask: Ask, record: bool = True) -> str:
        """Let others have their turn, as a host that works does, and keep this one if wanted;
        return the prompt.
        """
        prompt = ask.messages[-1]["content"]
        if record:
            self.asked.append((ask.turn, ask.policy, ask.role, prompt, ask.seed))
        await asyncio.sleep(0)
        if ask.keep:
            self.buffer.setdefault(ask.policy, set()).add(ask.turn)
        return prompt

    def _reply(self, ask: Ask, text: str, tokens: int, logprob: float) -> Reply:
        version = self.versions.get(ask.policy, 0)
        length = len(ask.messages[-1]["content"].split())
        return Reply(text, True, version, length, tokens, logprob, seconds=0.0)

    def calls(self, policy: str) -> Calls | None:
        """None: calls of tools are in plain tags."""
        return None

    async def tell(self, ask: Ask, text: str) -> Reply:
        """The words that were given, counted as those of the script."""
        await self._hear(ask, record=False)
        return self._reply(ask, text, len(text.split()) + 1, 0.0)

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """The probabilities that `beliefs` gives."""
        prompt = await self._hear(ask)
        probabilities: Sequence[float] = [1.0 / len(choices)] * len(choices)
        if self.beliefs is not None:
            probabilities = self.beliefs(ask.policy, ask.role, prompt, choices)
        if len(probabilities) != len(choices) or min(probabilities) <= 0:
            raise UserMistake(
                f"turn {ask.turn}: `beliefs` gave {list(probabilities)} for the choices"
                f" {list(choices)}: give each a probability above 0"
            )
        weights = tuple(math.log(probability) for probability in probabilities)
        number, margin = said_of(weights, ask.sampling.temperature, ask.seed)
        word = choices[number]
        reply = self._reply(ask, word, len(word.split()), weights[number])
        return replace(reply, margin=margin, weights=weights)

    async def learn(
        self, rewards: Mapping[str, Sequence[TurnReward]], lr_scale: float = 1.0
    ) -> Learned:
        """Checks the join, counts a version and forgets the buffer."""
        for policy, of_policy in rewards.items():
            for each in of_policy:
                if each.turn not in self.buffer.get(policy, set()):
                    raise KeyError(
                        f"host {self.name}, policy {policy}: a reward for turn {each.turn},"
                        " which was never said here"
                    )
        self.buffer.clear()
        learning = {policy: of_policy for policy, of_policy in rewards.items() if of_policy}
        for policy in learning:
            self.versions[policy] = self.versions.get(policy, 0) + 1
        learnt = [each.turn for of_policy in learning.values() for each in of_policy]
        no_figures = dict.fromkeys(learnt, (0.0, 0.0))
        stats = {policy: {"rows": float(len(r)), "updates": 1.0} for policy, r in learning.items()}
        return Learned(stats, no_figures)

    async def save(self, path: Path) -> None:
        """The versions; there is nothing else."""
        (path / "scripted.json").write_text(json.dumps(self.versions))

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        self.versions = json.loads((path / "scripted.json").read_text())

    def clock(self) -> Mapping[str, float]:
        """It takes no time."""
        return {"sampling": 0.0, "learning": 0.0}

    def facts(self) -> Mapping[str, Any]:
        """It runs on no device."""
        return {}

    def account(self) -> Account:
        """Nothing is billed."""
        return {}

    def close(self) -> None:
        """Nothing to close."""


def stand_ins(plan: Plan) -> dict[str, Scripted]:
    """Hosts that say something else each time, in the place of those of a config whose models are
    somebody else's.
    """
    numbers = itertools.count(1)
    return {
        name: Scripted(lambda *_: f"reply {next(numbers)}", name)
        for name, table in plan.config.hosts.items()
        if not table.here and plan.at(name)
    }


def repeating(reply: str | Reply) -> Script:
    """A script in which everybody always says the same."""

    def script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
        return reply

    return script


def cut(text: str) -> Reply:
    """A reply that ran out of tokens."""
    return Reply(text, False, 0, 1, len(text.split()), -1.0, 0.0)


def scripted_team(
    script: Script | Table,
    agents: int = 4,
    room: int | None = None,
    beliefs: Beliefs | None = None,
) -> tuple[list[TeamMember], Scripted]:
    """Members a0.. at one scripted host."""
    host = Scripted(script, room=room, beliefs=beliefs)
    return [TeamMember(f"a{i}", host, f"a{i}") for i in range(agents)], host


def scripted_context(
    method: Method,
    task: Task,
    script: Script | Table,
    *,
    agents: int = 4,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    room: int | None = None,
    beliefs: Beliefs | None = None,
) -> tuple[GameContext, Scripted]:
    """A scripted team at its own game."""
    members, host = scripted_team(script, agents, room, beliefs)
    return GameContext(method, task, members, seed, options or {}, keep=True), host


def play_step(
    method: Method,
    task: Task,
    script: Script | Table,
    questions: Sequence[Question],
    *,
    samples: int = 1,
    step: int = 0,
    state: State | None = None,
    **setting: Any,
) -> tuple[list[Episode], State, State]:
    """Play and settle one scripted step as a run does: questions drawn by the method where it
    does; its record before the step, and after it. `state` is what a step before has left.

    A record that was changed on the way, rather than by what `update` returns, is an error.
    """
    context, _ = scripted_context(method, task, script, **setting)
    before = memory.first_state(context, questions) if state is None else state
    context = replace(context, state=copy.deepcopy(before))
    if method.memory.draw is not None:
        questions = memory.draw(context, questions, len(questions), step)
    episodes = asyncio.run(play_all(context, questions, step, samples))
    settle_all(context, episodes)
    after = memory.next_state(context, episodes)
    assert context.state == before, (
        "the state was changed: draw, play, settle and update only read it"
    )
    return episodes, before, after


def discuss(
    method: Method,
    task: Task,
    script: Script | Table,
    questions: Sequence[Question],
    *,
    samples: int = 1,
    **setting: Any,
) -> list[Episode]:
    """Play and settle scripted discussions: the first step of a run."""
    step = play_step(method, task, script, questions, samples=samples, **setting)
    return step[0]


def records(episodes: Sequence[Episode]) -> list[str]:
    """Records as texts, without their questions and what differs from run to run."""
    texts: list[str] = []
    for record in map(episode_record, episodes):
        del record["question"]
        for turn in record["turns"]:
            turn.pop("seconds")
            turn["info"].get("call", {}).pop("seconds", None)
        texts.append(json.dumps(record, sort_keys=True, ensure_ascii=False, indent=1))
    return texts


# --- a script with replies of all kinds

SCORES = ["<score> 3 </score>", "<score> 1 </score>", "2", "<score> 2 </score>"]
PUZZLES = ["1 2 4 6 -> 7", "2 4 5 8 -> 11", "9 1 2 4 -> 7", "what ?"]
"""Puzzles of number sets that nobody holds out."""
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
"""Role -> replies in it; in others a score."""


def golden_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Replies for the golden transcripts: right, wrong, cut and unreadable ones, drawn by the
    seed.
    """
    sayings = SAYINGS.get(role, SCORES)
    return sayings[seed % len(sayings)]
