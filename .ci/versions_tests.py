"""Run the quick tests as users have their machines: `versions_tests.py FOLDER WHEELS TORCH
[CASE ...]`.

| case | what is tried |
|---|---|
| `lowest` | the oldest packages that pyproject.toml allows, also of extras, on the oldest Python |
| `newest` | the newest of every package, torch included |
| `python3.12`, `python3.13` | these Pythons, where they are found |
| `default`, `avx2` | torch's kernels without, and with shorter, vector instructions |

The last two run in the environment of this interpreter, which has the tests' packages. Each case
prints a line; exit code 1 where one failed. A Python that is not to be had is said and
left out. Leaves out: the slow tests, and those that train.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = "3.11"
EXTRAS = ("api", "gguf", "plot", "search", "serve")
"""Whose packages the tests below import."""
TOOLS = ("pytest>=8.2", "pytest-xdist>=3.6", "hypothesis>=6.100", "peft>=0.17")
FOLDERS = (
    "answers config engines game learners methods models objective setups storage tasks training"
)
TESTS = ("-m", "not slow and not commands and not real", *(f"tests/{n}" for n in FOLDERS.split()))
KERNELS = ("default", "avx2")
TINY = ("steps=2", "questions=4", "test_questions=4", "eval_every=0")


class Environment:
    """A virtual environment of one case, made by uv, which can take the oldest versions."""

    def __init__(self, folder: Path, case: str, wheels: str, torch: str):
        self.folder = folder / case
        self.uv = folder / "tools" / "bin" / "uv"
        self.python = self.folder / "bin" / "python"
        self.wheels = wheels
        self.torch = torch

    def has(self, python: str) -> bool:
        """Whether this Python is found and runs, which a shim of pyenv does not always."""
        find = [self.uv, "python", "find", "--no-python-downloads", python]
        return not subprocess.run(find, check=False, capture_output=True).returncode

    def make(self, python: str) -> None:
        self.run(self.uv, "venv", "--quiet", "--clear", "--python", python, self.folder)

    def install(self, *arguments: str | Path) -> None:
        self.run(self.uv, "pip", "install", "--quiet", "--python", self.python, *arguments)

    def install_torch(self) -> None:
        """Install the build without CUDA where it is to be had, and otherwise the index's own."""
        if not self.torch.endswith("+cpu"):
            return
        try:
            self.install("--no-deps", "--extra-index-url", self.wheels, self.torch)
        except subprocess.CalledProcessError:
            print(f"{self.torch} is not to be had: taking the index's own torch")

    def run(self, *command: str | Path) -> None:
        subprocess.run(command, check=True, cwd=ROOT)


def newest(here: Environment) -> None:
    here.make(OLDEST)
    here.install("--upgrade", "-e", f".[{','.join(EXTRAS)}]", *TOOLS)


def lowest(here: Environment) -> None:
    """Install the oldest versions of what pyproject.toml names; tools of tests are new."""
    here.make(OLDEST)
    versions = here.folder / "lowest.txt"
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    oldest = ("--resolution", "lowest-direct", "--python-version", OLDEST)
    here.run(
        here.uv, "pip", "compile", "--quiet", "pyproject.toml", *extras, *oldest, "-o", versions
    )
    here.install("-r", versions)
    here.install("--no-deps", "-e", ".")
    here.install("--constraint", versions, *TOOLS)


def of_python(here: Environment, python: str) -> None:
    here.make(python)
    here.install_torch()
    here.install("-e", f".[{','.join(EXTRAS)}]", *TOOLS)


def tried(here: Environment, **variables: str) -> str:
    """Run the tests, and a short training; what failed, or an empty text."""
    environment = {**os.environ, **variables}
    tests = [here.python, "-m", "pytest", "-n", "auto", *TESTS]
    if subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode:
        return "tests fail"
    run = here.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    train = [here.python, "-m", "comas", "train", *TINY, f"out={run}"]
    if subprocess.run(train, env=environment, check=False).returncode:
        return "comas train fails"
    return ""


def main(folder: Path, wheels: str, torch: str, *cases: str) -> int:
    """Exit code 1 where a case failed."""
    folder.mkdir(parents=True, exist_ok=True)
    # in the user's own cache it would grow by a gigabyte with each case
    os.environ["UV_CACHE_DIR"] = str(folder / "cache")
    tools = folder / "tools"
    if not tools.exists():
        subprocess.run([sys.executable, "-m", "venv", tools], check=True)
        pip = [tools / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "uv>=0.9"], check=True)
    code = 0
    for case in cases or ("lowest", "newest", "python3.12", "python3.13", *KERNELS):
        began = time.monotonic()
        here = Environment(folder, case, wheels, torch)
        try:
            failed = attempt(here, case)
        except subprocess.CalledProcessError as error:
            failed = f"cannot be installed: {error}"
        print(f"{case}: {failed or 'holds'} ({time.monotonic() - began:.0f} s)")
        code = code or int(bool(failed) and failed != MISSING)
        shutil.rmtree(here.folder, ignore_errors=True)
    return code


MISSING = "left out, no such Python is found"


def attempt(here: Environment, case: str) -> str:
    """Make the environment of a case and try it."""
    if case == "lowest":
        lowest(here)
    elif case == "newest":
        newest(here)
    elif case in KERNELS:
        here.folder.mkdir(exist_ok=True)
        here.python = Path(sys.executable)
        return tried(here, ATEN_CPU_CAPABILITY=case)
    elif not here.has(case):
        return MISSING
    else:
        of_python(here, case)
    return tried(here)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), *sys.argv[2:]))
