"""The table in docs/config.md of what else is true of keys, from the fields of the config.

`python docs/site/keys.py` writes it anew, `make docs` does so first, and a gate compares.

Leaves out: values, defaults and what keys mean (the block above it, which a gate compares as well).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from comas.config.schema import AgentConfig, Config, HostConfig
from comas.evaluation.spec import INSTEAD
from comas.hosts.keys import Key, keys_that

PAGE = Path(__file__).parents[1] / "config.md"
BEGIN = "<!-- the next table is written by docs/site/keys.py -->\n"
END = "<!-- the end of that table -->\n"
TABLES: Mapping[str, type[BaseModel]] = {
    "": Config,
    "hosts.NAME.": HostConfig,
    "agents.NAME.": AgentConfig,
}
"""What stands before a key -> the table that it is in."""
RESUME = "`comas resume` takes a new value: no text depends on it"
ROUNDING = "the same, but results change by rounding"
NOT_EVAL = "`comas eval` refuses it"
ONLY = {
    Key.OF_API: "has an effect only with `api`",
    Key.OF_WEIGHTS: "has an effect only without `api`",
    Key.OF_ADAPTERS: "has an effect only with adapters",
    Key.OF_RAY: 'has an effect only with `kind = "ray"`',
}
"""Fact -> where alone a key has an effect."""


def lines() -> Iterator[str]:
    """The table in Markdown, a row for each fact with the keys of which it is true."""
    yield "| a key that | keys |"
    yield "|---|---|"
    keys: dict[str, list[str]] = {fact: [] for fact in (RESUME, ROUNDING, NOT_EVAL, *ONLY.values())}
    for above, table in TABLES.items():
        for key, field in table.model_fields.items():
            if not field.exclude:
                for fact in _facts(above, table, key):
                    keys[fact].append(f"`{above}{key}`")
    for fact, names in keys.items():
        yield f"| {fact} | {' '.join(names)} |"


def _facts(above: str, table: type[BaseModel], key: str) -> Iterator[str]:
    """What is true of a key."""
    if key in keys_that(table, Key.BOUNDS):
        yield ROUNDING
    elif key in keys_that(table, Key.CHANGES):
        yield RESUME
    if key in keys_that(table, Key.TRAINING) or (not above and key in INSTEAD):
        yield NOT_EVAL
    # adapters of an agent are those of its host
    of_hosts = HostConfig if table is AgentConfig else table
    yield from (where for fact, where in ONLY.items() if key in keys_that(of_hosts, fact))


def with_table(page: str) -> str:
    """The page with its table written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(lines()) + "\n\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
