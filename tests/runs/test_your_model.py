"""What README says under "Your model", from the first command to the last, with a file of questions
of which some have answers; each command that a message names is run as it is printed.

In `make test` with a tiny model that knows nothing; with SmolLM2-135M-Instruct in `make test-real`.
Leaves out: whether anything is learnt.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import comas
from comas.cli.serve import named_team
from comas.evaluation.systems import asked
from comas.models.sources import how_to_install, installed_at
from comas.testing import tiny_model
from tests.support.command import run
from tests.support.serving import running

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a terminal of POSIX")
NAMED = re.compile(
    r"(?:-m comas|\bcomas) ((?:preflight|resume|view|eval|export|play) .+?)\s*$", re.M
)
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def commands_in(text: str) -> list[list[str]]:
    """The commands that messages name, in their order."""
    return [shlex.split(words) for words in NAMED.findall(COLOURS.sub("", text))]


def write_questions(file: Path) -> None:
    """Sixty questions, every third without an answer."""
    rows = []
    for a in range(2, 62):
        row = {"question": f"What is {a} + {2 * a}? Answer with the number in \\boxed{{}}."}
        rows.append({**row, "answer": str(3 * a)} if a % 3 else row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def on_a_terminal(words: list[str], until: Path) -> tuple[int, str]:
    """Run a command on a terminal of 80 columns, with Ctrl-C once a file is there; its exit code
    and what it wrote.
    """
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "comas", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    )
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                written.append(data)
        except OSError:  # the other end is gone
            pass

    reader = threading.Thread(target=read)
    reader.start()
    end = time.monotonic() + 300
    while not until.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    code = process.wait(120)
    reader.join()
    os.close(ours)
    return code, b"".join(written).decode(errors="replace")


@pytest.mark.parametrize(
    "base",
    [
        "./my-model",
        pytest.param(
            "smollm2",
            marks=[
                pytest.mark.real,
                pytest.mark.skipif(
                    installed_at("smollm2") is None, reason=how_to_install("smollm2")
                ),
            ],
        ),
    ],
)
def test_the_way_of_a_model_and_questions_of_ones_own(
    base: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*words: str, code: int = 0) -> str:
        assert run([*words], monkeypatch) == code, capsys.readouterr().err
        out, err = capsys.readouterr()
        return out + err

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMAS_DATA", raising=False)
    steps = 4
    if base == "./my-model":
        tiny_model(Path("my-model"))
        steps = 12  # they are short: Ctrl-C has to come before the last
    write_questions(Path("mine.jsonl"))
    own = ["task=jsonl", "data=mine.jsonl", "room.solution=12", "threads=1"]
    small = ["questions=2", "samples=2", "test_questions=4", "eval_every=0", "checkpoint_every=1"]
    small = [*small, "agents=2", "hosts.home.context=512"]

    # will it help, and what does it cost?
    text = said("preflight", base, *own, "--questions", "3", "--answers", "2", "--minutes", "9")
    assert text.index("3 questions: intervals say next to nothing") < text.index("loading")
    training = ["train", f"base={base}", "lr=1e-4", *own, *small]
    text = said(*training, "steps=2", "--dry-run")
    assert "memory: " in text
    assert "time: " in text
    (preflight,) = commands_in(text)
    assert said(*preflight, "threads=1", "--questions", "3", "--answers", "2")

    # trained on a terminal, stopped, gone on with elsewhere
    first = Path("run", "checkpoints", "step-1")
    code, text = on_a_terminal([*training, f"steps={steps}", "out=run"], until=first)
    assert code == 130, text
    *_, resume = commands_in(text)
    assert resume == ["resume", "run"]
    text = said(*resume)
    assert json.loads(Path("run", "commit.json").read_text())["step"] == steps
    view, evaluate, export = commands_in(text)

    # looked at
    pages: list[str] = []

    def look(url: str) -> None:
        def read() -> None:
            pages.append(httpx.get(url, timeout=60).text)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=read).start()

    monkeypatch.setattr("webbrowser.open", look)
    said(*view, code=130)
    assert "<html" in pages[0]
    said(*view, "--html", "run.html")
    assert Path("run.html").stat().st_size > 10_000

    # compared with what it began from, on its own questions
    assert " jsonl " in said(*evaluate, "--limit", "2")
    text = said("eval", base, "run", "--limit", "2")
    assert re.search(r"against\s+the\s+first", text), text
    assert " jsonl " in text

    # taken elsewhere
    team = export[-1]
    further = commands_in(said(*export))
    assert [words[0] for words in further] == ["play", "eval"]
    for words in further:
        assert said(*words, *(["--limit", "2"] if words[0] == "eval" else []))
    weights = next(Path(team).rglob("model.safetensors")).parent
    model = AutoModelForCausalLM.from_pretrained(weights)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    ids = tokenizer("What is 1 + 1?", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=4, pad_token_id=0).shape[1] > 4

    # asked by clients, by a task of another name as well
    question = "What is 20 + 22? Answer with the number in \\boxed{}."
    loaded = comas.load(team)
    try:
        assert loaded.discuss(question).turns
    finally:
        loaded.close()
    served = asked(named_team([team]))
    try:
        with running(served) as endpoint:
            reply = endpoint.client.chat.completions.create(
                model="game", messages=[{"role": "user", "content": question}], seed=1
            )
            assert reply.usage is not None
            assert reply.usage.completion_tokens > 0
    finally:
        served.close()
    assert named_team([team, "task=gsm8k"]).task.name == "gsm8k"
