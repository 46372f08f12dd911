"""The table of all keys in docs/config.md, from the fields of the config.

`python docs/site/keys.py` writes it anew, `make docs` does so first, and a gate compares.

Leaves out: defaults and what keys mean (the block above it, which a gate compares as well).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from comas.config.schema import AgentConfig, Config, HostConfig
from comas.evaluation.spec import INSTEAD
from comas.hosts.table import Key, keys_that

PAGE = Path(__file__).parents[1] / "config.md"
BEGIN = "<!-- the next table is written by docs/site/keys.py -->\n"
END = "<!-- the end of that table -->\n"
TABLES: Mapping[str, type[BaseModel]] = {
    "": Config,
    "hosts.NAME.": HostConfig,
    "agents.NAME.": AgentConfig,
}
"""What stands before a key -> the table that it is in."""
ONLY = {
    Key.OF_API: "only with `api`",
    Key.OF_WEIGHTS: "only without `api`",
    Key.OF_ADAPTERS: "only with adapters",
    Key.ELSEWHERE: "only elsewhere",
}
"""Fact -> where alone a key has an effect."""


def lines() -> Iterator[str]:
    """The table in Markdown, a row for each fixed key."""
    yield "| key | values | notes |"
    yield "|---|---|---|"
    for above, table in TABLES.items():
        schema = table.model_json_schema()
        for key, field in table.model_fields.items():
            if field.exclude:
                continue
            values = _values(schema["properties"][key])
            yield f"| `{above}{key}` | {values} | {', '.join(_notes(above, table, key))} |"


def _notes(above: str, table: type[BaseModel], key: str) -> Iterator[str]:
    """What the page's table of notes explains, as far as it is true of a key."""
    if key in keys_that(table, Key.BOUNDS):
        yield "resume, by rounding"
    elif key in keys_that(table, Key.CHANGES):
        yield "resume"
    if key in keys_that(table, Key.TRAINING) or (not above and key in INSTEAD):
        yield "not eval"
    # adapters of an agent are those of its host
    of_hosts = HostConfig if table is AgentConfig else table
    yield from (where for fact, where in ONLY.items() if key in keys_that(of_hosts, fact))


def _values(schema: Mapping[str, Any]) -> str:
    """What a key may be set to, in words."""
    if "anyOf" in schema:
        parts = [_values(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(parts)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kinds = {"string": "text", "integer": "whole number", "boolean": "true, false"}
    kind = schema.get("type", "table")
    words = kinds.get(kind, {"array": "list", "object": "table"}.get(kind, kind))
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "up to"}
    told = [f"{word} {schema[bound]:g}" for bound, word in bounds.items() if bound in schema]
    return " ".join([words, *told])


def with_table(page: str) -> str:
    """The page with its table written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(lines()) + "\n\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
