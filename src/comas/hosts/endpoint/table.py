"""Keys of a host behind an API.

Leaves out: building it (`hosts.api`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from comas.hosts.table import HostTable, Key, none_as_text

Price = Annotated[float, Field(ge=0)]


class Table(HostTable):
    """Where it is reached, how it is asked, and what it may cost."""

    api: str | None = Field(None, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$")
    """Base URL of an OpenAI-compatible endpoint: no weights here, and its agents are frozen."""
    key_env: Annotated[str | None, Key.CHANGES, Key.OF_API] = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    """Name of the environment variable that holds the key; never the key."""
    concurrency: Annotated[int, Key.CHANGES] = Field(16, ge=1)
    """Requests at once."""
    timeout: Annotated[float, Key.CHANGES] = Field(120.0, gt=0)
    """Seconds for one request."""
    retries: Annotated[int, Key.CHANGES] = Field(5, ge=0)
    logprobs: bool = False
    """Whether the endpoint is asked for them."""
    price: Annotated[tuple[Price, Price] | None, Key.CHANGES, Key.OF_API] = None
    """Of a million prompt tokens, and of a million generated ones."""
    budget_tokens: Annotated[int | None, BeforeValidator(none_as_text), Key.CHANGES, Key.OF_API] = (
        Field(None, ge=1)
    )
    """Prompt and generated tokens, over all processes of a run; when they are spent the run stops.

    `none` is no budget.
    """
    budget_money: Annotated[
        float | None, BeforeValidator(none_as_text), Key.CHANGES, Key.OF_API
    ] = Field(None, gt=0)
    """The same in the unit of `price`."""
