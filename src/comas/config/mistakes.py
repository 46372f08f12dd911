"""Messages about a mistake in a config, in one line; former keys, monitors and options.

Former keys are read over where they say what is done anyway, as saved configs do; otherwise an
error says what to do instead. Leaves out: finding mistakes (`config.schema`, `config.checks`).
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

ELSEWHERE = {
    "model": "base",
    "model_name": "base",
    "model_name_or_path": "base",
    "learning_rate": "lr",
    "batch_size": "questions",
    "num_agents": "agents",
    "n_agents": "agents",
    "lora_rank": "rank",
    "lora_r": "rank",
    "gpu": "device",
    "max_steps": "steps",
    "dataset": "task",
    "output_dir": "out",
    "num_generations": "samples",
    "max_new_tokens": "max_tokens",
    "max_completion_length": "max_tokens",
    "beta": "kl.solution",
    "kl_coef": "kl.solution",
    "minutes": "--minutes of comas preflight",
    "reward_funcs": "method=./FILE.py (comas new method NAME)",
    **dict.fromkeys(
        ("grpo", "ppo", "reinforce"),
        "rlvr, which compares answers of a question by GRPO, rewarded by the verifier",
    ),
}
"""Name of a key, or of a method, in other libraries -> what it is here."""
SECRETIVE = {
    "key_env": (
        "the name of an environment variable is wanted, never the key itself (letters, digits"
        " and _)"
    ),
    "header_env": (
        "names of headers (none that each request has, such as Host) and, for each, the name of an"
        " environment variable are wanted, never a value itself"
    ),
    "api": (
        "wanted is http(s)://host[:port]/path without a user, a password, ? or #: a key belongs"
        " into the variable of key_env"
    ),
}
"""Keys whose value may be a secret in the wrong place: the message about a mistake does not repeat
it.
"""


Path = tuple[str | int, ...]
"""The parts of a dotted key."""


def explain(
    error: ValidationError, keys_beside: Callable[[Path], Iterable[str]], table: Path = ()
) -> str:
    """Say the first of the errors in a table, all of the config by default; `keys_beside` gives the
    known keys of the table that a key stands in.
    """
    first = error.errors()[0]
    path = (*table, *first["loc"])
    key = ".".join(str(part) for part in path)
    if first["type"] == "extra_forbidden" and path[-1] in FORMER:
        return f"{key}: {FORMER[str(path[-1])].instead}"
    if first["type"] == "extra_forbidden":
        known = list(keys_beside(path))
        hint = meant(str(path[-1]), known)
        is_near = key in ELSEWHERE or difflib.get_close_matches(key, known, 1, 0.7)
        if len(path) == 1 and not table and not is_near:
            hint += f" (or options.{key}, loss.{key}, credit.{key}, where the method has it)"
        return f"unknown key {key}: {hint}"
    secretive = "header_env" if "header_env" in path[2:] else str(path[-1]) if path else ""
    if secretive in SECRETIVE:
        return f"{key}: {SECRETIVE[secretive]}"
    message = first["msg"].removeprefix("Value error, ")
    value = first["input"]
    if first["type"] == "list_type" and isinstance(value, str):
        message = f"a list is wanted: {json.dumps(value.split(','))}"
    if first["type"] in ("dict_type", "model_type") and not isinstance(value, Mapping):
        is_number = isinstance(value, int | float)
        entry = f"solution={value}" if key in ("kl", "room") and is_number else "KEY=VALUE"
        message = f"a table is wanted: {key}.{entry}"
        if key == "agents":
            message += "; or how many there are: agents=4"
    return f"{key} = {value!r}: {message}" if key else message


def meant(name: str, known: Iterable[str]) -> str:
    """Suggest the key or method of ours that an unknown one stands for."""
    if name in ELSEWHERE:
        return f"did you mean {ELSEWHERE[name]}?"
    return nearest(name, known)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest of the known names, or list them all."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"one of {', '.join(known)}" if known else "there are none to be set"


# --- what there was once


class Former(NamedTuple):
    """A key that is gone."""

    is_off: Callable[[Any, Mapping[str, Any]], bool]
    """Whether its value, in this table, meant what is done now."""
    instead: str
    """The remedy for any other value."""
    becomes: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = lambda *_: {}
    """Keys of this table that say the same now."""
    now: str = ""
    """Replacement that says it now, where that is no key."""


def _only(*values: Any) -> Callable[[Any, Mapping[str, Any]], bool]:
    """Tell these values from others."""
    return lambda value, _: value in values


def _any(*_: Any) -> bool:
    return True


def _has_bounds(host: Any) -> bool:
    """Whether the table of a host bounds its memory itself, as those of runs do."""
    if not isinstance(host, Mapping):
        return False
    keys = cast("Mapping[str, Any]", host).keys()
    return "api" in keys or {"tokens_per_pass", "max_rows"} <= keys


def _place(where: Any, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The kind of a host that lived at a place; an actor's GPU is chosen by Ray."""
    if where == "here":
        return {}
    on_gpu = str(table.get("device", "")).startswith("cuda:")
    return {"kind": "ray", **({"device": "cuda"} if on_gpu else {})}


