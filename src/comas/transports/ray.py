"""Hosts as actors of Ray, on this machine or on others: `hosts.<name>.where = "ray"`.

One plain asynchronous actor per host. Frames go to it one call each and come back by a call that
waits for them, so that what a flush of the driver costs does not depend on how many discussions it
serves. What a host needs is compared with what the cluster has before an actor is asked for: Ray
itself would wait for ever. Leaves out: what the actor does (`hosts.far_end`).

A cluster that is started here ends with this process. Ray's processes listen on all interfaces,
whatever address they are given, and obey whoever has the token that Ray makes, so without
authentication none is started. One that runs already is joined by `hosts.<name>.address` or
RAY_ADDRESS, with that cluster's own token.
"""

# where the package is not installed, pyright takes this file for it
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from comas.children import python_path, without_keys
from comas.hosts.far_end import Call, Ended, FarEnd, Heard
from comas.types import UserMistake

OBJECT_STORE = 80 * 2**20
"""Bytes, the least that Ray takes: frames are small and tensors do not travel."""
SIDE_BY_SIDE = 1000
"""Calls of an actor that may be open at once."""
REACHED = 10.0
"""Seconds in which a cluster that runs has to take a connection."""
_open: set[RayLine] = set()
"""Lines of this process: the last one that is closed ends the cluster that the first one began."""
_began_here = threading.Event()


def check(host: str) -> None:
    """An error where Ray is not installed."""
    try:
        import ray  # noqa: F401 - whether it is there is the question
    except ImportError as error:
        raise UserMistake(
            f'{host}.where=ray needs a package that is not installed: pip install "comas[ray]", or'
            f" set {host}.where=process"
        ) from error


def start(call: Call, heard: Heard, ended: Ended) -> RayLine:
    """Start an actor; it is given its shipment at once."""
    check(f"hosts.{call.host}")
    connect(call)
    line = RayLine(call, resources_of(call), heard, ended)
    _open.add(line)
    return line


class RayLine:
    """An actor and the thread that waits for its frames."""

    def __init__(self, call: Call, wanted: dict[str, float], heard: Heard, ended: Ended) -> None:
        import ray

        self._heard = heard
        self._ended = ended
        self._closing = threading.Event()
        self._numbers = itertools.count()
        variables = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": str(call.threads)}
        actor: Any = ray.remote(Actor)
        self._actor = actor.options(
            num_cpus=wanted["CPU"],
            num_gpus=wanted.get("GPU", 0),
            max_concurrency=SIDE_BY_SIDE,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": variables},
        ).remote()
        self._begun = self._actor.begin.remote(call.shipment)
        self.where = f"ray actor {self._actor._actor_id.hex()[:8]}"
        threading.Thread(target=self._read, name=f"host-{call.host}", daemon=True).start()

    def send(self, frame: bytes) -> None:
        self._actor.deliver.remote(next(self._numbers), frame)

    def close(self, seconds: float) -> None:
        import ray

        self._closing.set()
        if seconds > 0:
            # an actor that does not answer is ended all the same
            with suppress(Exception):
                ray.get(self._actor.end.remote(), timeout=seconds)
        with suppress(Exception):  # it is gone already
            ray.kill(self._actor)
        _open.discard(self)
        if not _open and _began_here.is_set():
            _began_here.clear()
            ray.shutdown()

    def _read(self) -> None:
        import ray

        try:
            while not self._closing.is_set():
                for frame in ray.get(self._actor.collect.remote()):
                    self._heard(frame)
        except Exception as error:  # noqa: BLE001 - Ray has many words for an actor that is gone
            if not self._closing.is_set():
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                self._ended(f"{type(error).__name__}: {' '.join(lines)[:300]}")


