"""Hosts at the far end of a line: what is asked arrives once, errors travel, deaths are told, and
nothing is left behind. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comas.children import without_keys
from comas.config.plugins import load_plugin
from comas.hosts.far_end import Call, FarEnd
from comas.hosts.remote import RemoteHost
from comas.team.elsewhere import of_learning
from comas.testing import check_host
from comas.transports import process
from comas.types import Ask, HostFailure, HostLost, Payoff, UserMistake
from tests.support import loopback
from tests.support.shipped import SlowShipment, Unbuildable, polite

METHOD = load_plugin("method", "comas")
DEADLINE = 60.0


def call_of(shipment: Any, **changes: Any) -> Call:
    return Call(host="far", shipment=pickle.dumps(shipment), device="cpu", threads=1, **changes)


def dialled(transport: Any, shipment: Any, patience: float = 60.0, **changes: Any) -> RemoteHost:
    host = RemoteHost("far", METHOD, patience)
    host.dial(transport.start(call_of(shipment, **changes), host.hear, host.end))
    return host


def shipment() -> SlowShipment:
    return SlowShipment("far", polite, of_learning(METHOD))


def transports() -> list[Any]:
    return [loopback, process]


@pytest.fixture(params=transports(), ids=lambda t: t.__name__.rpartition(".")[2])
def far(request: pytest.FixtureRequest) -> Iterator[RemoteHost]:
    host = dialled(request.param, shipment())
    host.ready()
    yield host
    host.close()


@pytest.fixture
def child() -> Iterator[RemoteHost]:
    host = dialled(process, shipment())
    host.ready()
    yield host
    host.close()


@pytest.fixture
def hurried() -> Iterator[RemoteHost]:
    """A child that has to show signs of life every five seconds."""
    host = dialled(process, shipment(), patience=5.0)
    host.ready()
    yield host
    host.close()


def pid_of(host: RemoteHost) -> int:
    assert host._line is not None
    return int(host._line.where.split(" ")[1])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def gone(pid: int) -> bool:
    """Whether it has ended, within the deadline."""
    until = time.monotonic() + DEADLINE
    while is_alive(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


async def ask(host: RemoteHost, text: str, turn: str = "t", keep: bool = False) -> str:
    messages = [{"role": "user", "content": text}]
    said = host.ask(Ask(turn, "a0", messages, "solution", keep, seed=3))
    return (await asyncio.wait_for(said, DEADLINE)).text


# --- what is asked


def test_texts_are_those_of_the_host(far: RemoteHost) -> None:
    async def many() -> list[str]:
        return await asyncio.gather(*(ask(far, f"q{i}", f"t{i}") for i in range(200)))

    assert asyncio.run(many()) == [f"a0 says q{i} 3" for i in range(200)]
    # and from another event loop
    assert asyncio.run(ask(far, "again")) == "a0 says again 3"


def test_asks_of_one_turn_of_the_loop_are_one_frame() -> None:
    host = dialled(loopback, shipment())
    host.ready()
    line: Any = host._line

    async def many() -> None:
        await asyncio.gather(*(ask(host, f"q{i}") for i in range(50)))
        await asyncio.gather(*(ask(host, f"r{i}") for i in range(50)))

    asyncio.run(many())
    host.close()
    assert [len(pickle.loads(frame)) for frame in line.sent] == [50, 50]


def test_the_contract_of_hosts(far: RemoteHost) -> None:
    asyncio.run(asyncio.wait_for(check_host(far, "a0"), DEADLINE))


def test_a_quick_reply_does_not_wait_for_a_slow_one(far: RemoteHost) -> None:
    async def both() -> float:
        slow = asyncio.create_task(ask(far, "wait 30", "t0"))
        began = time.monotonic()
        await ask(far, "at once", "t1")
        took = time.monotonic() - began
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return took

    assert asyncio.run(both()) < 20.0


def test_who_is_cancelled_waits_no_longer_and_the_far_end_forgets_it() -> None:
    host = dialled(loopback, shipment())
    host.ready()
    line: Any = host._line

    async def cancelled() -> None:
        task = asyncio.create_task(ask(host, "wait 600"))
        while not line._end._tasks:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while line._end._tasks:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(cancelled(), DEADLINE))
    assert not host._waiting
    host.close()


def test_a_long_reply_arrives_whole(far: RemoteHost) -> None:
    assert asyncio.run(ask(far, "long")) == "word " * 100_000


def test_what_a_library_prints_is_no_message(far: RemoteHost) -> None:
    assert asyncio.run(ask(far, "print")) == "a0 says print 3"


# --- errors


def test_errors_travel_with_their_kind_and_words(far: RemoteHost) -> None:
    with pytest.raises(UserMistake) as mistaken:
        asyncio.run(ask(far, "mistake"))
    assert str(mistaken.value) == "a mistake of the user's"
    with pytest.raises(HostFailure) as failed:
        asyncio.run(ask(far, "failure"))
    assert str(failed.value) == "the machine let us down"
    assert "shipped.py" in "".join(failed.value.__notes__), "where it happened is not told"
    with pytest.raises(KeyError, match="never said here"):
        asyncio.run(far.learn({"a0": [Payoff("t9", 1.0)]}, 1.0))


def test_an_error_that_cannot_travel_is_told_in_words(far: RemoteHost) -> None:
    with pytest.raises(HostFailure) as failed:
        asyncio.run(ask(far, "odd"))
    assert str(failed.value) == "Odd: 1"
    assert asyncio.run(ask(far, "and it goes on")) == "a0 says and it goes on 3"


@pytest.mark.parametrize(
    ("text", "said"), [("withdrawn", "CancelledError: "), ("leave", "SystemExit: 5")]
)
def test_an_engine_that_cancels_itself_or_leaves_is_told_in_words(
    far: RemoteHost, text: str, said: str
) -> None:
    with pytest.raises(HostFailure) as failed:
        asyncio.run(ask(far, text))
    assert str(failed.value) == said
    assert asyncio.run(ask(far, "and it goes on")) == "a0 says and it goes on 3"


def test_who_asked_for_what_cannot_travel_is_not_left_waiting(far: RemoteHost) -> None:
    async def both() -> list[Any]:
        asked = (ask(far, "unsendable", "t0"), ask(far, "well", "t1"))
        return await asyncio.gather(*asked, return_exceptions=True)

    failed, well = asyncio.run(both())
    assert "this text stays here" in str(failed)
    assert well == "a0 says well 3"


def test_what_took_too_long_while_it_was_built_is_told_as_it_was() -> None:
    host = RemoteHost("far", METHOD, 60.0)
    host._built(False, TimeoutError("a read took too long"))
    with pytest.raises(TimeoutError, match="a read took too long"):
        host.ready()


def test_warnings_are_logged_here(child: RemoteHost, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "comas"):
        asyncio.run(ask(child, "warn"))
        asyncio.run(ask(child, "later"))
    assert "host far: the far end warns of warn" in caplog.text


def test_what_goes_wrong_while_it_is_built(tmp_path: Path) -> None:
    host = dialled(process, Unbuildable("mistake"))
    with pytest.raises(UserMistake) as mistaken:
        host.ready()
    assert str(mistaken.value) == "base 'nothing': no such folder"
    pid = pid_of(host)
    host.close()
    assert gone(pid)
    host = dialled(process, Unbuildable("exit"))
    with pytest.raises(HostLost, match=r"host far \(process \d+\) is lost: .* exit code 5"):
        host.ready()
    host.close()


# --- deaths


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_killed_child_is_told_to_all_who_wait(child: RemoteHost) -> None:
    async def killed() -> list[Any]:
        tasks = [asyncio.create_task(ask(child, "wait 600", f"t{i}")) for i in range(3)]
        await ask(child, "at once")
        os.kill(pid_of(child), signal.SIGKILL)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), DEADLINE)

    errors = asyncio.run(killed())
    assert {type(error) for error in errors} == {HostLost}
    assert "ended by SIGKILL" in str(errors[0])
    with pytest.raises(HostLost):  # and to who asks later, at once
        asyncio.run(ask(child, "anybody?"))
    with pytest.raises(HostLost):
        asyncio.run(child.save(Path()))


def test_last_words_are_told(child: RemoteHost) -> None:
    with pytest.raises(HostLost, match="exit code 7; its last words: these are my last words"):
        asyncio.run(ask(child, "die"))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_child_that_shows_no_sign_of_life_is_given_up(hurried: RemoteHost) -> None:
    pid = pid_of(hurried)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(HostLost, match="no sign of life for"):
        asyncio.run(ask(hurried, "anybody?"))
    assert gone(pid)


def test_a_busy_child_lives(hurried: RemoteHost) -> None:
    # longer than its patience, in which its event loop does nothing else
    assert asyncio.run(ask(hurried, "block 8")) == "a0 says block 8 3"


NEAR = """
import os, sys, time
from tests.transports.test_lines import dialled, pid_of, process, shipment
host = dialled(process, shipment())
host.ready()
print(pid_of(host), flush=True)
if sys.argv[1] == "leave":
    sys.exit()
