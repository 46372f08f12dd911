"""A team that cannot learn says so in its first step: which role, why, an example, and the key that
would help.

From the record of a step alone, without labels. The three signs are replies that cannot be read,
replies that are cut for want of room, and rewards that nobody can learn from. A cause is told
without its consequences: replies that nobody can read leave others unpaid and rewards alike. Each
is told once, and again when it has become worse. Leaves out: collapse in the course of a run, whose
signs are statistical.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from comas.config.schema import Config
from comas.game.dialogue import called, failing
from comas.game.judgements import unreadable
from comas.game.roles import SCORED
from comas.hooks import Alarm
from comas.training.metrics.signal import signal
from comas.types import Episode, Method, Task, Turn

MANY = 0.5
"""Share of a role's replies from which a sign is told."""
WORSE = 0.25
"""By so much its share has to grow to be told again."""
COMPARED = 32
"""Rewards that were compared with another one, below which equal ones say nothing: where nine of
ten answers are right, so many are all equal by chance in about one step of thirty.
"""
SHOWN = 80
"""Characters of the reply that is shown as an example."""


@dataclass(frozen=True)
class Sign:
    """One reason why a step teaches little."""

    roles: tuple[str, ...]
    """Whom it is about; none where it is about the whole step."""
    kind: str
    """`unreadable`, `cut`, `unpaid` or `flat`; `calls of <tool>` that fail."""
    share: float
    """Of the replies of a role, or of the groups."""
    text: str


