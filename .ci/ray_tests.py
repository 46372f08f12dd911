"""Install Ray in an environment of its own and run the tests that need it:
`ray_tests.py ENVIRONMENT WHEELS TORCH`.

Where it is not to be had, this says so, and nothing has failed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trackers_tests import ROOT, made


def main(environment: Path, wheels: str, torch: str) -> int:
    """Exit code of the tests; 0 where there is no Ray."""
    python = made(environment, wheels, torch)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    if subprocess.run([*pip, "-e", f"{ROOT}[ray]"], check=False).returncode:
        print("make test-ray: ray is not to be had: its tests are skipped")
        return 0
    tests = [python, "-m", "pytest", "-m", "ray", "-rs", "tests/transports"]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3]))