class Actor:
    """What runs at the far end."""

    def __init__(self) -> None:
        self._end: FarEnd | None = None
        self._out: list[bytes] = []
        self._some = asyncio.Event()
        self._early: dict[int, bytes] = {}
        self._next = 0

    async def begin(self, shipment: bytes) -> None:
        """Build the host, in a thread: signs of life go on meanwhile."""
        loop = asyncio.get_running_loop()

        def send(frame: bytes) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody listens
                loop.call_soon_threadsafe(self._put, frame)

        end = FarEnd(send)
        end.forward_warnings()
        if await asyncio.to_thread(end.build, shipment):
            self._end = end
            self._receive()

    async def deliver(self, number: int, frame: bytes) -> None:
        """Take a frame; they are done in the order of their numbers, however they come."""
        self._early[number] = frame
        self._receive()

    async def collect(self) -> Sequence[bytes]:
        """All frames since the last call, as soon as there is one."""
        await self._some.wait()
        self._some.clear()
        frames = self._out
        self._out = []
        return frames

    async def end(self) -> None:
        """Give the host's memory back."""
        if self._end is not None:
            await asyncio.to_thread(self._end.close)

    def _put(self, frame: bytes) -> None:
        self._out.append(frame)
        self._some.set()

    def _receive(self) -> None:
        while self._end is not None and self._next in self._early:
            self._end.receive(self._early.pop(self._next))
            self._next += 1


def connect(call: Call) -> None:
    """Join the cluster that is named, or start one here, unless that has been done."""
    import ray

    if ray.is_initialized():
        return
    address = call.address or os.environ.get("RAY_ADDRESS")
    namespace = f"comas-{secrets.token_hex(8)}"
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address:
            _reach(address)
            ray.init(address=address, namespace=namespace, **quiet)
            return
        _check_token(call.host)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with _without_keys(call.secrets):  # its processes inherit what stands there now
            ray.init(
                namespace=namespace,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                **quiet,
            )
        _began_here.set()
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines()
        where = f"the cluster at {address}" if address else "a cluster here"
        raise UserMistake(
            f"hosts.{call.host}.where=ray: {where} cannot be had: {(lines or ['no reason'])[0]}"
        ) from error


def _check_token(host: str) -> None:
    """An error for a cluster without authentication: Ray's processes listen on all interfaces."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        raise UserMistake(
            f"hosts.{host}.where=ray: RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}, and Ray's"
            " processes listen on all interfaces: a cluster that is started here would obey"
            f" anybody; leave that variable out, or set hosts.{host}.where=process"
        )


def _reach(address: str) -> None:
    """An error where nobody listens at an address: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"an address is host:port, and this is {address!r}")
    socket.create_connection((host, int(port)), timeout=REACHED).close()


def resources_of(call: Call) -> dict[str, float]:
    """What an actor is to have: a CPU per thread, and a GPU where its device is one; an error for
    what the cluster has not, or has given to others.
    """
    import ray

    available = ray.cluster_resources()
    free = ray.available_resources()
    needed = {"CPU": float(call.threads)}
    if call.device.startswith("cuda") or (call.device == "auto" and available.get("GPU", 0)):
        needed["GPU"] = 1.0
    for what, count in needed.items():
        if available.get(what, 0) < count:
            had = f"has {available.get(what, 0):g} in all"
        elif free.get(what, 0) < count:
            had = f"has {free.get(what, 0):g} free of {available[what]:g}"
        else:
            continue
        key = "threads" if what == "CPU" else "device"
        raise UserMistake(
            f"hosts.{call.host}.where=ray asks for {count:g} {what}, and the cluster {had}: set"
            f" hosts.{call.host}.{key}, put fewer hosts there, or start a larger cluster"
        )
    return needed


@contextmanager
def _without_keys(named: frozenset[str]) -> Iterator[None]:
    """In here the environment has no keys but Ray's own."""
    everything = dict(os.environ)
    kept = without_keys(everything, named)
    taken = {k: v for k, v in everything.items() if k not in kept and not k.startswith("RAY_")}
    for name in taken:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(taken)
