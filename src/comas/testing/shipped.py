"""A scripted host for the far end of a line: for tests of transports, and to measure what they
cost.

Leaves out: starting the line (`comas.transports`).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from comas.hosts.far_end import Call, Transport
from comas.hosts.remote import RemoteHost
from comas.team.elsewhere import of_learning
from comas.testing.scripted import Script, Scripted
from comas.types import Method


@dataclass(frozen=True)
class ScriptedShipment:
    """What a `Scripted` host is built from; the script is a function at the top of a module."""

    name: str
    script: Script
    method: Method

    def build(self) -> tuple[Scripted, Method]:
        """Build it."""
        return Scripted(self.script, self.name), self.method


def scripted_elsewhere(
    transport: Transport, script: Script, method: Method, name: str = "script", patience: float = 60
) -> RemoteHost:
    """A scripted host at the far end of a line of this transport, ready to be asked."""
    shipment = pickle.dumps(ScriptedShipment(name, script, of_learning(method)))
    host = RemoteHost(name, method, patience)
    call = Call(host=name, shipment=shipment, device="cpu", threads=1)
    host.dial(transport.start(call, host.hear, host.end))
    host.ready()
    return host
