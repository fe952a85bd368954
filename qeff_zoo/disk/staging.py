# SPDX-License-Identifier: Apache-2.0
"""Folders that appear whole or not at all: private staging, reaching the disk, taking a name.

In: a folder under construction. Out: the same folder under its final name, on disk with all its
files, after one atomic rename. Beside each staging folder lies a note of the process that owns it,
written before the folder is created, so that leftovers of a killed process are recognized.
"""

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from qeff_zoo.disk.processes import Owner
from qeff_zoo.disk.regular import read_regular

_OWNER = ".owner"
# The state of a process on another machine or in another container is unknown: its folders are
# abandoned after this time without a change.
_IDLE_SECONDS = 24 * 3600.0
_ATTEMPTS = 10
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h


@contextmanager
def staged(root: Path, prefix: str) -> Iterator[Path]:
    """Yield a private new folder; whatever still has its name in the end is removed.

    Args:
        root: Parent of staging folders, on the destination's file system.
        prefix: Beginning of the folder's name.
    """
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{prefix}-{secrets.token_hex(8)}"
    owner = owner_note(folder)
    try:  # begins before the note is written: an interrupt may come after any line
        note_owner(folder)
        folder.mkdir()
        yield folder
    finally:
        remove(folder)
        owner.unlink(missing_ok=True)


@contextmanager
def staged_beside(target: Path) -> Iterator[Path]:
    """Yield a private new folder beside its destination; those of killed processes are removed first.

    Args:
        target: Destination; its parent is created if it is missing.
    """
    prefix = f".{target.name}"
    ours = re.compile(rf"{re.escape(prefix)}-[0-9a-f]{{16}}")
    stale = [path for path in staging_folders(target.parent) if ours.fullmatch(path.name)]
    sweep(path for path in stale if owner_note(path).exists())
    with staged(target.parent, prefix) as folder:
        yield folder


def owner_note(path: Path) -> Path:
    """Return the path of the note with the owner process of a folder under construction."""
    return path.with_name(path.name + _OWNER)


def note_owner(path: Path) -> None:
    """Note that this process owns something under construction."""
    owner_note(path).write_text(json.dumps(asdict(Owner.current())), encoding="utf-8")


def staging_folders(root: Path) -> list[Path]:
    """List what is under construction in `root`, and what only an owner's note is left of."""
    if not root.is_dir():
        return []
    return sorted({path.with_name(path.name.removesuffix(_OWNER)) for path in root.iterdir()})


def abandoned(folder: Path) -> bool:
    """Whether the owner of a folder under construction is surely gone, or idle for a day elsewhere."""
    try:
        lives = Owner(**json.loads(read_regular(owner_note(folder)))).lives()
    except (OSError, ValueError, TypeError, RecursionError):
        lives = None
    if lives is None:
        return time.time() - _last_change(folder) > _IDLE_SECONDS
    return not lives


def discard(folder: Path) -> None:
    """Remove a staging folder that is `abandoned`, and then its owner's note."""
    remove(folder)
    owner_note(folder).unlink(missing_ok=True)


def sweep(folders: Iterable[Path]) -> None:
    """Remove the abandoned ones of some staging folders."""
    for folder in folders:
        if abandoned(folder):
            discard(folder)


def _last_change(folder: Path) -> float:
    """Return the newest time below a folder; the present time if it disappears meanwhile."""
    latest, paths = 0.0, [owner_note(folder), folder]
    with suppress(OSError):  # of a folder that disappears
        paths += folder.rglob("*")
    for path in paths:
        with suppress(OSError):
            latest = max(latest, path.lstat().st_mtime)
    return latest or time.time()


def remove(path: Path) -> None:
    """Remove a file or folder if it is there; several processes may do so at once."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Wait until a folder's files, and then its folders, are on the disk."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(root, name))
        sync(Path(root))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; a link is left alone."""
    if path.is_symlink():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that its name has the old content or all of the new, even after a crash.

    Args:
        path: Path of the file.
        content: New content of the file.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        scratch.write_bytes(content)
        sync(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync(path.parent)


def publish(
    folder: Path, final: Path, trash: Path, adopt: Callable[[], bool], *, durable: bool = True
) -> bool:
    """Give a staged folder its final name, unless what has that name is as good.

    Args:
        folder: Staged folder, complete, on the file system of `final`.
        final: The name to take.
        trash: Parent of staging folders; receives the replaced folder first.
        adopt: Function that returns whether to keep the existing folder; called whenever the name is taken.
        durable: Whether to wait until the files are on the disk.

    Returns:
        True if `folder` took the name; False if another had it and `folder` is removed.
    """
    if durable:
        settle(folder)
    final.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        try:
            folder.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            sync(final.parent)
            return True
        if adopt():
            remove(folder)
            return False
        if _exchange(folder, final):
            sync(final.parent)
            remove(folder)
            return True
        retire(final, trash)
    raise OSError(errno.EBUSY, "other processes keep taking the name", str(final))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically, so that a kill leaves both in place; False if the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    return renameat2 is not None and renameat2(*names, _RENAME_EXCHANGE) == 0


def retire(path: Path, trash: Path) -> None:
    """Take a published folder's name away at once, then remove it.

    Args:
        path: The folder.
        trash: Parent of staging folders, so that a later run finishes an interrupted removal.
    """
    with staged(trash, f".{path.name}") as hollow, suppress(FileNotFoundError):
        path.rename(hollow / path.name)
