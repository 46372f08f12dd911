"""The words of comas: what passes between games, settlements, hosts, engines and learners.

Plain records and protocols; numpy is the heaviest thing here. A method is written against this file
alone. Leaves out: anything that runs.
"""

from __future__ import annotations

import functools
import operator
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    get_args,
    runtime_checkable,
)

import numpy as np
from annotated_types import Ge, Gt, Interval

T = TypeVar("T")

Count = Annotated[int, Ge(1)]
"""For options of methods and tasks: the annotation of a keyword is what its value is checked
against.
"""
Whole = Annotated[int, Ge(0)]
"""Whole number from 0, for options of methods and tasks."""
Share = Annotated[float, Interval(ge=0, le=1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]

Verdict = Literal["right", "wrong", "failed"]
"""`failed`: the checker itself broke down; never counted as wrong."""


class UserMistake(ValueError):
    """Something that the user can mend; the message names the thing, the value and the remedy.

    One line, exit code 2.
    """


class CannotBePlayed(UserMistake):
    """Mistake that a game refuses whatever the question is, such as a role that no agent takes, or
    options that do not go together: found before a model is loaded.
    """


class NoSystemRole(UserMistake):
    """A chat template that has no place for a system message."""


class Stopped(Exception):
    """A run was asked to stop (Ctrl-C, SIGTERM) and has: what it had is in its folder."""


class HostFailure(RuntimeError):
    """A machine let a game down (not the game itself): the episode is tried again, then recorded
    and left out.
    """


class HostLost(RuntimeError):
    """A host elsewhere is gone, with all that it has not saved: nothing can be played or learnt
    without it, so it ends the run.
    """


class Refused(HostFailure):
    """A request that its host does not take: the episode is not tried again, since it would be
    refused again.
    """


class ToldToWait(HostFailure):
    """A server that wants to be left alone for longer than anybody waits for it: the episode is not
    tried again, since that would be at once.
    """


class NoRoom(Refused):
    """A prompt that does not fit a context together with its reply, whatever is left out of it."""


class ToolFailure(RuntimeError):
    """A tool could not do what it was asked; what it says goes back to the agent that called."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Tool that agents may call in a dialogue (`game.dialogue`): text in, text out."""

    name: str
    """Name by which agents call it, such as `search`."""
    does: str
    """Purpose, in a sentence: agents read it."""
    argument: str
    """Argument that it takes, in a word: `expression`."""
    run: Callable[[str], str]
    """`run(argument)`; may take seconds. Raises ToolFailure for what it cannot do, HostFailure
    where a machine let it down.
    """
    seconds: float = 30.0
    """Nobody waits for it longer."""
    longest: int = 4000
    """Characters that come back; the rest is cut off."""
    at_once: int = 64
    """Calls that run side by side, at most; others wait for their turn."""
    some: Callable[[str], str] | None = None
    """`some(seed)`: a text that a call might bring, drawn by `seed`; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question; `answer` and `meta` are for verifiers, supervised methods and reports only."""

    id: str
    """Unique in its task; seeds are derived from it."""
    prompt: str
    """Text that agents read."""
    kind: str = ""
    """The form or subject, for tasks that have several."""
    answer: str | None = None
    """The reference answer, where there is one."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Whatever the task's own functions need."""


def whole(question: Question, text: str) -> str:
    """The text as it is: what a task shows to peers unless it says otherwise."""
    return text


@dataclass(frozen=True, kw_only=True)
class Task:
    """A family of questions: importable functions in one record.

    Label-free methods never reach `verify` or `answer`.
    """

    name: str
    load: Callable[..., list[Question]]
    """`load(split, path=None, limit=None, seed=0, **options)`."""
    verify: Callable[[Question, str], Verdict]
    """Whether a text answers a question rightly: for reports and supervised methods."""
    extract: Callable[[Question, str], str | None]
    """The canonical answer in a text, or None where none can be read."""
    shown: Callable[[Question, str], str] = whole
    """Text that peers see of a piece of work."""
    same: Callable[[str, str], bool] = operator.eq
    """Whether two canonical answers are the same answer."""
    quick: bool = False
    """Whether `verify` takes microseconds and no process of its own: then every step reports how
    well its rewards and its judges agreed with the labels (`pay judges` of `training.metrics`).
    """
    ballot: Callable[[Question, str], str | None] | None = None
    """`ballot(question, answer)`: what a canonical answer counts as in a vote, where it is not the
    answer itself; None: it has none. May take seconds; raises HostFailure where a machine let it
    down.
    """
    pose: Callable[[str], Question | None] | None = None
    """`pose(text)`: the question that an agent wrote, its id and meta made from the text alone.

    None where the text is no question, or one of a held-out split: nobody may train on those.
    """
    pose_held_out: Callable[[str], Question | None] | None = None
    """`pose` that takes questions of held-out splits too; None: `pose` itself. Cross-play alone
    asks it, where nobody trains.
    """
    check: Callable[[Question, str], Verdict] | None = None
    """`verify` by rule: the question's own text is all that it needs, so that it holds for
    questions that agents wrote.
    """
    rephrase: Callable[[Question, random.Random], Question | None] | None = None
    """`rephrase(question, rng)`: the same question in other words or another order, with the same
    answer; None where there is no other way.

    Made from the question's text alone. Whoever answers by a habit of places answers it otherwise.
    Nobody trains on it: `pose` takes it only if it takes the question itself.
    """
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    """Name -> what agents may call in a dialogue; a config's `tools` join them."""
    rules: Callable[..., Awaitable[Sequence[float]]] | None = None
    """A game, as a coroutine: `async rules(question, move, rng)` -> the payoff of each seat.

    `await move(seat, view, legal)` is what the seat does that sees the text `view`: one of the
    texts `legal`, or any text where that is empty. It reads a question by its prompt alone, and
    ends by itself. Chance is drawn from `rng`, outside of parts that run side by side
    (`game.moves`).
    """
    seats: Mapping[str, Callable[..., str]] = field(default_factory=dict[str, Callable[..., str]])
    """Scripts that can take a seat of the game, by name: `script(view, legal, rng)` -> a legal
    move. Setups play against them; every game has `random` besides.
    """
    wording: Mapping[str, str] = field(default_factory=dict[str, str])
    """Templates per role that replace the method's own; never its flow."""
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens per reply, by role, where the task knows better than the config."""
    base: str | None = None
    """The base that the task was made for; other bases need a recipe or an explicit `lr`."""
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Training settings for bases other than `base`, published or measured, where there are any:
    those of the optimizer (`lr betas weight_decay grad_norm`) and other keys of a config (`steps
    questions temperature ...`).
    """

    def without_labels(self, grounded: bool = False) -> Task:
        """Return the task for label-free methods: asking it to verify or to load questions, which
        have their labels, is an error, and so is `check` unless the method is `grounded`.
        """
        check = self.check if grounded or self.check is None else _no_rules
        return replace(self, verify=_no_labels, load=_no_questions, check=check)


def _no_labels(question: Question, text: str) -> Verdict:
    raise PermissionError(
        "a label-free method asked for a verdict: set supervised=True on the Method to use verify"
    )


def _no_questions(*args: object, **options: object) -> list[Question]:
    raise PermissionError(
        "a label-free method asked for labelled questions: set supervised=True on the Method to use"
        " load"
    )


def _no_rules(question: Question, text: str) -> Verdict:
    raise PermissionError(
        "a method asked for the task's rules: set grounded=True on the Method to use check"
    )


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn."""

    temperature: float = 1.0
    """0 means greedy (evaluation only)."""
    top_p: float = 1.0
    """Below 1 in evaluation only: log-probs of training are of the whole softmax."""
    max_tokens: int = 256


@dataclass(frozen=True)
class Reply:
    """Response of a host to an ask: text and sums. Token ids stay at the host."""

    text: str
    finished: bool
    """Whether the reply ended by itself, not for want of tokens."""
    version: int
    """How often the policy had been updated when it spoke."""
    prompt_tokens: int
    tokens: int
    """Generated tokens, the end token included."""
    logprob: float
    """Sum of the log-probs of the generated tokens, in nats, at the sampling temperature."""
    seconds: float
    margin: float = 1.0
    """Smallest distance of a draw from flipping to another token, as probability mass."""
    thoughts: str = ""
    """Text that a thinking model generated before `text`; sampled and trained on. A reply that
    ended or was cut within its thoughts has no text.
    """
    weights: tuple[float, ...] | None = None
    """Log-prob of each choice of `Weighs.weigh`, in nats at temperature 1; None where a reply was
    sampled or given.
    """


Kind = Literal["answer", "spoilt", "judge", "rater", "other"]
"""`answer`: a reply that answers the question. `spoilt`: one that answers wrongly on purpose.
`judge`: one that says whether an answer is right. `rater`: one that gives marks to something else,
such as a question.
"""
WORK: tuple[Kind, ...] = ("answer", "spoilt")
"""Kinds of replies that can be judged."""
COMMON_KINDS: Mapping[str, Kind] = {
    "solution": "answer",
    "revision": "answer",
    "sabotage": "spoilt",
    "evaluation": "judge",
    "judging": "judge",
    "scoring": "judge",
    "rating": "rater",
}
"""Kinds of roles with these names, where a method or a record of 0.1 says none; all others are
`other`.
"""


@dataclass(frozen=True)
class Role:
    """Role in which a game asks an agent: metrics, monitors, evaluation and `comas view` go by its
    kind.
    """

    kind: Kind = "other"
    reward: str | None = None
    """Behaviour that is rewarded, in a few words: the legend of displays. None: the role never is.
    """

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserMistake(f"Role({self.kind!r}): one of {', '.join(get_args(Kind))}")


TRUTH = ("right", "accepts")
"""Keys of `Turn.info` that are noted after a step has been learnt from: whether work is right by
its label, and whether a judgement accepts it. No game, settlement or memory may see them.
"""


@dataclass(repr=False)
class Turn:
    """One utterance in a discussion, and its reward."""

    id: str
    """`step/question/sample/path`: by place in the program, never by time of arrival."""
    agent: str
    policy: str
    """`host/name`."""
    role: str
    prompt: str
    text: str
    finished: bool
    version: int
    about: str | None = None
    """Id of the turn that this one judges or revises."""
    round: int = 0
    """Round of the game, where it has rounds: costs are reported by round."""
    reward: float | None = None
    """None: not rewarded, not trained on. 0.0 is trained on."""
    group: str | None = None
    """Turns that share a baseline."""
    tokens: int = 0
    prompt_tokens: int = 0
    logprob: float = 0.0
    margin: float = 1.0
    seconds: float = 0.0
    dropped: int = 0
    """Pieces of history left out of the prompt, oldest first, for want of tokens."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """Facts of the game: a score that was read, for instance; under any key but those of
    `TRUTH`.
    """
    thoughts: str = ""
    """The reply's thoughts, for the record: no game, judge or colleague reads them."""
    kind: Kind = "other"
    """The kind of its role, as the method says."""

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else f"{self.text[:60]} ..."
        return f"Turn({self.id}, {self.agent} as {self.role}: {text!r}, reward {self.reward})"


@dataclass
class Episode:
    """One discussion of one question."""

    id: str
    question: Question
    turns: list[Turn] = field(default_factory=list[Turn])
    answer: str | None = None
    """The text that the game returned as the team's answer."""
    error: str | None = None
    """An infrastructure failure; such an episode is recorded and left out, never counted as wrong.
    """


@dataclass(frozen=True)
class Ask:
    """One turn that a host is asked for."""

    turn: str
    """The id of the turn, under which the host files its tokens."""
    policy: str
    """The policy of the host in whose voice it answers."""
    messages: Sequence[Mapping[str, str]]
    """`role` and `content` of each: the prompt, or the dialogue so far."""
    role: str
    """The role of the agent in the game."""
    keep: bool = False
    """Whether the tokens are filed for learning."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    common: int = 0
    """Characters with which the last message of other requests is likely to begin as well, such as
    the question that many works answer: a host may read them once.
    """


@dataclass(frozen=True)
class TurnReward:
    """All that goes back to the owner of a policy."""

    turn: str
    reward: float
    group: str | None = None


@dataclass
class Row:
    """One rewarded turn at home: tokens as sampled, joined with its reward.

    T = prompt + generated tokens. Never leaves a host.
    """

    turn: str
    role: str
    temperature: float
    token_ids_T: np.ndarray
    """int64; prompt and reply as the model saw and sampled them."""
    mask_T: np.ndarray
    """bool; True on generated tokens."""
    logprobs_T: np.ndarray
    """float32; under the policy at the start of the learning step, 0 where the mask is False."""
    group: str | None = None
    reward: float = float("nan")
    sampled_logprobs_T: np.ndarray | None = None
    """float32; the engine's own, as sampled: kept to measure the gap to the learner's. None where
    the words were given (`Agent.tell`).
    """
    ref_logprobs_T: np.ndarray | None = None
    """float32; under the policy at the start of the run. None where no role has a KL."""
    advantages_T: np.ndarray | None = None
    now_T: np.ndarray | None = None
    """float32; under the policy just before an update. None where that is `logprobs_T`: only
    methods with `fresh` credit have it, and not in their first update of a step.
    """


State = dict[str, Any]
"""State that a method remembers between steps: plain values, written into every checkpoint as JSON.
"""
Credit = Callable[..., list[np.ndarray]]
"""`credit(rows of one policy, kl, **options)` -> per row an array of T advantages, 0 outside the
mask.
"""
Loss = Callable[..., Any]
"""`loss(logprobs, batch, **options)` -> per-token terms of the same shape; the learner masks and
divides.
"""


@dataclass(frozen=True)
class Memory:
    """Functions with which a method remembers between steps."""

    start: Callable[..., State] | None = None
    """`start(questions, task, **options)` -> the record that lives between steps. None: an empty
    one. Outside a run there are no questions.
    """
    draw: Callable[..., list[Question]] | None = None
    """`draw(state, questions, count, rng, task, **options)` -> the questions of a step. None: the
    task's own, in passes.
    """
    update: Callable[..., State] | None = None
    """`update(state, episodes, task, **options)` -> the record after a step that was settled and
    learnt from; pure. None: it stays as it was.
    """


def _takes_former(cls: type[T]) -> type[T]:
    """Have a method be made, and replaced, with the keywords of 0.1 as well."""
    init: Any = cls.__init__

    @functools.wraps(init)
    def __init__(self: T, *values: Any, **keys: Any) -> None:
        init(self, *values, **_from_former(keys))

    cls.__init__ = __init__
    return cls


def _from_former(keys: dict[str, Any]) -> dict[str, Any]:
    """Rename the keywords of 0.1: `advantage`, `paid`, `pays`, `roles` as names, and the functions
    of a `Memory`.
    """
    names: Any = keys.get("roles", ())
    common = {name: Role(kind) for name, kind in COMMON_KINDS.items()}
    named = cast("Mapping[str, Role]", names) if isinstance(names, Mapping) else None
    roles: dict[str, Role] = common if named is None else dict(named)
    if {"paid", "pays"} & keys.keys() or (names and named is None):
        rewards = {
            name: role.reward or "" for name, role in roles.items() if role.reward is not None
        }
        paid: Sequence[str] = keys.pop("paid", tuple(rewards) or ("solution",))
        rewards |= keys.pop("pays", {})
        further = cast("Iterable[str]", names)
        for name in (*paid, *further):
            roles[name] = replace(
                roles.get(name, Role()), reward=rewards.get(name, "") if name in paid else None
            )
        keys["roles"] = roles
    functions = {name: keys.pop(name) for name in ("start", "draw", "update") if name in keys}
    if functions:
        keys["memory"] = replace(keys.get("memory", Memory()), **functions)
    if "advantage" in keys:
        keys["credit"] = keys.pop("advantage")
    return keys


@_takes_former
@dataclass(frozen=True)
class Method:
    """How a team talks, who is rewarded for what, and how a policy learns from that."""

    play: Callable[..., Awaitable[str | None]]
    """`async play(question, agents, rng, task, **options)` -> the text that answers, or None."""
    settle: Callable[..., None]
    """`settle(episodes, task, **options)`: sets `reward` and `group` of turns; pure.

    Gets all finished episodes of a step, in the order of their ids.
    """
    credit: Credit
    loss: Loss
    kl: Mapping[str, float] = field(default_factory=dict[str, float])
    """Role -> beta. Roles that are absent have none; if all are 0, no reference is kept."""
    epochs: int = 1
    minibatches: int = 1
    supervised: bool = False
    """Whether it may see `verify` and `answer`."""
    grounded: bool = False
    """Whether it may see the task's `check`: rules that hold for any question, no answers to
    these.
    """
    roles: Mapping[str, Role] = field(
        default_factory=lambda: {
            name: Role(kind, "" if name == "solution" else None)
            for name, kind in COMMON_KINDS.items()
        }
    )
    """All roles in which the game asks, or may ask: any other is one of no kind. One of those with
    a reward must have a learning agent; where none has one, any role can be rewarded, such as those
    that questions name.
    """
    memory: Memory = Memory()
    fresh: bool = False
    """Whether credit is assigned anew before each update, from the rows of that update; then
    minibatches never divide a group.
    """
    reference: tuple[str, ...] = ()
    """Roles whose rows carry reference log-probs although they have no KL."""
    needs: tuple[str, ...] = ()
    """Fields of `Task` without which it cannot be played, such as `pose`."""
    base: str | None = None
    """The base of hosts that name none: the shipped model that knows its roles."""
    task: str | None = None
    """The task of a config that names none; None: that of the default config."""
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of that task, where the config does not set them."""
    team: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Agents of a config that names none: name -> keys of `agents.<name>`."""
    samples: int = 1
    """Discussions per question and step."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Name -> the config keys that it sets (tables `options credit loss kl`, and keys such as
    `samples`); a config without `preset` gets the first.
    """
    pretrained: str | None = None
    """The preset of a config without `preset` where a base is no shipped model, and all weights are
    here, not behind an API.
    """
    measure: Callable[..., Awaitable[str | None]] | None = None
    """The game in which every agent answers alone, before, during and after training; None is
    `setups.single`.
    """
    cross: Callable[..., Awaitable[float | None]] | None = None
    """`async cross(question, rows, columns, rng, task)` -> what an adversary among the agents
    `rows` gets of a defender among `columns`, of another team; None where that is not known. Pure
    play: nobody is rewarded.
    """

    def __post_init__(self) -> None:
        roles: Mapping[str, Any] = self.roles
        for name, role in roles.items():
            if not isinstance(role, Role):
                raise UserMistake(f"roles[{name!r}] is {role!r}: wanted is Role(kind, reward=...)")

    @property
    def rewarded(self) -> tuple[str, ...]:
        """The roles that can be rewarded; none where questions name them."""
        return tuple(name for name, role in self.roles.items() if role.reward is not None)

    @property
    def rewards(self) -> dict[str, str]:
        """Role -> what it is rewarded for, where the method says that."""
        return {name: role.reward for name, role in self.roles.items() if role.reward}

    @property
    def remembers(self) -> bool:
        """Whether it has a record between steps."""
        return self.memory.start is not None or self.memory.update is not None

    @property
    def refers(self) -> bool:
        """Whether any row needs log-probs of the policy at the start of the run."""
        return any(self.kl.values()) or bool(self.reference)


@dataclass(frozen=True)
class Setup:
    """A way of answering: a game without its settlement, for evaluation."""

    play: Callable[..., Awaitable[str | None]]
    """`async play(question, agents, rng, task, **options)` -> the text that answers, or None."""
    alone: bool = False
    """Every agent plays it alone, rather than the team together."""
    needs: tuple[str, ...] = ()
    """Fields of `Task` without which it cannot be played, such as `rules`."""
    roles: Mapping[str, Role] = field(default_factory=lambda: {"solution": Role("answer")})
    """Roles in which it asks, or may ask."""

    def __post_init__(self) -> None:
        names: Any = self.roles
        if not isinstance(names, Mapping):  # as 0.1 had them
            roles = {name: Role(COMMON_KINDS.get(name, "other")) for name in names}
            object.__setattr__(self, "roles", roles)


class Fit(NamedTuple):
    """Whether a prompt and its reply fit into a policy's context."""

    fits: bool
    needed: int | None = None
    """Tokens of prompt and reply together; None where the host does not count."""
    context: int | None = None
    """Tokens that there are; None where the host does not know."""