@dataclass
class LearningSignal:
    """What has been told of a run so far."""

    config: Config
    method: Method
    task: Task
    _told: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    def signs(self, episodes: Sequence[Episode]) -> list[Sign]:
        """All that is wrong with a step, whether or not it was so before."""
        turns = [turn for episode in episodes if episode.error is None for turn in episode.turns]
        return list(self._signs(turns))

    def news(self, step: int, signs: Sequence[Sign]) -> list[Alarm]:
        """Those signs of a step that are new to this process, or worse than when they were told
        last.
        """
        found: list[Alarm] = []
        for sign in signs:
            keys = [(role, sign.kind) for role in sign.roles or ("",)]
            known = [self._told.get(key) for key in keys]
            if any(before is None or sign.share >= before + WORSE for before in known):
                self._told |= dict.fromkeys(keys, sign.share)
                found.append(Alarm(step, sign.kind, sign.roles, sign.share, sign.text))
        return found

    def _signs(self, turns: Sequence[Turn]) -> Iterator[Sign]:
        by_role: dict[str, list[Turn]] = {}
        for turn in turns:
            by_role.setdefault(turn.role, []).append(turn)
        lost = [sign for role, said in by_role.items() for sign in self._of_replies(role, said)]
        short = {
            role: said
            for role, said in by_role.items()
            if sum(not turn.finished for turn in said) >= MANY * len(said)
        }
        if len(short) > 1:
            yield self._cut_alike(short)
        yield from (sign for sign in lost if len(short) < 2 or sign.roles[0] not in short)
        for tool, share, text in failing(called(turns)):
            yield Sign((), f"calls of {tool}", share, text)
        if not lost:
            yield from self._of_rewards(by_role)

    def _cut_alike(self, by_role: Mapping[str, Sequence[Turn]]) -> Sign:
        """Several roles whose replies are cut: they want room, whether or not what is there can be
        read.
        """
        cut = {
            role: [turn for turn in turns if not turn.finished] for role, turns in by_role.items()
        }
        counts = ", ".join(
            f"{len(cut[role])} of {len(turns)} as {role} at room.{role}={self._room(role)}"
            for role, turns in by_role.items()
        )
        remedy = "; ".join(self._more_room(role, turns) for role, turns in cut.items())
        example = _example(next(iter(cut.values()))[0])
        share = max(len(cut[role]) / len(turns) for role, turns in by_role.items())
        return Sign(
            tuple(by_role), "cut", share, f"replies are cut: {counts}, such as {example}; {remedy}"
        )

    def _of_replies(self, role: str, turns: Sequence[Turn]) -> Iterator[Sign]:
        """Replies that nobody can read, or that were cut."""
        lost = [turn for turn in turns if unreadable(turn.info)]
        cut = [turn for turn in turns if not turn.finished]
        if len(lost) >= MANY * len(turns):
            cut_too = [turn for turn in lost if not turn.finished]
            why = (
                f" ({len(cut_too)} of them cut at room.{role}={self._room(role)})"
                if cut_too
                else ""
            )
            text = f"{len(lost)} of {len(turns)} replies as {role} cannot be read{why}"
            remedy = (
                self._more_room(role, lost)
                if len(cut_too) >= MANY * len(lost)
                else self._better_format(role)
            )
            yield Sign(
                (role,),
                "unreadable",
                len(lost) / len(turns),
                f"{text}, such as {_example(lost[0])}; {remedy}",
            )
        elif len(cut) >= MANY * len(turns):
            text = (
                f"{len(cut)} of {len(turns)} replies as {role} are cut at"
                f" room.{role}={self._room(role)}"
            )
            remedy = self._more_room(role, cut)
            yield Sign(
                (role,),
                "cut",
                len(cut) / len(turns),
                f"{text}, such as {_example(cut[0])}; {remedy}",
            )

    def _of_rewards(self, by_role: Mapping[str, Sequence[Turn]]) -> Iterator[Sign]:
        """Roles that are never paid, and otherwise a step in which no two rewards can be told
        apart.
        """
        for role, turns in by_role.items():
            if role in self.method.paid and not any(turn.reward is not None for turn in turns):
                text = (
                    f"none of {len(turns)} replies as {role} is paid, so that role learns nothing"
                )
                yield Sign((role,), "unpaid", 1.0, text)
        paid = [turn for turns in by_role.values() for turn in turns if _is_compared(turn)]
        groups = signal(paid)
        # the first of a group is compared with no other
        compared = len(paid) - sum(found["groups"] for found in groups.values())
        if compared >= COMPARED and all(
            found["flat"] == found["groups"] for found in groups.values()
        ):
            alike = ", ".join(f"{role} {_amounts(by_role[role])}" for role in groups)
            text = (
                f"nobody can learn from these rewards: in every group all are equal ({alike}); what"
                " helps is judges that tell good work from bad, questions that are neither too"
                " easy nor too hard, or a higher temperature"
            )
            yield Sign((), "flat", 1.0, text)

    def _room(self, role: str) -> int:
        room = {**self.task.max_tokens, **self.config.room}
        return room.get(role, self.config.max_tokens)

    def _more_room(self, role: str, turns: Sequence[Turn]) -> str:
        thinking = [turn for turn in turns if turn.thoughts]
        if len(thinking) >= MANY * len(turns):
            host = thinking[0].policy.split("/")[0]
            return f"most of it is thoughts: raise room.{role}, or set hosts.{host}.thinking=false"
        return f"raise room.{role}"

    def _better_format(self, role: str) -> str:
        scored = role in SCORED and "score" in self.config.options
        instead = "set options.score=believed, which reads no reply; or " if scored else ""
        return (
            f"{instead}give the agents that take {role} a base that keeps to the format"
            f" (agents.<name>.base and roles), or the task a wording for {role} that shows it; or"
            f" teach the format first: method=sft with demonstrations of {role} (docs/methods.md)"
        )


def _is_compared(turn: Turn) -> bool:
    """Whether a turn's reward says anything beside others; words that were given are learnt as they
    are.
    """
    if "told" in turn.info:
        return False
    return turn.reward is not None


def _example(turn: Turn) -> str:
    """The end of a reply, on one line: that is where answers and scores are looked for."""
    text = " ".join(turn.text.split())
    if not text:
        return "an empty one"
    return repr(text if len(text) <= SHOWN else f"... {text[-SHOWN:]}")


def _amounts(turns: Sequence[Turn]) -> str:
    amounts = sorted({turn.reward for turn in turns if turn.reward is not None})
    return f"{amounts[0]:+.2f}" if len(amounts) == 1 else f"{amounts[0]:+.2f} to {amounts[-1]:+.2f}"
