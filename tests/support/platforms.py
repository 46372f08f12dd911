"""Marks of tests that need what not every system has."""

from __future__ import annotations

import sys

import pytest

needs_sandbox = pytest.mark.skipif(
    sys.platform != "linux", reason="programs that models write run in a sandbox, on Linux"
)
