"""Hosts of a config that are to be elsewhere: each gets its far end, all load side by side.

What travels first is a `Shipment`: the host's plan, and as source the files of the user's own that
it needs. Leaves out: hosts here (`team.build`), how frames travel (`comas.transports`), building
the host at the far end (`hosts.local`).
"""

from __future__ import annotations

import linecache
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from comas.config.plan import Plan
from comas.config.plugins import PACKAGE, import_file, load_builder
from comas.config.schema import HostConfig
from comas.hosts import local
from comas.hosts.far_end import Call, Transport
from comas.hosts.plan import HostPlan
from comas.hosts.remote import RemoteHost
from comas.hosts.table import LocalTable as Table
from comas.machine import gpus, usable_cpus, use_threads
from comas.types import Host, Memory, Method, UserMistake

SHIPPED = "<comas>/"
"""How a path begins that lies in the package, wherever that is installed."""


def check_transport(name: str, table: HostConfig) -> None:
    """An error for a transport that cannot work here, or for GPUs that are not here; the far end
    would tell of them by another number.
    """
    module = load_builder("transports", table.where, f"hosts.{name}.where")
    if hasattr(module, "check"):
        module.check(f"hosts.{name}")
    kind, _, first = table.device.partition(":")
    if table.on_this_machine and kind == "cuda" and int(first or 0) >= (here := gpus()):
        raise UserMistake(
            f"hosts.{name}.device={table.device}: {here} GPUs can be seen here: set a lower number"
            f" or hosts.{name}.device=cpu, or see to CUDA_VISIBLE_DEVICES"
        )


def call_up(team: Plan, plan: HostPlan[Any]) -> RemoteHost:
    """Start the far end of a host that is planned; it loads while the caller goes on, until
    `RemoteHost.ready`.
    """
    config = team.config
    table: HostConfig = plan.table
    transport: Transport = load_builder("transports", table.where, f"hosts.{plan.name}.where")
    # the run's threads, or a share of the CPUs
    elsewhere = sum(other.elsewhere for other in config.hosts.values())
    threads = table.threads or config.threads or max(1, usable_cpus() // elsewhere)
    # a far end has one GPU in sight
    device = "cuda:0" if table.device.startswith("cuda:") else table.device
    travelling = replace(plan, table=table.model_copy(update={"device": device}))
    sources = [config.method] if config.method.endswith(".py") else []
    hosts = config.hosts.values()
    keys = [other.key_env for other in hosts]
    keys += [variable for other in hosts for variable in (other.header_env or {}).values()]
    call = Call(
        host=plan.name,
        shipment=pack(travelling, sources, threads),
        device=table.device,
        threads=threads,
        address=table.address,
        secrets=frozenset(key for key in keys if key is not None),
    )
    host = RemoteHost(plan.name, plan.method, table.patience, table.device)
    host.dial(transport.start(call, host.hear, host.end))
    return host


@dataclass(frozen=True)
class SourceFile:
    """A file of the user's own."""

    path: str
    """As an absolute path of the machine that it comes from."""
    text: str

    @classmethod
    def of(cls, name: str) -> SourceFile:
        """Read a file."""
        path = Path(name).resolve()
        return cls(str(path), path.read_text(encoding="utf-8-sig"))

    @contextmanager
    def here(self) -> Iterator[str]:
        """Yield where the same file lies here while it is imported: in its own place, or in a new
        folder that nobody else can write to, since what lies there is run.

        The folder is gone afterwards, also where the far end is killed later; tracebacks still show
        the lines of the file.
        """
        own_place = Path(self.path)
        try:
            same = own_place.read_text(encoding="utf-8-sig") == self.text
        except OSError:
            same = False  # it is another machine
        if same:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="comas-") as folder:
            file = Path(folder).resolve() / own_place.name
            file.write_text(self.text, encoding="utf-8")
            yield str(file)
        # without a time of the file linecache keeps the lines, though the file is gone
        lines = self.text.splitlines(keepends=True)
        linecache.cache[str(file)] = (len(self.text), None, lines, str(file))


@dataclass(frozen=True)
class Shipment:
    """Everything that a far end is given."""

    sources: tuple[SourceFile, ...]
    """Imported before the plan is read, which names their functions."""
    engine: SourceFile | None
    """The engine's file, where it is one of the user's own."""
    threads: int
    plan: bytes
    """A pickled `HostPlan` without its engine."""

    def build(self) -> tuple[Host, Method | None]:
        """Build the host in this process; also returns what it learns by."""
        for source in self.sources:
            with source.here() as place:
                import_file(place, "method")
        try:
            plan: HostPlan[Table] = pickle.loads(self.plan)
        except (ImportError, AttributeError) as error:
            raise UserMistake(
                f"what the method learns by cannot be found at the far end ({error}): define its"
                " credit and loss in the method's own file, or install what that imports there"
            ) from error
        own = nullcontext(plan.table.engine) if self.engine is None else self.engine.here()
        with own as name:
            engine: Any = load_builder("engines", name, f"hosts.{plan.name}.engine")
        if hasattr(engine, "check"):
            engine.check(f"hosts.{plan.name}")
        use_threads(self.threads)
        policies = {policy: _placed(place, plan.name) for policy, place in plan.policies.items()}
        under = None if plan.under is None else _placed(plan.under, plan.name)
        placed = replace(plan, engine=engine, policies=policies, under=under)
        return local.build(placed), plan.method


def pack(plan: HostPlan[Table], sources: Iterable[str], threads: int) -> bytes:
    """A shipment as a frame; `sources` are the user's own files that define its method."""
    table = plan.table
    engine = SourceFile.of(table.engine) if table.engine.endswith(".py") else None
    travelling = replace(
        plan,
        engine=None,
        work=None,
        method=None if plan.method is None else of_learning(plan.method),
        policies={policy: _portable(place) for policy, place in plan.policies.items()},
        under=None if plan.under is None else _portable(plan.under),
    )
    try:
        pickled = pickle.dumps(travelling, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserMistake(
            f"hosts.{plan.name}.where={table.where}: the method cannot travel ({error}): define"
            " its advantage and loss at the top of a file, not within a function"
        ) from error
    files = tuple(SourceFile.of(name) for name in sources)
    return pickle.dumps(Shipment(files, engine, threads, pickled), protocol=5)


def of_learning(method: Method) -> Method:
    """Keep of a method what a host learns by; games stay where they are played."""
    return replace(
        method,
        play=_stays,
        settle=_stays,
        memory=Memory(),
        measure=None,
        presets={},
        team={},
    )


def _stays(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("games are played and settled where the run is")


def _portable(place: str) -> str:
    """A folder of the package by its name there, another one by its whole path; names of models as
    they are.
    """
    path = Path(place)
    if path.exists():
        path = path.resolve()
    if path.is_absolute() and path.is_relative_to(PACKAGE):
        return SHIPPED + path.relative_to(PACKAGE).as_posix()
    return str(path) if path.is_absolute() else place


def _placed(place: str, host: str) -> str:
    """Find where a policy's weights lie here."""
    if place.startswith(SHIPPED):
        return str(PACKAGE / place.removeprefix(SHIPPED))
    if Path(place).is_absolute() and not Path(place).exists():
        raise UserMistake(
            f"host {host}: {place} is not on this machine: put it on a disk that both machines"
            " share, or name a model of the hub"
        )
    return place
