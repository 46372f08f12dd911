"""A team that cannot learn says so in its first step: which role, why, an example, and the key that
would help.

From the record of a step alone, without labels. The three signs are replies that cannot be read,
replies that are cut for want of room, and rewards that nobody can learn from. The last is not told
beside the others, from which it follows. Leaves out: collapse in the course of a run, whose signs
are statistical.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comas.config.schema import Config
from comas.game.dialogue import called, failing
from comas.game.judgements import unreadable
from comas.hooks import Alarm
from comas.training.metrics import grouped, signal_in
from comas.types import Episode, Method, Role, Task, Turn

MANY = 0.5
"""Share of a role's replies from which a sign is told."""
COMPARED = 32
"""Rewards that were compared with another one, below which equal ones say nothing: where nine of
ten answers are right, so many are all equal by chance in about one step of thirty.
"""
SHOWN = 80
"""Characters of the reply that is shown as an example."""


@dataclass
class LearningSignal:
    """Which signs have been told by this process."""

    config: Config
    method: Method
    task: Task
    _told: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])
    """Kind and roles of each."""

    def signs(self, step: int, episodes: Sequence[Episode]) -> list[Alarm]:
        """All that is wrong with a step, whether or not it was so before."""
        turns = [turn for episode in episodes if episode.error is None for turn in episode.turns]
        by_role = grouped((turn.role, turn) for turn in turns)
        alarms: list[Alarm] = []
        for role, replies in by_role.items():
            alarms += self._of_replies(step, role, replies)
        lost = bool(alarms)
        for tool, share, text in failing(called(turns)):
            alarms.append(Alarm(step, f"calls of {tool}", (), share, text))
        if not lost:
            alarms += self._of_rewards(step, by_role)
        return alarms

    def news(self, signs: Sequence[Alarm]) -> list[Alarm]:
        """Those that this process has not told yet."""
        new = [sign for sign in signs if (sign.kind, sign.roles) not in self._told]
        self._told |= {(sign.kind, sign.roles) for sign in new}
        return new

    def _of_replies(self, step: int, role: str, turns: Sequence[Turn]) -> Iterator[Alarm]:
        """Replies of a role that nobody can read, or that were cut."""
        kind = "unreadable"
        failed = [turn for turn in turns if unreadable(turn.info)]
        if len(failed) < MANY * len(turns):
            kind = "cut"
            failed = [turn for turn in turns if not turn.finished]
        if len(failed) < MANY * len(turns):
            return
        what = "cannot be read" if kind == "unreadable" else "are cut"
        cut = [turn for turn in failed if not turn.finished]
        remedy = self._better_format(role)
        if len(cut) >= MANY * len(failed):
            room = {**self.task.max_tokens, **self.config.room}.get(role, self.config.max_tokens)
            remedy = f"raise room.{role} (now {room} tokens)"
            if all(turn.thoughts for turn in cut):
                host = cut[0].policy.split("/")[0]
                remedy += f", or set hosts.{host}.thinking=false"
        text = (
            f"{len(failed)} of {len(turns)} replies as {role} {what}, such as"
            f" {_example(failed[0])}; {remedy}"
        )
        yield Alarm(step, kind, (role,), len(failed) / len(turns), text)

    def _of_rewards(self, step: int, by_role: Mapping[str, Sequence[Turn]]) -> Iterator[Alarm]:
        """Roles that are never paid, and otherwise a step in which no two rewards can be told
        apart.
        """
        for role, turns in by_role.items():
            if role in self.method.rewarded and not any(turn.reward is not None for turn in turns):
                text = (
                    f"none of {len(turns)} replies as {role} is paid, so that role learns nothing"
                )
                yield Alarm(step, "unpaid", (role,), 1.0, text)
        replies = [turn for turns in by_role.values() for turn in turns]
        # words that were given are learnt as they are
        paid = [turn for turn in replies if turn.reward is not None and "told" not in turn.info]
        groups = signal_in(paid)
        # the first of a group is compared with no other
        compared = len(paid) - sum(group["groups"] for group in groups.values())
        if compared >= COMPARED and all(
            group["flat"] == group["groups"] for group in groups.values()
        ):
            text = (
                "nobody can learn from these rewards: in every group all are equal; what helps is"
                " judges that tell good work from bad, questions that are neither too easy nor too"
                " hard, or a higher temperature"
            )
            yield Alarm(step, "flat", (), 1.0, text)

    def _better_format(self, role: str) -> str:
        kind = self.method.roles.get(role, Role()).kind
        scored = kind in ("judge", "rater") and "score" in self.config.options
        instead = "set options.score=believed, which reads no reply; or " if scored else ""
        return (
            f"{instead}give the agents that take {role} a base that keeps to the format"
            f" (agents.<name>.base and roles), or the task a wording for {role} that shows it; or"
            f" teach the format first: method=sft with demonstrations of {role} (docs/methods.md)"
        )


def _example(turn: Turn) -> str:
    """The end of a reply, on one line: that is where answers and scores are looked for."""
    text = " ".join(turn.text.split())
    if not text:
        return "an empty one"
    return repr(text if len(text) <= SHOWN else f"... {text[-SHOWN:]}")