class Calls(NamedTuple):
    """How a chat template writes a call: `before {"<name>": tool, "<arguments>": {...}} after`."""

    before: str
    name: str
    """The key of the tool's name."""
    arguments: str
    """The key of its arguments."""
    after: str


class Learned(NamedTuple):
    """Result of a host's learning step."""

    policies: dict[str, dict[str, float]]
    """Policy -> statistics of its step."""
    turns: dict[str, tuple[float, float]]
    """Turn id -> (mean advantage, mean KL) of its tokens, for the record."""


Account = Mapping[str, Any]
"""Costs of a host, as JSON: `spent` (requests and tokens), `money`, `events`, `unsettled`."""


class Host(Protocol):
    """Owns weights, buffer and optimizer of one or more policies; only text and scalars leave it.

    `comas.testing.check_host` holds a host to what stands here.
    """

    @property
    def name(self) -> str: ...

    @property
    def learns(self) -> bool:
        """Whether its policies can change; where not, their agents are frozen and not measured."""
        ...

    @property
    def meter(self) -> Meter | None:
        """Counts that go on within a reply; None: its replies are counted when they are
        complete.
        """
        ...

    async def ask(self, ask: Ask) -> Reply:
        """Answer in the voice of `ask.policy`; with `ask.keep`, file the tokens under the turn's
        id for learning.
        """
        ...

    async def tell(self, ask: Ask, text: str) -> Reply:
        """Return `text` as the reply of `ask.policy`; with `ask.keep`, file its tokens.

        They have no log-probs of an engine. UserMistake where nobody can learn from it, or where
        prompt and text do not fit into the context.
        """
        ...

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Whether prompt and reply fit into the policy's context."""
        ...

    def calls(self, policy: str) -> Calls | None:
        """How the policy's chat template writes a call of a tool; None where it has no way to,
        which hosts without this method mean as well.
        """
        ...

    async def learn(self, rewards: Mapping[str, Sequence[TurnReward]], lr_scale: float) -> Learned:
        """Take one step per policy, at `lr_scale` times its learning rate, and empty the buffer."""
        ...

    async def save(self, path: Path) -> None:
        """Write weights, optimizer and counters of every policy below `path`."""
        ...

    async def load(self, path: Path) -> None:
        """The inverse of `save`; only hosts that learn are asked for it."""
        ...

    def clock(self) -> Mapping[str, float]:
        """Seconds of work since the host was made, by kind: `sampling`, `learning` ..."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return the facts on which results and their cost depend here, as JSON: `device`, `dtype`,
        `peak_bytes` of that device ...; whatever is known.
        """
        ...

    def account(self) -> Account:
        """Return the costs so far; empty where nothing is billed."""
        ...

    def close(self) -> None:
        """Give threads, memory and connections back."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """Methods of a host that can also say how probable given words are."""

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """Return the log-probs of these continuations of the prompt as `Reply.weights`, at
        temperature 1, whatever the sampling's own.

        Nothing is sampled from the vocabulary: `Reply.text` is the choice that `seed` draws in
        proportion to the weights, the likeliest one at temperature 0 (`game.weighing`). With
        `keep`, its tokens are filed for learning. UserMistake where the choices cannot be told
        apart, or where its server tells no log-probs.
        """
        ...


@dataclass
class Meter:
    """How much work a host has done since it was made, for displays: counts that the working thread
    raises and anybody reads.

    The engine, the learner and the host share one.
    """

    replies: int = 0
    """Replies that are complete."""
    tokens: int = 0
    """Generated tokens, also of replies that go on."""
    rows_due: int = 0
    """Rows to learn from, counted once per epoch."""
    rows_read: int = 0
    """Rows whose log-probs were computed before the update."""
    rows_learnt: int = 0
    """Rows whose gradient has been computed."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def counts(self) -> dict[str, int]:
        """Every count by its name."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def read(self, rows: int) -> None:
        """Count rows that were read; several threads may do so at once."""
        with self._lock:
            self.rows_read += rows

    def learnt(self, rows: int) -> None:
        """Count rows that were learnt from; several threads may do so at once."""
        with self._lock:
            self.rows_learnt += rows