if sys.argv[1] == "close":
    host.close()
time.sleep(600)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("how", ["kill", "leave", "close"])
def test_no_child_is_left_behind(how: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    near = subprocess.Popen(
        [sys.executable, "-c", NEAR, how], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert near.stdout is not None
    pid = int(near.stdout.readline())
    if how == "kill":
        near.kill()
    assert gone(pid)
    near.kill()
    near.communicate(timeout=DEADLINE)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_is_for_the_near_end(child: RemoteHost) -> None:
    os.kill(pid_of(child), signal.SIGINT)
    assert asyncio.run(ask(child, "still there")) == "a0 says still there 3"


# --- a line that breaks


CUTTING = """
import os, sys
os.write(int(sys.argv[2]), (1000).to_bytes(4, "big") + b"half")
"""


class SlowToStart(threading.Thread):
    """A thread that runs before who started it goes on: a busy machine."""

    def start(self) -> None:
        super().start()
        time.sleep(0.3)


@pytest.mark.parametrize("thread", [threading.Thread, SlowToStart])
def test_a_line_that_is_cut_within_a_message(thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def start_cutting(command: list[str], **keywords: Any) -> subprocess.Popen[bytes]:
        ends = command[-2:]
        return start([sys.executable, "-c", CUTTING, *ends], **keywords)

    monkeypatch.setattr(process.subprocess, "Popen", start_cutting)
    monkeypatch.setattr(process.threading, "Thread", thread)
    host = dialled(process, shipment())
    with pytest.raises(HostLost, match="its messages were cut; its process ended"):
        host.ready()
    host.close()


# --- secrets


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_nothing_listens_and_no_end_of_a_line_is_left_open(child: RemoteHost) -> None:
    def pipes() -> int:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum("pipe:" in os.readlink(link) for link in links if link.is_symlink())

    before = pipes()
    other = dialled(process, shipment())
    other.ready()
    assert pipes() == before + 3  # two of the line, and what is printed there
    other.close()
    assert pipes() == before


def test_keys_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "hidden")
    monkeypatch.setenv("MY_JUDGE", "hidden")
    monkeypatch.setenv("HF_TOKEN", "needed")
    host = dialled(process, shipment(), secrets=frozenset({"MY_JUDGE"}))
    host.ready()
    seen = asyncio.run(ask(host, "environment")).split()
    host.close()
    assert "HF_TOKEN" in seen
    assert not {"JUDGE_API_KEY", "MY_JUDGE"} & set(seen)


def test_what_counts_as_a_key() -> None:
    variables = {"A_TOKEN": "", "TOKENIZERS_PARALLELISM": "", "PATH": "", "DB_PASSWORD": ""}
    assert set(without_keys(variables, frozenset({"PATH"}))) == {"TOKENIZERS_PARALLELISM"}


def test_a_child_sees_its_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(host="left", shipment=b"", device="cuda:2", threads=1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert process.environment(call)["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4")
    assert process.environment(call)["CUDA_VISIBLE_DEVICES"] == "5"


# --- checkpoints


@pytest.mark.parametrize("shared", [True, False])
def test_the_far_end_writes_checkpoints_to_a_disk_that_both_share(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = dialled(loopback, shipment())
    host.ready()
    if not shared:

        async def sees(self: FarEnd, place: Path) -> bool:
            return False

        monkeypatch.setattr(FarEnd, "sees", sees)

    async def work() -> str:
        await ask(host, "q", "t0", keep=True)
        await host.learn({"a0": [Payoff("t0", 1.0)]}, 1.0)
        await host.save(tmp_path)
        await ask(host, "q", "t1", keep=True)
        await host.learn({"a0": [Payoff("t1", 1.0)]}, 1.0)
        return (tmp_path / "scripted.json").read_text()

    if shared:
        assert asyncio.run(asyncio.wait_for(work(), DEADLINE)) == '{"a0": 1}'
    else:
        with pytest.raises(UserMistake, match=r"does not see .*a disk that both machines share"):
            asyncio.run(asyncio.wait_for(work(), DEADLINE))
    assert [file.name for file in tmp_path.iterdir()] == ["scripted.json"] * shared
    host.close()


def test_a_full_disk_at_the_far_end_is_told(far: RemoteHost, tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(far.save(tmp_path))
