"""A host that is an instance of the caller's: `comas.train(hosts={"mine": MyHost()})`.

No file can hold it, so there is nothing to build; the other keys of such a host say nothing.
"""

from __future__ import annotations

from comas.hosts.table import HostTable


class Table(HostTable):
    """Keys of such a host."""

    own: bool = False
    """Whether it is one; written by `comas.train`, not by hand."""
