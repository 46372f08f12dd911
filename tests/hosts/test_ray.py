"""Hosts in actors of Ray: what is asked arrives once, errors travel, deaths are told in a line,
and two hosts elsewhere compute what two here do, bit by bit. All but what starts a cluster of its
own has one of two machines, which are processes here and pretend to have GPUs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import comas
from comas.children import without_keys
from comas.hosts import ray as hosts_ray
from comas.hosts.keys import RayTable
from comas.hosts.plan import HostPlan
from comas.hosts.ray import RayHost
from comas.seams import AdapterSpec
from comas.storage.run import Run
from comas.testing import check_host
from comas.types import Ask, HostFailure, HostLost, UserMistake
from tests.support.remembering import METHOD
from tests.support.runs import SMALL, essence
from tests.support.shipped import not_started, slow, unbuildable

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
DEADLINE = 120.0
KEYS: dict[str, Any] = {**SMALL, "eval_every": 0, "test_questions": 0, "checkpoint_every": 1}
TURNS = 192
"""Of four steps with 16 questions."""
GPUS = 4
"""Of each machine."""
LARGE = 9
"""CPUs of the machine without memory; the others have one less."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines with eight CPUs and four GPUs each, joined as a user joins a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "300")
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        import ray
        from ray.cluster_utils import Cluster

        machine = {"num_cpus": LARGE - 1, "num_gpus": GPUS, "object_store_memory": 80 * 2**20}
        cluster = Cluster(initialize_head=True, head_node_args=machine)
        cluster.add_node(**machine)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def far(cluster: Any) -> Iterator[RayHost]:
    host = RayHost("far", slow, learns=True, gpus=0)
    host.ready()
    yield host
    host.close()


async def ask(host: RayHost, text: str, turn: str = "t", keep: bool = False) -> str:
    messages = [{"role": "user", "content": text}]
    reply = await host.ask(Ask(turn, "a0", messages, "solution", keep, seed=3))
    return reply.text


def process_of(host: RayHost) -> int:
    return host._built.process


def node_of(host: RayHost) -> str:
    """The machine of the cluster that a host is on."""
    import ray

    return ray.get(
        host._actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    )


# --- a host


def test_the_contract_of_hosts(far: RayHost) -> None:
    asyncio.run(asyncio.wait_for(check_host(far, "a0"), DEADLINE))


def test_texts_are_those_of_the_host_in_any_loop(far: RayHost) -> None:
    async def many() -> list[str]:
        return await asyncio.gather(*(ask(far, f"q{i}", f"t{i}") for i in range(200)))

    assert asyncio.run(many()) == [f"a0 says q{i} 3" for i in range(200)]
    assert asyncio.run(ask(far, "long")) == "word " * 100_000


def test_games_do_not_wait_for_each_other(far: RayHost) -> None:
    async def sixteen() -> float:
        began = time.monotonic()
        await asyncio.gather(*(ask(far, "wait 1.0", f"t{i}") for i in range(16)))
        return time.monotonic() - began

    assert asyncio.run(sixteen()) < 8.0


def test_who_is_cancelled_waits_no_longer_and_others_do(far: RayHost) -> None:
    async def given_up() -> str:
        waiting = asyncio.ensure_future(ask(far, "wait 600"))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return await ask(far, "next")

    assert asyncio.run(asyncio.wait_for(given_up(), DEADLINE)) == "a0 says next 3"


def test_errors_travel_with_their_kind_and_words(far: RayHost) -> None:
    for text, kind, words in (
        ("mistake", UserMistake, "a mistake of the user's"),
        ("failure", HostFailure, "the machine let us down"),
    ):
        with pytest.raises(kind) as raised:
            asyncio.run(ask(far, text))
        assert str(raised.value) == words
        assert "in polite" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("text", ["odd", "unsendable"])
def test_what_cannot_travel_is_told_in_words(text: str, far: RayHost) -> None:
    with pytest.raises((HostFailure, TypeError)):
        asyncio.run(asyncio.wait_for(ask(far, text), DEADLINE))
    assert asyncio.run(ask(far, "and now?")) == "a0 says and now? 3"


