"""The certificate with which an endpoint speaks TLS, and its private key: files that are checked
before anything is loaded.

Leaves out: making one, and asking clients for theirs.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from comas.types import UserMistake

MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""What OpenSSL calls a key of another certificate, of the same kind or of another."""


@dataclass(frozen=True)
class Certificate:
    """Two files in PEM, which may be one."""

    chain: Path
    """The certificate, and after it those of who signed it."""
    key: Path
    """The private key of the certificate, without a password."""

    def check(self) -> None:
        """Raise UserMistake where a server could not use them."""
        _check_readable("--certificate", self.chain)
        _check_readable("--certificate-key", self.key)
        try:
            _context().load_verify_locations(self.chain)
        except ssl.SSLError as error:
            raise UserMistake(
                f"--certificate {self.chain}: no certificate in PEM is in it"
                " (-----BEGIN CERTIFICATE-----)"
            ) from error
        try:
            _context().load_cert_chain(self.chain, self.key, self._password)
        except ssl.SSLError as error:
            if error.reason in MISMATCHES:
                why = f"it is not the key of --certificate {self.chain}"
            else:
                told = f" ({error.reason})" if error.reason else ""
                why = f"no private key in PEM for --certificate {self.chain} is in it{told}"
            raise UserMistake(f"--certificate-key {self.key}: {why}") from error

    def _password(self) -> str:
        """Called for a key that is encrypted: nobody is there to be asked for its password."""
        raise UserMistake(
            f"--certificate-key {self.key}: the key has a password: write it without one"
            " (openssl pkey -in KEY -out PLAIN)"
        )


def certificate_of(chain: Path | None, key: Path | None) -> Certificate | None:
    """What the command line names, checked; None where it names none."""
    if chain is None:
        if key is not None:
            raise UserMistake(f"--certificate-key {key}: name its certificate with --certificate")
        return None
    certificate = Certificate(chain, key or chain)
    certificate.check()
    return certificate


def _check_readable(option: str, path: Path) -> None:
    """A UserMistake where a file cannot be opened."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserMistake(f"{option} {path}: {error.strerror}") from error


def _context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
