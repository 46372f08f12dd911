"""Hosts elsewhere: a `LocalHost` in an actor of Ray, on this machine or on another one, and the
near end that games and loops see: `hosts.<name>.kind = "ray"`.

Texts, rewards and counts travel; tokens and weights stay in the actor, which writes checkpoints
itself, to a disk that both ends share. What is asked is one call of an asynchronous actor each, so
many are answered at once. Leaves out: the host itself (`hosts.local`).

The cluster at RAY_ADDRESS is joined, with that cluster's own token; otherwise one is started here,
which ends with its last host. Ray's processes listen on all interfaces, whatever address they are
given, and obey whoever has the token that Ray makes: without authentication none is started.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

from comas.children import python_path, without_keys
from comas.game.play import OWN
from comas.hosts.keys import RayTable
from comas.hosts.plan import HostPlan
from comas.machine import use_threads
from comas.types import (
    Account,
    Ask,
    Calls,
    Fit,
    Host,
    HostFailure,
    HostLost,
    Learned,
    Memory,
    Meter,
    Method,
    Reply,
    Sampling,
    TurnReward,
    UserMistake,
)

Table = RayTable
LOG = logging.getLogger("comas")
OBJECT_STORE = 80 * 2**20
"""Bytes, the least that Ray takes: tensors do not travel."""
AT_ONCE = 10_000
"""Calls of an actor that may be open at once."""
REACHED = 10.0
"""Seconds in which a cluster that runs has to take a connection."""
PLACED = 10.0
"""Seconds in which a cluster has to set aside what an actor asks for."""
CLOSING = 10.0
"""Seconds in which an actor has to give its host's memory back."""
PULSE = 1.0
"""Seconds between two looks at how far a learning step has come."""
NOT_IMPORTED = "failed to import on the worker"
"""Words of Ray for an actor whose class its machine cannot load."""
PACKAGE = Path(__file__).parents[1]
SHIPPED = "<comas>/"
"""How a path begins that lies in the package, wherever that is installed."""
_open: set[RayHost] = set()
"""Hosts of this process: the last one that is closed ends the cluster that the first one began."""
_began_here = threading.Event()


def check(host: str) -> None:
    """An error where Ray is not installed; `host` is `hosts.<name>`."""
    _quieten()
    try:
        import ray  # noqa: F401 - whether it is there is the question
    except ImportError as error:
        raise UserMistake(
            f'{host}.kind=ray needs a package that is not installed: pip install "comas[ray]", or'
            f" set {host}.kind=local"
        ) from error


def build(plan: HostPlan[RayTable]) -> RayHost:
    """Start the actor of a host; it loads while the caller goes on, until `RayHost.ready`."""
    table = plan.table
    return RayHost(
        plan.name,
        partial(build_there, packed(plan)),
        learns=plan.method is not None,
        cpus=table.cpus or plan.cpus,
        gpus=table.gpus,
        device=table.device,
        hidden=plan.secrets,
    )


# --- in the actor


class State(NamedTuple):
    """State of the host that the near end has to know without asking."""

    number: int
    """Later states have larger ones."""
    clock: Mapping[str, float]
    facts: Mapping[str, Any]
    counts: Mapping[str, int]
    """Counts of its meter; empty where the host has no meter."""
    warned: Sequence[tuple[int, str]]
    """Level and text of what was logged since the state before."""


class Built(NamedTuple):
    """Facts about a new host that the near end receives."""

    calls: Mapping[str, Calls | None]
    """Policy -> how its chat template writes calls of tools."""
    process: int
    node: str
    """Address of the machine."""