def test_warnings_are_logged_here(far: RayHost, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(ask(far, "warn"))
    assert "host far: the far end warns of warn" in caplog.text


def test_what_goes_wrong_while_it_is_built(cluster: Any) -> None:
    for how, kind, words in (
        ("mistake", UserMistake, "base 'nothing': no such folder"),
        ("exit", HostLost, "host far is lost: .*died"),
    ):
        host = RayHost("far", partial(unbuildable, how), learns=False)
        with pytest.raises(kind, match=words):
            host.ready()
        host.close()


def test_a_machine_without_comas_is_told_in_one_line() -> None:
    from ray._private.function_manager import FunctionActorManager
    from ray.exceptions import RayTaskError

    stands_in: Any = FunctionActorManager._create_fake_actor_class  # what Ray makes of it there
    why = (
        "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'comas'\n"
    )
    actor = stands_in(None, "HostActor", ["build"], why)
    with pytest.raises(RuntimeError) as there:
        actor().build()
    host = RayHost.__new__(RayHost)
    host.name = "far"
    raised = RayTaskError("HostActor.build", f"ray::build()\n{there.value}", there.value)
    told = host._explained(raised)
    assert isinstance(told, UserMistake)
    assert re.match(r"hosts\.far\..*No module named 'comas'.*install", str(told))
    assert "\n" not in str(told)


def test_a_folder_that_the_actor_does_not_see(far: RayHost, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"does not see .*gone"):
        asyncio.run(far.load(tmp_path / "gone"))


def test_a_full_disk_is_told(far: RayHost, tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    with pytest.raises(OSError, match="No space left on device"):
        asyncio.run(far.save(tmp_path))


# --- the cluster


def test_hosts_are_on_different_machines_where_one_has_too_few_gpus(cluster: Any) -> None:
    hosts = [RayHost(name, slow, learns=False, gpus=GPUS - 1) for name in ("left", "right")]
    for host in hosts:
        host.ready()
    assert len({node_of(host) for host in hosts}) == 2
    for host in hosts:
        host.close()


def test_eight_gpus_take_eight_hosts_and_a_ninth_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as opened:
        for i in range(2 * GPUS - 1):
            opened.enter_context(closing(RayHost(f"h{i}", slow, learns=False, gpus=1)))
        with closing(RayHost("h7", slow, learns=False, gpus=1)), monkeypatch.context() as patch:
            patch.setattr(hosts_ray, "PLACED", 2.0)
            with pytest.raises(UserMistake) as refused:
                RayHost("h8", slow, learns=False, gpus=1)
        assert "hosts.h8.kind=ray asks for 1 CPU, 1 GPU on one machine" in str(refused.value)
        assert "0 of 8 GPU free" in str(refused.value)
        RayHost("h8", slow, learns=False, gpus=1).close()  # as soon as one is free


def test_vllm_would_have_the_gpus_of_its_actor_and_no_others(cluster: Any, untaught: Path) -> None:
    taken: list[tuple[str, str]] = []
    with ExitStack() as opened:
        for name, gpus in (
            *(("left", 2), ("right", 2), ("third", 2), ("fourth", 1), ("fifth", 0.5)),
        ):
            plan = HostPlan(
                name=name,
                table=RayTable(device="cpu", gpus=gpus),
                policies={"a": str(untaught), "b": str(untaught)},
                engine=SimpleNamespace(build=not_started),
                under=str(untaught),
                shapes=dict.fromkeys("ab", AdapterSpec(4)),
            )
            host = opened.enter_context(closing(hosts_ray.build(plan)))
            with pytest.raises(UserMistake) as told:
                host.ready()
            arguments = json.loads(str(told.value))
            assert arguments.get("tensor_parallel_size", 1) == len(arguments["visible"])
            assert arguments.get("distributed_executor_backend") == ("mp" if gpus > 1 else None)
            assert arguments["max_loras"] == 3
            assert len(arguments["visible"]) == max(1, gpus)
            taken += [(node_of(host), gpu) for gpu in arguments["visible"]]
    assert len(set(taken)) == len(taken) == 2 * GPUS


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"cpus": 1000}, "asks for 1000 CPU, 1 GPU on one machine"),
        ({"gpus": 2 * GPUS}, r"asks for 1 CPU, 8 GPU on one machine, .* of 8 GPU free"),
    ],
)
def test_what_no_machine_has_is_refused_at_once(
    wanted: dict[str, int], words: str, cluster: Any
) -> None:
    with pytest.raises(UserMistake, match=words):
        RayHost("far", slow, learns=False, **wanted)


