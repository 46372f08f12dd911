"""What the hosts of a run take, against the memory of the devices that they are on.

Leaves out: the estimate (`forecast.memory`), choosing values with which they fit
(`forecast.fitting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from comas.machine import Memory

TIGHT = 0.9
"""Above this share a run is warned of."""
Needs = dict[str, int]


@dataclass(frozen=True)
class HostFit:
    """What one host with weights takes, by the estimate."""

    name: str
    device: str
    needs: Needs
    """Bytes by what they are for; empty where that is unknown."""
    unknown: str | None = None
    """Why, then."""
    chosen: Mapping[str, int] = field(default_factory=dict)
    """Keys that had no value, and what they were given."""

    @property
    def peak(self) -> int:
        """Bytes."""
        return self.needs.get("bytes at the peak", 0)

    @property
    def busiest(self) -> str:
        """What the host does at its peak."""
        return "learning" if learning_bytes(self.needs) > sampling_bytes(self.needs) else "sampling"

    @property
    def busiest_key(self) -> str:
        """The key that bounds what the host does at its peak."""
        key = "tokens_per_pass" if self.busiest == "learning" else "max_rows"
        return f"hosts.{self.name}.{key}"

    def chosen_pairs(self) -> list[str]:
        """The keys that had no value, with the values that they were given."""
        return [f"hosts.{self.name}.{key}={_spelt(v)}" for key, v in self.chosen.items()]


def _spelt(value: int) -> str:
    """As TOML has it."""
    return str(value).lower()


@dataclass(frozen=True)
class Fit:
    """A run's hosts against the memory of the devices that they are on."""

    hosts: Sequence[HostFit]
    memory: Mapping[str, Memory]
    """Device -> what it can give now, or what the config allows."""
    allowed: bool = False
    """Whether the config says how much it may be."""

    def peak_of(self, device: str) -> int:
        """Bytes at the peak of all hosts on a device: they work side by side."""
        return sum(host.peak for host in self.hosts if host.device == device)

    def share(self, device: str) -> float:
        """Of what the device can give; 0 where that is unknown."""
        usable = self.memory[device].usable
        return self.peak_of(device) / max(1, usable) if usable is not None else 0.0

    def too_large(self) -> list[str]:
        """Devices that cannot hold what is on them."""
        return [device for device in self.memory if self.share(device) > 1]

    def tight(self) -> list[str]:
        """Devices that hold it with little to spare."""
        return [device for device in self.memory if TIGHT < self.share(device) <= 1]

    def compared(self, device: str) -> str:
        """`about 7.6 GB at the peak (learning) of 21.4 GB free on the CPU`."""
        doing = ", ".join(dict.fromkeys(host.busiest for host in self._known_on(device)))
        free = str(self.memory[device])
        if self.allowed:
            usable = (self.memory[device].usable or 0) / 1e9
            free = f"{usable:.1f} GB that memory={usable:g} allows"
        place = "the CPU" if device == "cpu" else device
        peak = self.peak_of(device) / 1e9
        return f"about {peak:.1f} GB at the peak ({doing}), {free} on {place}"

    def _known_on(self, device: str) -> list[HostFit]:
        """The hosts on a device whose needs are known."""
        return [host for host in self.hosts if host.device == device and host.needs]

    def notes(self) -> list[str]:
        """What is said at the start: what was chosen and why, what is tight, what is not known."""
        return [*self._unknown_notes(), *self._chosen_notes(), *self.tight_notes()]

    def _unknown_notes(self) -> Iterator[str]:
        for host in self.hosts:
            if host.unknown:
                values = ", ".join(f"{key}={value}" for key, value in host.chosen.items())
                note = f"memory of host {host.name} is not known ({host.unknown})"
                yield f"{note}: {values}" if values else note

    def _chosen_notes(self) -> Iterator[str]:
        for device in self.memory:
            chosen = [pair for host in self._known_on(device) for pair in host.chosen_pairs()]
            if chosen:
                pairs = ", ".join(chosen)
                yield f"memory: {self.compared(device)}, with {pairs}, which follow from that"

    def tight_notes(self) -> Iterator[str]:
        """A warning for each device that holds its hosts with little to spare."""
        for device in self.tight():
            keys = " and ".join(host.busiest_key for host in self._known_on(device))
            yield f"memory is tight: {self.compared(device)}; lower {keys} if it runs out"


def learning_bytes(needs: Needs) -> int:
    """Those of a learner's pass with what is alive beside it."""
    parts = [size for part, size in needs.items() if part.startswith("bytes of a learner's pass")]
    return sum(parts)


def sampling_bytes(needs: Needs) -> int:
    """Those of sampling."""
    return needs.get("bytes of sampling, caches included", 0)


def kept_bytes(needs: Needs) -> int:
    """Those that are there whatever a host does."""
    return needs["bytes at the peak"] - max(learning_bytes(needs), sampling_bytes(needs))
