"""Certificates for a Redis with TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.servers.processes import ServerMissing, check_tls, redis_binary

__all__ = ["self_signed", "tls_options"]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1 and its key. Skips the test if the Redis has no TLS."""
    check_tls(redis_binary())
    if shutil.which("openssl") is None:
        raise ServerMissing("no openssl: install it, for the tests of TLS")
    certificate, key = folder / "server.crt", folder / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def tls_options(certificate: Path, key: Path) -> list[str]:
    """Return the options of a Redis that uses *certificate* and accepts clients without one."""
    values = {"cert-file": certificate, "key-file": key, "ca-cert-file": certificate, "auth-clients": "no"}
    return [text for name, value in values.items() for text in (f"--tls-{name}", str(value))]
