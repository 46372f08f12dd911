"""Agents behind `transformers serve`, a server of somebody else's: what arrives is what the same
model says here.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from comas.config.schema import HostConfig, settings_of
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.hooks import Hook
from comas.hosts.api import ApiHost
from comas.hosts.local import make_local_host
from comas.models.sources import shipped_models
from comas.team.build import run_sync
from comas.types import Ask, Sampling

for library in ("fastapi", "uvicorn", "openai", "transformers.cli.serve"):
    pytest.importorskip(
        library,
        reason='transformers serve needs pip install "transformers[serving]>=5"',
        exc_type=ImportError,
    )


pytestmark = pytest.mark.slow  # of servers of our own: test_api, test_api_answers


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server process, which loads whatever model it is asked for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = tmp_path_factory.mktemp("served") / "log.txt"
    start = "from transformers.cli.transformers import main; main()"
    command = [
        sys.executable,
        "-c",
        start,
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
    ]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (
        said.open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env) as process,
    ):
        try:
            for _ in range(3000):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, said.read_text()
                    time.sleep(0.1)
            else:
                raise AssertionError(said.read_text())
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


@pytest.mark.parametrize("room", [1, 16, 60])
def test_text_tokens_and_usage_are_those_of_the_model_itself(
    served: str, tiny: Path, room: int
) -> None:
    there = ApiHost("far", {"p": str(tiny)}, HostConfig(api=served, logprobs=True))
    here = make_local_host(
        "near",
        {"p": str(tiny)},
        method=None,
        recipe=None,
        device="cpu",
        dtype="float32",
        max_rows=8,
    )
    prompts = ["2 + 2?", "héllo wörld\n", "x" * 300]
    try:
        for prompt in prompts:
            asked = [{"role": "user", "content": prompt}]
            far, near = (
                asyncio.run(
                    h.ask(Ask("t", "p", asked, "solution", False, Sampling(0.0, 1.0, room), 5))
                )
                for h in (there, here)
            )
            assert (far.text, far.finished) == (near.text, near.finished)
            assert (far.prompt_tokens, far.tokens) == (near.prompt_tokens, near.tokens)
            assert far.logprob == 0.0  # it is asked for them, and does not tell
        assert there.spent["requests"] == len(prompts)
        assert there.spent["tokens"] > 0
        assert there.events == {}
    finally:
        there.close()
        here.close()


def test_an_evaluation_of_a_served_model_says_what_the_model_says_here(
    served: str, tmp_path: Path
) -> None:
    model = shipped_models()["tiny"]
    (tmp_path / "far.toml").write_text(f'[hosts.far]\nbase = "{model}"\napi = "{served}"\n')
    plan = EvaluationPlan(
        ["tiny", str(tmp_path / "far.toml")],
        limit=24,
        setups=["single"],
        settings=settings_of(["eval_temperature=0"]),
    )
    found = run_sync(EvaluationRun.create(plan, str(tmp_path / "e")).go(Hook()))
    here, there = found["cells"]
    keys = ("n", "right", "wrong", "failed", "tokens", "prompt_tokens", "complete")
    assert [here[k] for k in keys] == [there[k] for k in keys]
    assert here["right"] > 0
    texts = [
        {
            r["question"]: r["answer"]
            for r in map(json.loads, p.read_text().splitlines())
            if "verdict" in r
        }
        for p in (tmp_path / "e" / "answers").glob("*.jsonl")
    ]
    assert texts[0] == texts[1]
    (account,) = found["api"]
    spent = account["spent"]
    # a greeting of one token came first
    assert (spent["requests"], spent["tokens"]) == (24 + 1, there["tokens"] + 1)
    assert 0 < spent["prompt_tokens"] - there["prompt_tokens"] < 20
    assert account["events"] == {}