class HostActor:
    """Owns a host, and does what the near end asks for; each answer comes with a `State`."""

    def __init__(self) -> None:
        self._host: Any = None
        self._numbers = itertools.count()
        self._warned: list[tuple[int, str]] = []

    async def build(self, shipment: bytes, threads: int) -> tuple[Built, State]:
        """Build the host that a pickled function returns, in a thread, with so many threads of
        torch.
        """
        import ray

        self._collect_warnings()
        use_threads(threads)
        self._host = await asyncio.to_thread(_unpacked, shipment)
        calls = {policy: self._host.calls(policy) for policy in getattr(self._host, "versions", {})}
        node = ray.util.get_node_ip_address()
        return Built(calls, os.getpid(), node), self._state()

    async def do(self, verb: str, *arguments: Any) -> tuple[Any, State]:
        """Call a coroutine of the host."""
        return await getattr(self._host, verb)(*arguments), self._state()

    async def look(self) -> tuple[None, State]:
        """Tell how far it has come."""
        return None, self._state()

    async def sees(self, path: Path) -> bool:
        """Whether there is such a file or folder on this machine."""
        return await asyncio.to_thread(path.exists)

    async def close(self) -> None:
        """Give the host's threads and memory back."""
        if self._host is not None:
            await asyncio.to_thread(self._host.close)

    def _state(self) -> State:
        host = self._host
        meter: Meter | None = host.meter
        counts = {} if meter is None else meter.counts()
        warned = self._warned
        self._warned = []
        return State(next(self._numbers), dict(host.clock()), dict(host.facts()), counts, warned)

    def _collect_warnings(self) -> None:
        """Keep for the near end what is warned of in this process."""
        handler = logging.Handler(logging.WARNING)

        def emit(record: logging.LogRecord) -> None:
            self._warned.append((record.levelno, handler.format(record)))

        handler.emit = emit
        logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)


def _unpacked(shipment: bytes) -> Host:
    """The host that a pickled function returns."""
    from ray import cloudpickle

    try:
        make: Callable[[], Host] = cloudpickle.loads(shipment)
    except (ImportError, AttributeError) as error:
        raise UserMistake(
            f"what the method learns by cannot be found in the actor ({error}): install there"
            " what the files of the method and the engine import"
        ) from error
    return make()


def build_there(plan: HostPlan[RayTable]) -> Host:
    """Build the host of a packed plan in this process."""
    from comas.hosts import local

    engine: Any = plan.engine
    engine.check(f"hosts.{plan.name}")
    policies = {policy: _placed(location, plan.name) for policy, location in plan.policies.items()}
    under = None if plan.under is None else _placed(plan.under, plan.name)
    gpus = max(1, int(plan.table.gpus or 1))  # a share of one is one
    return local.build(replace(plan, policies=policies, under=under, gpus=gpus))


def _placed(location: str, host: str) -> str:
    """Find where a policy's weights lie here."""
    if location.startswith(SHIPPED):
        return str(PACKAGE / location.removeprefix(SHIPPED))
    if Path(location).is_absolute() and not Path(location).exists():
        raise UserMistake(
            f"host {host}: {location} is not on its machine: put it on a disk that both machines"
            " share, or name a model of the hub"
        )
    return location


# --- what travels there


def packed(plan: HostPlan[RayTable]) -> HostPlan[RayTable]:
    """A plan as it travels: without the game, with paths that are found on another machine."""
    engine: Any = plan.engine
    if engine is not None:  # of a module no more than is called
        engine = SimpleNamespace(build=engine.build, check=getattr(engine, "check", _no_check))
    return replace(
        plan,
        engine=engine,
        method=None if plan.method is None else of_learning(plan.method),
        policies={policy: _portable(location) for policy, location in plan.policies.items()},
        under=None if plan.under is None else _portable(plan.under),
    )


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


def _no_check(host: str) -> None:
    """Find no fault with this machine."""