def test_an_actor_that_runs_out_of_memory(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    machine = cluster.add_node(num_cpus=LARGE, object_store_memory=80 * 2**20)
    host = RayHost("far", slow, learns=False, cpus=LARGE, gpus=0)

    def used() -> None:
        host.ready()
        asyncio.run(asyncio.wait_for(ask(host, "wait 600"), DEADLINE))

    with pytest.raises(HostLost, match=r"host far .*is lost: .*memory"):
        used()
    host.close()
    monkeypatch.undo()
    cluster.remove_node(machine)


def test_a_machine_that_is_gone(cluster: Any) -> None:
    machine = cluster.add_node(num_cpus=LARGE, object_store_memory=80 * 2**20)
    host = RayHost("far", slow, learns=False, cpus=LARGE, gpus=0)
    host.ready()

    async def lost() -> None:
        waiting = asyncio.ensure_future(ask(host, "wait 600"))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(cluster.remove_node, machine, allow_graceful=False)
        await waiting

    with pytest.raises(HostLost, match=r"host far .*is lost: "):
        asyncio.run(asyncio.wait_for(lost(), DEADLINE))
    host.close()


# --- runs


def trained(folder: Path, base: Path, kind: str, hooks: Any = (), **changes: Any) -> Run:
    """A run of two hosts of a kind."""
    hosts = {name: {"base": str(base), "kind": kind} for name in ("left", "right")}
    comas.train(
        out=str(folder),
        hosts=hosts,
        hooks=hooks,
        **{**KEYS, "steps": 4, "questions": 16, **changes},
    )
    return Run(folder)


@pytest.fixture(scope="module")
def whole(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of two hosts here."""
    return trained(tmp_path_factory.mktemp("runs") / "whole", untaught, "local")


def test_two_hosts_elsewhere_are_the_same_turns_and_weights(
    cluster: Any, whole: Run, untaught: Path, tmp_path: Path
) -> None:
    there = trained(tmp_path / "there", untaught, "ray")
    assert essence(there) == essence(whole)
    assert sum(map(len, essence(there)[0])) == TURNS


LOST = r"host right \(process \d+ on [\d.]+\) is lost"


def test_an_actor_that_is_killed_loses_nothing_that_was_committed(
    cluster: Any, whole: Run, untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while it samples, learns and saves, one after the other in one run."""
    folder = tmp_path / "run"

    def die_at(verb: str, call: int, run: Callable[[], object]) -> None:
        does = getattr(RayHost, verb)
        calls = 0

        async def dying(host: RayHost, *arguments: Any) -> Any:
            nonlocal calls
            calls += host.name == "right"
            asked = asyncio.ensure_future(does(host, *arguments))
            if host.name == "right" and calls == call:
                await asyncio.sleep(0)
                os.kill(process_of(host), signal.SIGKILL)
            return await asked

        with monkeypatch.context() as patch:
            patch.setattr(RayHost, verb, dying)
            with pytest.raises(HostLost, match=LOST) as lost:
                run()
        assert "\n" not in str(lost.value)

    def committed() -> int:
        return (Run(folder).marker() or {})["step"]

    die_at("ask", 40, lambda: trained(folder, untaught, "ray"))
    assert committed() == 1
    die_at("learn", 2, lambda: comas.resume(folder, hosts__left__kind="local"))
    assert committed() == 2
    die_at("save", 1, lambda: comas.resume(folder))
    assert committed() in (2, 3)  # the step that was written may not be committed any more
    comas.resume(folder, hosts__right__kind="local")  # what was elsewhere goes on here
    assert essence(Run.open(folder)) == essence(whole)


ENGINE = """
from comas.engines import hf

BEFORE = []


def build(plan, models):
    BEFORE.append(plan.host)
    return hf.build(plan, models)
"""


def test_files_of_ones_own_travel(
    cluster: Any, untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remembering.py").write_text(METHOD)
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.chdir(tmp_path)
    keys = {key: value for key, value in KEYS.items() if key != "options__format_check"}
    keys |= {"method": "remembering.py", "preset": None, "room": {"solution": 12}}
    keys |= {"steps": 2, "agents": 2}

    def run_at(kind: str) -> Run:
        base = {"base": str(untaught), "kind": kind}
        left = {**base, "learner": "full", "engine": "engine.py"}
        hosts = {"left": left, "right": {**base, "learner": "adapters"}}
        comas.train(out=str(tmp_path / kind), hosts=hosts, **keys)
        return Run(tmp_path / kind)

    assert essence(run_at("ray")) == essence(run_at("local"))


def test_a_trained_team_is_asked_elsewhere(cluster: Any, whole: Run, tmp_path: Path) -> None:
    config = (whole.path / "config.toml").read_text()
    texts = []
    for kind in ("local", "ray"):
        shutil.copytree(whole.path, tmp_path / kind)
        moved = config.replace('kind = "local"', f'kind = "{kind}"', 1)
        (tmp_path / kind / "config.toml").write_text(moved)
        team = comas.load(tmp_path / kind)
        texts.append([turn.text for turn in team.discuss("1 2 4 -> 7", seed=1).turns])
        assert team.hosts["left"].facts().get("where") == (None if kind == "local" else "ray")
        team.close()
    assert texts[0] == texts[1]


# --- a cluster that is started here


def test_what_counts_as_a_key() -> None:
    variables = {"A_TOKEN": "", "HF_TOKEN": "", "TOKENIZERS": "", "PATH": "", "DB_PASSWORD": ""}
    seen = set(without_keys(variables, frozenset({"PATH"})))
    assert seen == {"TOKENIZERS", "HF_TOKEN"}


def test_none_is_started_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UserMistake, match=r"RAY_AUTH_MODE=disabled"):
        RayHost("far", slow, learns=False)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere"])
def test_an_address_where_nobody_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserMistake, match=f"{address} .RAY_ADDRESS"):
        RayHost("far", slow, learns=False)


def processes_below(pid: int) -> set[int]:
    """The process and all that it has started, directly or not."""
    found = {pid}
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in thread.read_text().split():
            found |= processes_below(int(child))
    return found


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_no_process_is_left_behind(how: signal.Signals, tmp_path: Path) -> None:
    pairs = ["kind=ray", "steps=100000", "questions=2", "threads=1"]
    pairs += ["test_questions=0", "eval_every=0", "monitors=[]", f"out={tmp_path / 'run'}"]
    hidden = {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    run = subprocess.Popen(
        [sys.executable, "-m", "comas", "train", *pairs],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        env={**environment, "JUDGE_API_KEY": "hidden"},
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    until = time.monotonic() + DEADLINE
    while not metrics.exists() and run.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    started = processes_below(run.pid)
    if not metrics.exists():
        run.kill()
        pytest.fail(f"no step was trained: {run.communicate(timeout=DEADLINE)[0]}")
    assert len(started) > 3
    for pid in started - {run.pid}:
        with suppress(FileNotFoundError, ProcessLookupError):  # it may have ended since
            assert b"JUDGE_API_KEY" not in Path(f"/proc/{pid}/environ").read_bytes()
    if how == signal.SIGINT:
        os.killpg(run.pid, how)  # as a terminal does
    else:
        run.kill()
    said = run.communicate(timeout=DEADLINE)[0]
    until = time.monotonic() + DEADLINE
    while any(map(is_alive, started)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in started if is_alive(pid)]
    assert "Traceback" not in said
    assert "raylet" not in said
