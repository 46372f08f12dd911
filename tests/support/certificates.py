"""Certificates that sign themselves, made by `openssl`; where there is none, a test is skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CURVE = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]


def make_certificate(stem: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1 and its key beside it: `stem`.crt, `stem`.key."""
    chain = stem.with_suffix(".crt")
    key = stem.with_suffix(".key")
    make_key(key, "EC")
    address = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    _openssl("req", "-x509", "-key", str(key), "-out", str(chain), "-days", "2", *address)
    return chain, key


def make_key(path: Path, kind: str, *options: str) -> None:
    """Write a private key of this kind, `EC` or `RSA`."""
    curve = CURVE if kind == "EC" else []
    _openssl("genpkey", "-algorithm", kind, *curve, *options, "-out", str(path))


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl on the PATH, which makes the certificates of this test")
    subprocess.run([program, *arguments], check=True, capture_output=True)
