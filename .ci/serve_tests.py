"""Install lm-eval and inspect_ai in an environment of their own and run the tests in which they ask
a team: `serve_tests.py ENVIRONMENT PYTHON`.

They are clients: comas and its tests run in the environment of PYTHON. Where one of them is not to
be had, this says so, and its tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS = ("lm-eval[api]==0.4.13", "inspect-ai==0.3.285")
OPENAI = "openai>=1.50"
"""What inspect_ai asks endpoints with, and does not bring."""


def main(environment: Path, python: str) -> int:
    """Exit code of the tests."""
    stamp = environment / ".installed"
    wanted = "\n".join((*CLIENTS, OPENAI))
    complete = stamp.exists() and stamp.read_text(encoding="utf-8") == wanted
    if not complete and install(environment):
        stamp.write_text(wanted, encoding="utf-8")
    tests = [python, "-m", "pytest", "-m", "evaluators", "-rs", "tests/serve"]
    env = {**os.environ, "COMAS_EVALUATORS": str(environment)}
    return subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode


def install(environment: Path) -> bool:
    """Make the environment; whether all of it could be had."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check"]
    complete = True
    for client in CLIENTS:
        if subprocess.run([*pip, "--quiet", client, OPENAI], check=False).returncode:
            print(f"make test-serve: {client} is not to be had: its tests are skipped")
            complete = False
    return complete


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2]))
