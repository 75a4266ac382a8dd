"""Certificates for servers on the loopback, made by openssl for the test that needs them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """Paths of PEM files: an authority, and what it signed for both sides."""

    authority: Path
    certificate: Path
    private_key: Path


def make_certificates(directory: Path) -> Certificates:
    """An authority and one certificate for 127.0.0.1, good for a day."""
    paths = Certificates(*(directory / f"{name}.pem" for name in ("ca", "cert", "key")))
    authority_key = directory / "ca-key.pem"
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl("req", "-x509", "-days", "1", *new_key, "-subj", "/CN=test authority",
             "-keyout", str(authority_key), "-out", str(paths.authority))  # fmt: skip
    _openssl("req", "-x509", "-days", "1", *new_key, "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1",
             "-addext", "basicConstraints=critical,CA:FALSE",
             "-addext", "extendedKeyUsage=serverAuth,clientAuth",
             "-CA", str(paths.authority), "-CAkey", str(authority_key),
             "-keyout", str(paths.private_key), "-out", str(paths.certificate))  # fmt: skip
    return paths


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
