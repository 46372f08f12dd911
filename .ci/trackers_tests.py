"""Install the packages of trackers in an environment of its own and run the tests that need them:
`trackers_tests.py ENVIRONMENT WHEELS TORCH`.

They bring a hundred packages with them, which nothing else here needs. Where one of them is not to
be had, this says so, and its tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRACKERS = ("tensorboard", "trackio", "mlflow", "wandb")


def main(environment: Path, wheels: str, torch: str) -> int:
    """Exit code of the tests."""
    python = made(environment, wheels, torch)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    for tracker in TRACKERS:
        if subprocess.run([*pip, "-e", f"{ROOT}[{tracker}]"], check=False).returncode:
            print(f"make test-trackers: {tracker} is not to be had: its tests are skipped")
    tests = [python, "-m", "pytest", "-m", "trackers", "-rs", "tests/trackers"]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode


def made(environment: Path, wheels: str, torch: str) -> Path:
    """The interpreter of an environment with comas and what runs its tests."""
    python = environment / "bin" / "python"
    stamp = environment / ".installed"
    wanted = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install(environment, python, wheels, torch)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def install(environment: Path, python: Path, wheels: str, torch: str) -> None:
    """Make the environment, or what is missing in it."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "--no-deps", "--extra-index-url", wheels, torch]
    if subprocess.run(build, check=False).returncode:
        print(f"{torch} is not to be had: taking the index's own torch")
    subprocess.run([*pip, "-e", ROOT, "pytest", "hypothesis"], check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3]))
