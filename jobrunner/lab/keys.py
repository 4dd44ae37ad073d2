"""SSH keys for the demo's host: made on the spot, kept in its folder, good for nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def make_key(path: Path) -> None:
    """Make an Ed25519 key pair, `path` (0600) and `path.pub`, unless it is there."""
    if path.is_file():
        return
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    path.with_name(path.name + ".pub").write_bytes(public + b" jobrunner-demo\n")
