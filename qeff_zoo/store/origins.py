# SPDX-License-Identifier: Apache-2.0
"""Where packages were pulled from, one small file each, so that a damaged one can be repaired.

In: the note of a package. Out: its origin, or None if it was built here.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from qeff_zoo.disk.staging import write_durably


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a package was pulled from.

    Args:
        url: Of the remote, pinned to what it was then as far as its kind of remote can be.
        path: Of the package's folder there.
        manifest: SHA-256 of its manifest.json, in hexadecimal.
        signed: Whether a signature lies beside its manifest there.
    """

    url: str
    path: str
    manifest: str
    signed: bool


def read_origin(note: Path) -> Origin | None:
    """Read a note; one that is absent or cut short says nothing."""
    with suppress(OSError, ValueError, TypeError):
        return Origin(**json.loads(note.read_bytes()))
    return None


def write_origin(note: Path, origin: Origin | None) -> None:
    """Write a note, or remove the one that is there."""
    if origin is None:
        note.unlink(missing_ok=True)
        return
    note.parent.mkdir(parents=True, exist_ok=True)
    write_durably(note, json.dumps(asdict(origin)).encode())
