"""Keys of 0.1 that are gone: values that meant today's behaviour are read. What is said of
others is in messages.toml.
"""

from __future__ import annotations

import pytest

from comas.config import mistakes
from comas.config.schema import read

READ = [
    ["hosts.home.prove_every=9"],
    ["hosts.home.share_prompts=true"],
    ["hosts.home.correction=token_truncate"],
    ["hosts.home.old_logprobs=first_pass"],
    ["hosts.home.alpha=32"],
    ["hosts.home.rank=4", "hosts.home.alpha=8"],
    ["agents.a.rank=3", "agents.a.alpha=6"],
    ["eval_top_p=1.0"],
    ['metrics=["rewards", "kl"]'],
    ['metrics=["quality"]'],
    ["memory=8", "hosts.home.max_rows=4", "hosts.home.tokens_per_pass=512"],
]


@pytest.mark.parametrize("pairs", READ, ids=" ".join)
def test_values_that_meant_todays_behaviour_are_read_with_a_line(
    pairs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    mistakes._note.cache_clear()
    of_today = (".rank=", ".max_rows=", ".tokens_per_pass=")
    kept = [pair for pair in pairs if any(key in pair for key in of_today)]
    agent = ["agents.a.host=home"]
    assert read(None, [*agent, *pairs]) == read(None, [*agent, *kept])
    former = pairs[-1 if kept == pairs[:-1] else 0].partition("=")[0].rpartition(".")[2]
    (line,) = caplog.messages
    assert line.endswith(f"leave them out: {former}")


AS_NOW = {
    "where": "ray",
    "ahead": 0,
    "tensor_parallel": 1,
    "own": False,
    "compile": False,
    "correction": "token_truncate",
    "old_logprobs": "recomputed",
    "alpha": 32,
    "metrics": [],
    "eval_top_p": 1,
}
"""Former key -> a value that means what is done now, of keys that are not read on whatever it is."""


@pytest.mark.parametrize("key", mistakes.FORMER)
def test_no_key_is_read_on_or_dropped_without_a_line(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    mistakes._note.cache_clear()
    bounded = {"hosts": {"home": {"tokens_per_pass": 9, "max_rows": 9}}}
    table = {key: AS_NOW.get(key, 9), **bounded}
    assert key not in mistakes.upgraded(table, {"kind", "cpus", "hosts"})
    (line,) = caplog.messages
    assert key in line