FORMER = {
    "where": Former(
        _only("here", "process", "ray"),
        "a host elsewhere is an actor of Ray: leave it out, and set kind=ray (docs/elsewhere.md)",
        _place,
    ),
    "threads": Former(_any, "", lambda threads, _: {"cpus": threads}),
    "patience": Former(_any, ""),
    "address": Former(_any, "", now="the environment variable RAY_ADDRESS, which has to be set"),
    "ahead": Former(
        _only(0),
        "steps are no longer played while the one before is learnt: leave it out (two hosts with"
        " kind=ray keep two cores busy)",
    ),
    "tensor_parallel": Former(
        _only(1),
        "a model is sampled from on one GPU: leave it out, or set kind=ray, engine=vllm and gpus of"
        " a host, which then takes all of them (docs/elsewhere.md)",
    ),
    "own": Former(
        _only(False),
        "an instance in Python is no host: leave it out, and set kind to a file with build(plan)"
        " (docs/extending.md)",
    ),
    "compile": Former(
        _only(False),
        "models are sampled from without torch.compile, which was slower on a CPU: leave it out",
    ),
    "prove_every": Former(_any, ""),
    "share_prompts": Former(_any, ""),
    "correction": Former(
        _only("token_truncate"),
        "the gap between engine and learner is corrected per token, truncated: leave it out",
    ),
    "old_logprobs": Former(
        _only("recomputed", "first_pass"),
        "the old policy is the learner's own: leave it out",
    ),
    "alpha": Former(
        lambda value, table: value == 2 * table.get("rank", 16),
        "adapters count alpha / rank = 2 times: leave it out, and scale lr instead",
    ),
    "metrics": Former(
        lambda value, _: not any(str(name).endswith(".py") for name in value or ()),
        "every run has all metrics: leave it out, and compute one of your own in a hook's `step`"
        " (docs/extending.md)",
    ),
    "memory": Former(
        lambda _, table: all(map(_has_bounds, dict(table.get("hosts") or {"home": {}}).values())),
        "what is free is measured: leave it out, and set hosts.<name>.tokens_per_pass and max_rows"
        " to take less",
    ),
    "eval_top_p": Former(
        _only(1),
        "held-out answers are drawn from the whole distribution: leave it out, and lower"
        " eval_temperature",
    ),
}
"""Key of 0.1, of a run, a host or an agent -> what was meant by it."""
FORMER_OPTIONS = {"blind": "answer_first"}
"""Option of a shipped method in 0.1 -> what it is called now."""
FORMER_VALUES = {
    "said": "text",
    "believed": "p_true",
    "paid": "rewarded",
    "unpaid": "unrewarded",
    "paid-but-wrong": "rewarded-but-wrong",
    "right-but-unpaid": "right-but-unrewarded",
}
"""Value of an option, or name of a preset or of a template, in 0.1 -> what it is called now."""
FORMER_MONITORS = (
    "distinct",
    "flips",
    "frozen_judge",
    "geometry",
    "role_shares",
    "swaps",
    "verdict_entropy",
)
"""Monitors that saw no collapse in time, or alarmed on healthy runs: no run begins or goes on with
one; what was trained with one can be asked and looked at.
"""


def upgraded(table: Any, known: Container[str]) -> Any:
    """A table as 0.1 wrote it, without the keys that are gone, with what says the same now; a line
    is logged of each. `known` are those that it has now.
    """
    if not isinstance(table, Mapping):
        return table
    keys = cast("Mapping[str, Any]", table)
    now = dict(keys)
    if keys.get("engine") == "torch":  # before engines had names
        now["engine"] = "auto"
        note_former("engine=torch", "engine=auto")
    dropped: list[str] = []
    for key, value in keys.items():
        if key in known or key not in FORMER or not FORMER[key].is_off(value, keys):
            continue
        becomes = FORMER[key].becomes(value, keys)
        if all(new in known for new in becomes):
            del now[key]
            now |= becomes
            if says := FORMER[key].now or ", ".join(f"{k}={v}" for k, v in becomes.items()):
                note_former(f"{key}={value}", says)
            else:
                dropped.append(key)
    if dropped:
        _note(
            f"keys of an earlier version without effect now, leave them out: {', '.join(dropped)}"
        )
    return now


def current_name(kind: str, name: str, known: Container[str]) -> str:
    """The name of an option, a value or a preset as it is called now, with a line where 0.1 called
    it something else; `known` are those that there are.
    """
    now = FORMER_OPTIONS.get(name) or FORMER_VALUES.get(name)
    if name in known or now is None or now not in known:
        return name
    note_former(f"{kind} {name}", now)
    return now


def note_former(formerly: str, now: str) -> None:
    """Log what a former key, name or value is read as, once."""
    _note(f"{formerly} of an earlier version is read as {now}")


@cache
def _note(line: str) -> None:
    """Log a line, once."""
    logging.getLogger("comas").warning(line)
