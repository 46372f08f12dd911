"""What a far end builds its host from, as bytes: the plan, and the files of the user's own that it
needs, as source with their hash.

Leaves out: starting a far end (`team.elsewhere`), building the host (`hosts.local`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from comas.config.plugins import PACKAGE, import_file, load_builder
from comas.hosts import local
from comas.hosts.local_table import Table
from comas.hosts.plan import HostPlan
from comas.machine import use_threads
from comas.types import Host, Method, UserMistake

SHIPPED = "<comas>/"
"""How a path begins that lies in the package, wherever that is installed."""


@dataclass(frozen=True)
class SourceFile:
    """A file of the user's own."""

    path: str
    """As an absolute path of the machine that it comes from."""
    text: str
    sha256: str

    @classmethod
    def of(cls, name: str) -> SourceFile:
        """Read a file."""
        path = Path(name).resolve()
        text = path.read_text(encoding="utf-8-sig")
        return cls(str(path), text, _digest(text))

    def here(self) -> str:
        """Where the same file lies here: in its own place, or in a folder of its hash, to which it
        is written.
        """
        with_same_text = Path(self.path)
        if _digest(self.text) != self.sha256:
            raise UserMistake(f"{self.path} has changed on its way here: its SHA-256 differs")
        try:
            if _digest(with_same_text.read_text(encoding="utf-8-sig")) == self.sha256:
                return self.path
        except OSError:
            pass  # it is another machine
        folder = _private(Path(tempfile.gettempdir()) / f"comas-{self.sha256[:16]}")
        file = folder / with_same_text.name
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_text(self.text, encoding="utf-8")
        written.replace(file)  # whole, whoever else is reading it
        return str(file)


def _private(folder: Path) -> Path:
    """The folder if nobody else can write to it, or a new one: what lies there is run."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return Path(tempfile.mkdtemp(prefix="comas-"))
    if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        return Path(tempfile.mkdtemp(prefix="comas-"))
    return folder


@dataclass(frozen=True)
class Shipment:
    """Everything that a far end is given."""

    sources: tuple[SourceFile, ...]
    """Imported before the plan is read, which names their functions."""
    engine: SourceFile | None
    """Where it is a file of the user's own."""
    threads: int
    plan: bytes
    """A pickled `HostPlan` without its engine."""

    def build(self) -> tuple[Host, Method | None]:
        """Build the host in this process; also returns what it learns by."""
        for source in self.sources:
            import_file(source.here(), "method")
        plan = self._plan()
        name = plan.table.engine if self.engine is None else self.engine.here()
        engine: Any = load_builder("engines", name, f"hosts.{plan.name}.engine")
        if hasattr(engine, "check"):
            engine.check(f"hosts.{plan.name}")
        use_threads(self.threads)
        policies = {policy: _placed(place, plan.name) for policy, place in plan.policies.items()}
        under = None if plan.under is None else _placed(plan.under, plan.name)
        placed = replace(plan, engine=engine, policies=policies, under=under)
        return local.build(placed), plan.method

    def _plan(self) -> HostPlan[Table]:
        """The plan, whose functions are those of comas and of the sources."""
        try:
            return pickle.loads(self.plan)
        except (ImportError, AttributeError) as error:
            raise UserMistake(
                f"what the method learns by cannot be found at the far end ({error}): define its"
                " advantage and loss in the method's own file, or install what that imports there"
            ) from error


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


def method_files(name: str) -> list[str]:
    """The files of the user's own that a method is made of."""
    return [name] if name.endswith(".py") else []


def of_learning(method: Method) -> Method:
    """What of a method a host learns by; games stay where they are played."""
    return replace(
        method,
        play=_stays,
        settle=_stays,
        start=None,
        draw=None,
        update=None,
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
    """Where a policy's weights lie here."""
    if place.startswith(SHIPPED):
        return str(PACKAGE / place.removeprefix(SHIPPED))
    if Path(place).is_absolute() and not Path(place).exists():
        raise UserMistake(
            f"host {host}: {place} is not on this machine: put it on a disk that both machines"
            " share, or name a model of the hub"
        )
    return place


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
