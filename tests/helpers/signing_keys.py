# SPDX-License-Identifier: Apache-2.0
"""Key pairs for tests of signatures."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class KeyPair:
    """The files of a key pair."""

    private: Path
    public: Path


def private_pem(key: object, password: bytes | None = None) -> bytes:
    """Write any private key as a PEM file has it."""
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)


def public_pem(key: object) -> bytes:
    """Write the public half of any private key as a PEM file has it."""
    return key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def make_pair(
    folder: Path, name: str, curve: ec.EllipticCurve | None = None, password: bytes | None = None
) -> KeyPair:
    """Make a key pair.

    Args:
        folder: Where its files go.
        name: Begins their names.
        curve: P-256 if left out.
        password: Of the private key.
    """
    key = ec.generate_private_key(curve or ec.SECP256R1())
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}.pub")
    pair.private.write_bytes(private_pem(key, password))
    pair.public.write_bytes(public_pem(key))
    return pair
