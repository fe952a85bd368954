# SPDX-License-Identifier: Apache-2.0
"""Origins of the packages of the store: built here, or pulled from a remote.

In: the folder of a package. Out: the content of its origin note, which was renamed into place together with the
package; None without a note, as of a package that was copied there by hand. Unknown origins are not trusted.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.package.manifest import MANIFEST_NAME

_NOTE = f"{MANIFEST_NAME}.origin"  # a name that no manifest may list
_NOTE_OF_OURS = {"built_here": True}


@dataclass(frozen=True)
class BuiltHere:
    """A package was built by the owner of this store."""


BUILT_HERE = BuiltHere()


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a package was pulled from.

    Args:
        url: URL of the remote, pinned to its commit if its kind of remote has commits.
        path: Path of the package's folder there.
        manifest: SHA-256 of its manifest.json, in hexadecimal.
        signed: Whether a signature lies beside its manifest there.
    """

    url: str
    path: str
    manifest: str
    signed: bool


Provenance: TypeAlias = BuiltHere | Origin


def read_origin(package: Path) -> Provenance | None:
    """Read the note in a package's folder; an absent or damaged note counts as none.

    Args:
        package: Folder of the package in the store; a note in any other folder proves nothing.
    """
    with suppress(OSError, ValueError, TypeError, RecursionError):
        note = json.loads(read_regular(package / _NOTE))
        if note == _NOTE_OF_OURS:
            return BUILT_HERE
        origin = Origin(**note)
        if [type(value) for value in asdict(origin).values()] == [str, str, str, bool]:
            return origin
    return None


def origin_problem(package: Path) -> str:
    """Return what is wrong with the note in a package's folder; empty for a readable note, or none.

    Args:
        package: Folder of the package in the store.
    """
    if read_origin(package) or not os.path.lexists(package / _NOTE):
        return ""
    return f"its note of origin, {_NOTE}, is damaged, so that its origin is unknown: pull or build it again"


def write_origin(package: Path, origin: Provenance) -> None:
    """Write the note, before the folder gets its name in the store."""
    note = _NOTE_OF_OURS if isinstance(origin, BuiltHere) else asdict(origin)
    write_durably(package / _NOTE, json.dumps(note).encode())