def _stays(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("games are played and settled where the run is")


def _portable(location: str) -> str:
    """A folder of the package by its name there, another one by its whole path; names of models as
    they are.
    """
    path = Path(location)
    if path.exists():
        path = path.resolve()
    if path.is_absolute() and path.is_relative_to(PACKAGE):
        return SHIPPED + path.relative_to(PACKAGE).as_posix()
    return str(path) if path.is_absolute() else location


# --- the near end


class RayHost:
    """A host whose weights, engine and learner are in an actor. Made first; then `ready` waits for
    what it builds there. One event loop at a time asks.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Host],
        *,
        learns: bool,
        cpus: int = 1,
        gpus: float | None = None,
        device: str = "auto",
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        """`make` is called in the actor, which has `cpus` threads of torch; `hidden` are names of
        environment variables that no process of a cluster that is started here may see.
        """
        self.name = name
        self.learns = learns
        self.meter = Meter()
        self._state = State(-1, {"sampling": 0.0, "learning": 0.0}, {}, {}, ())
        self._built = Built({}, 0, "")
        self._closed = False
        check(f"hosts.{name}")
        shipment = _shipment(name, make)
        _connect(name, hidden)
        _open.add(self)
        try:
            self._room, wanted = _set_aside(name, cpus, gpus, device)
            self._actor = _started(self._room, wanted, cpus)
        except BaseException:
            _leave(self)
            raise
        self._building = self._actor.build.remote(shipment, cpus)

    def ready(self) -> None:
        """Wait until the actor has built its host; what went wrong there is raised here."""
        import ray
        from ray.exceptions import RayError

        try:
            self._built = self._heard(ray.get(self._building))
        except RayError as error:
            raise self._explained(error) from None

    async def _call(self, call: Any, *arguments: Any) -> Any:
        """Await a call of the actor; whoever is cancelled has it forgotten there."""
        import ray
        from ray.exceptions import RayError

        asked = call.remote(*arguments)
        try:
            return await asked
        except asyncio.CancelledError:
            ray.cancel(asked)
            raise
        except RayError as error:
            raise self._explained(error) from None

    async def _do(self, verb: str, *arguments: Any) -> Any:
        return self._heard(await self._call(self._actor.do, verb, *arguments))

    def _heard(self, answer: tuple[Any, State]) -> Any:
        """Take the state that comes with an answer; returns what was answered."""
        value, state = answer
        for level, text in state.warned:
            LOG.log(level, "host %s: %s", self.name, text)
        if state.number > self._state.number:  # answers may overtake each other
            self._state = state
            vars(self.meter).update(state.counts)
        return value

    def _explained(self, error: Any) -> Exception:
        """Return what an error of Ray stands for: what the host raised, or that the host is
        lost.
        """
        from ray.exceptions import RayError, RayTaskError

        lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
        if NOT_IMPORTED in str(error):
            reason = next((line for line in reversed(lines) if "Error: " in line), lines[-1])
            return UserMistake(
                f"hosts.{self.name}.kind=ray: a machine of the cluster cannot import comas"
                f" ({reason}): install there the comas, Python and Ray that are installed here"
            )
        cause = getattr(error, "cause", None)
        if isinstance(error, RayTaskError) and not isinstance(cause, RayError | None):
            cause.add_note(f"in the actor:\n{error}")
            return cause
        if not isinstance(error, _ends_of_actors()):  # what it raised could not travel
            return HostFailure((lines or [type(error).__name__])[-1])
        reason = " ".join(lines)[:300] or type(error).__name__
        where = f" (process {self._built.process} on {self._built.node})"
        return HostLost(f"host {self.name}{where if self._built.process else ''} is lost: {reason}")

    # --- a host

    def calls(self, policy: str) -> Calls | None:
        """How the policy's chat template writes a call of a tool."""
        return self._built.calls.get(policy)

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Whether prompt and reply fit into the context."""
        return await self._do("fits", policy, messages, sampling)

    async def ask(self, ask: Ask) -> Reply:
        """Sample one reply; with `keep` its tokens are filed, in the actor."""
        return await self._do("ask", ask)

    async def tell(self, ask: Ask, text: str) -> Reply:
        """Return `text` as a reply; with `keep` its tokens are filed, in the actor."""
        return await self._do("tell", ask, text)

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """Return the log-probs of these choices; with `keep` the tokens of the one that is drawn
        are filed, in the actor.
        """
        return await self._do("weigh", ask, choices)

    async def learn(self, rewards: Mapping[str, Sequence[TurnReward]], lr_scale: float) -> Learned:
        """Take one step per policy at `lr_scale` times its learning rate, in the actor."""
        learning = asyncio.ensure_future(self._do("learn", rewards, lr_scale))
        try:
            while not (await asyncio.wait([learning], timeout=PULSE))[0]:
                with suppress(HostLost):  # which the step itself tells
                    self._heard(await self._call(self._actor.look))
        finally:
            learning.cancel()
        return await learning

    async def save(self, path: Path) -> None:
        """Write weights, optimizer and counters below `path`, which has to be on a disk that the
        actor sees.
        """
        probe = path / f".{self.name}-{secrets.token_hex(8)}"
        probe.write_text(probe.name)
        try:
            await self._check_seen(probe, path)
        finally:
            probe.unlink()
        await self._do("save", path.resolve())

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        await self._check_seen(path, path)
        await self._do("load", path.resolve())

    async def _check_seen(self, path: Path, folder: Path) -> None:
        if not await self._call(self._actor.sees, path.resolve()):
            raise UserMistake(
                f"host {self.name}: its machine does not see {folder.resolve()}: have the run"
                " (out) on a disk that both machines share"
            )

    def clock(self) -> Mapping[str, float]:
        """Seconds in which the engine, or the learner, worked, as last reported."""
        return dict(self._state.clock)

    def facts(self) -> Mapping[str, Any]:
        """Return the host's own facts, and where it is."""
        return {**self._state.facts, "where": "ray"}

    def account(self) -> Account:
        """Nothing is billed."""
        return {}

    def close(self) -> None:
        """End the actor; one that is not ready, or does not answer, is ended all the same."""
        import ray
        from ray.exceptions import RayError

        if self._closed:
            return
        self._closed = True
        if self._built.process:
            with suppress(RayError):
                ray.get(self._actor.close.remote(), timeout=CLOSING)
        ray.kill(self._actor)
        ray.util.remove_placement_group(self._room)
        _leave(self)


def _ends_of_actors() -> tuple[type[Exception], ...]:
    """Errors of Ray for an actor, or its machine, that is gone or was never there."""
    from ray import exceptions

    return (
        exceptions.RayActorError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.OutOfMemoryError,
        exceptions.RuntimeEnvSetupError,
        exceptions.WorkerCrashedError,
    )


def _shipment(name: str, make: Callable[[], Host]) -> bytes:
    """A function as it travels: what the user's own files define goes along, since no other machine
    has these files.
    """
    pickler: Any = importlib.import_module("ray.cloudpickle")
    own_modules = [module for name, module in sys.modules.items() if name.startswith(OWN)]
    for module in own_modules:
        pickler.register_pickle_by_value(module)
    try:
        return pickler.dumps(make)
    except Exception as error:
        raise UserMistake(
            f"hosts.{name}.kind=ray: what the host is built from cannot travel ({error}): the"
            " method's credit and loss, and the engine's `build`, may use no open file, lock or"
            " thread of their file"
        ) from error
    finally:
        for module in own_modules:
            pickler.unregister_pickle_by_value(module)


# --- the cluster


def _connect(name: str, hidden: frozenset[str]) -> None:
    """Join the cluster at RAY_ADDRESS, or start one here, unless that has been done."""
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    arguments: dict[str, Any] = {
        "namespace": f"comas-{secrets.token_hex(8)}",
        "logging_level": "ERROR",
        "log_to_driver": False,
    }
    try:
        if address:
            _reach(address)
            with _own_signals():
                ray.init(address=address, **arguments)
            return
        _check_token(name)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # else all other processes come first
        # without an address Ray would join any cluster that runs on this machine
        arguments |= {"address": "local", "include_dashboard": False}
        arguments["object_store_memory"] = OBJECT_STORE
        # its processes inherit what stands there now
        with _without_keys(hidden), _own_signals():
            ray.init(**arguments)
        _began_here.set()
    except Exception as error:  # Ray raises bare ones, too
        where = f"the cluster at {address} (RAY_ADDRESS)" if address else "a cluster here"
        reasons = [" ".join(str(e).split()) for e in (error, error.__cause__) if e is not None]
        reason = ": ".join(reasons)[:300] or type(error).__name__
        raise UserMistake(f"hosts.{name}.kind=ray: {where} cannot be had: {reason}") from error


def _leave(host: RayHost) -> None:
    """End the cluster that was started here with the last of its hosts."""
    import ray

    _open.discard(host)
    if not _open and _began_here.is_set():
        _began_here.clear()
        ray.shutdown()


def _quieten() -> None:
    """Have Ray print nothing of its own: what a user has to know is an error here. Ray reads this
    when it is imported.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")


def _check_token(name: str) -> None:
    """An error for a cluster without authentication: Ray's processes listen on all interfaces."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        raise UserMistake(
            f"hosts.{name}.kind=ray: RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}, and Ray's"
            " processes listen on all interfaces: a cluster that is started here would obey"
            f" anybody; leave that variable out, or set hosts.{name}.kind=local"
        )


