# SPDX-License-Identifier: Apache-2.0
"""Copies in folders of the user: a package of the store, or other content that appears complete or not at all.

In: a destination. Out: the requested content there; existing files of the user are never replaced.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qeff_zoo.disk.staging import publish, staged_beside
from qeff_zoo.errors import PackageError, StoreError
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME
from qeff_zoo.store.origins import Origin, read_origin, write_origin

from . import Store, refused


def copy_out(package: Package, destination: Path) -> Package:
    """Copy a package atomically to a user's folder; a pulled package keeps a note of its origin.

    Args:
        package: Any complete package.
        destination: A folder that is absent, empty, or an older copy of the same package.

    Raises:
        StoreError: The destination holds something else, or has no room.
    """
    target = Path(os.path.abspath(destination))  # noqa: PTH100 -- links stay
    if _has_copy(target, package):
        return Package.open(target)
    files = [file["path"] for file in package.manifest["files"]]
    beside = [SIGNATURE_NAME] if (package.path / SIGNATURE_NAME).is_file() else []
    Store.require_space(target, package.size, f"package {package.name!r}")
    try:
        with staged_beside(target) as folder:
            for name in (*files, *beside, MANIFEST_NAME):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(package.path / name, folder / name)
            if isinstance(origin := read_origin(package.path), Origin):
                write_origin(folder, origin)
            publish(folder, target, target.parent, lambda: _has_copy(target, package))
    except OSError as error:
        raise refused("copy a package to", target, error) from error
    return Package.open(target)


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """Yield a staging folder that becomes `destination` at the end, whole or not at all.

    Args:
        destination: A folder that is absent or empty.

    Raises:
        StoreError: The destination holds something, or cannot be written.
    """
    target = Path(os.path.abspath(destination))  # noqa: PTH100 -- links stay
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise StoreError(
            f"Cannot write to {str(target)!r}: it is there already; expected a folder that is absent or empty. Give "
            "another folder, or remove that one."
        )
    try:
        with staged_beside(target) as folder:
            yield folder
            publish(folder, target, target.parent, lambda: False)
    except OSError as error:
        raise refused("write to", target, error) from error


def existing_copy(destination: Path, build_key: str) -> Package | None:
    """Find a copy of a package where one is to be written; refuse what must not be replaced by it.

    Args:
        destination: Folder of the copy.
        build_key: Build key of the package.

    Raises:
        StoreError: The destination holds something else, or cannot be.
    """
    target = Path(os.path.abspath(destination))  # noqa: PTH100 -- links stay
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a name that no folder can have
        raise refused("copy a package to", target, error) from error
    if target.is_dir() and not any(target.iterdir()):
        return None
    try:
        there = Package.open(target)
    except PackageError:
        there = None
    if there is None or there.build_key != build_key or there.unlisted():
        raise StoreError(
            f"Cannot copy a package to {str(target)!r}: it holds something else; expected a folder "
            "that is absent, empty, or an unchanged copy of this package. Give another folder, or "
            "remove that one."
        )
    return there


def _has_copy(target: Path, package: Package) -> bool:
    there = existing_copy(target, package.build_key)
    return there is not None and there.manifest == package.manifest
