"""The words between a host elsewhere and whoever reaches it: frames of bytes, in order, both ways.

A transport (`comas.transports`) carries frames and nothing else. Leaves out: what is in them
(`hosts.remote`, `hosts.far_end`), any one transport.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

Heard = Callable[[bytes], None]
"""Told of each frame that comes from the far end; from whatever thread."""
Ended = Callable[[str], None]
"""Told once when nothing more will come, with what is known of why; from whatever thread. Not told
after `close`.
"""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a transport is asked for: a far end (`hosts.far_end`) that begins with this shipment."""

    host: str
    """Its name, for messages and for the names of processes."""
    shipment: bytes
    """The first frame: a pickled `far_end.Shipment`. The far end answers it when it has built its
    host.
    """
    device: str
    """`hosts.<name>.device`."""
    threads: int
    """Of torch, at the far end."""
    address: str | None = None
    """Of what the transport runs on, where that is a service with an address."""
    secrets: frozenset[str] = field(default_factory=frozenset[str])
    """Names of environment variables that the far end must not see."""


class Line(Protocol):
    """A line to a far end that has been started."""

    @property
    def where(self) -> str:
        """Whom it leads to, for messages: `process 4711`."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand a frame over for sending, and return at once; frames arrive whole, in order, once.

        Of a line that is broken, `Ended` is told; sending on it does nothing.
        """
        ...

    def close(self, seconds: float) -> None:
        """End the far end: it is asked to, and ended the hard way after `seconds`. Returns when it
        is gone.
        """
        ...


class Transport(Protocol):
    """A file of `comas.transports`, or one of the user's own.

    It may define `check(host)` as well, which raises a UserMistake where it cannot work here at
    all; it is called with `hosts.<name>` before anything is loaded.
    """

    def start(self, call: Call, heard: Heard, ended: Ended) -> Line:
        """Start a far end and return at once; UserMistake where it cannot be had."""
        ...