def _reach(address: str) -> None:
    """An error where nobody listens at an address: Ray would try for minutes."""
    if address == "auto":  # the cluster that runs on this machine
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("an address is host:port, or auto")
    socket.create_connection((host, int(port)), timeout=REACHED).close()


def _set_aside(
    name: str, cpus: int, gpus: float | None, device: str
) -> tuple[Any, dict[str, float]]:
    """A placement group with what an actor asks for, and that; an error for what no machine of the
    cluster has, or has left: Ray itself would wait for ever.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if gpus is None:
        any_gpus = any(machine.get("GPU", 0) for machine in machines)
        gpus = float(device.startswith("cuda") or (device == "auto" and any_gpus))
    wanted = {"CPU": float(cpus), "GPU": gpus} if gpus else {"CPU": float(cpus)}
    room = ray.util.placement_group([wanted])
    fits = any(all(m.get(what, 0) >= count for what, count in wanted.items()) for m in machines)
    if fits and room.wait(PLACED):
        return room, wanted
    ray.util.remove_placement_group(room)
    free = ray.available_resources()
    total = ray.cluster_resources()
    asked = ", ".join(f"{count:g} {what}" for what, count in wanted.items())
    has = ", ".join(f"{free.get(w, 0):g} of {total.get(w, 0):g} {w} free" for w in wanted)
    raise UserMistake(
        f"hosts.{name}.kind=ray asks for {asked} on one machine, and the cluster has {has}, on"
        f" {len(machines)} machines: set hosts.{name}.cpus or hosts.{name}.gpus, have fewer hosts"
        " there, or take a larger cluster"
    )


def _started(room: Any, wanted: Mapping[str, float], cpus: int) -> Any:
    """An actor in what was set aside for it."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    variables = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": str(cpus)}
    if not wanted.get("GPU"):  # of an actor without any Ray hides none
        variables["CUDA_VISIBLE_DEVICES"] = ""
    actor: Any = ray.remote(HostActor)
    return actor.options(
        num_cpus=wanted["CPU"],
        num_gpus=wanted.get("GPU", 0),
        scheduling_strategy=PlacementGroupSchedulingStrategy(room),
        max_concurrency=AT_ONCE,
        max_restarts=0,
        max_task_retries=0,
        runtime_env={"env_vars": variables},
    ).remote()


@contextmanager
def _own_signals() -> Iterator[None]:
    """In here Ray may take SIGTERM for itself; afterwards it does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _without_keys(named: frozenset[str]) -> Iterator[None]:
    """In here the environment has no keys but Ray's own."""
    everything = dict(os.environ)
    allowed = without_keys(everything, named)
    taken = {k: v for k, v in everything.items() if k not in allowed and not k.startswith("RAY_")}
    for name in taken:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(taken)
