# SPDX-License-Identifier: Apache-2.0
"""Committing to a folder without locks, so that a publisher that dies or sleeps blocks nobody.

    index.json.gz                   the index, for those who read the folder through a web server
    .index/<serial>/index.json.gz   every index that there was; readers of the folder take the newest
    .staging/                       files on their way

A commit puts its files in place, which nobody sees yet. It then takes the next serial, by renaming a folder of its own
to it: that fails if the name is taken, so of two publishers that read the same index one succeeds, and the other reads
again. With that rename the commit has happened. index.json.gz is then replaced by the newest index, and once more if a
newer one came meanwhile, so that a publisher that slept in between leaves no older one. What one that died there left
undone, the next does.

Old indexes are emptied and keep their names: whoever still builds on one finds the name after it taken.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.disk.staging import settle, staged, staging_folders, sweep, sync, write_durably
from qeff_zoo.errors import PublishError
from qeff_zoo.hub.contents import Content
from qeff_zoo.hub.folder_remote import FolderRemote, index_file, serials
from qeff_zoo.hub.index import INDEX_NAME, Index, encode
from qeff_zoo.hub.retries import pauses
from qeff_zoo.package.manifest import unsafe_path

_STAGING = ".staging"
_ATTEMPTS = 30
_WHOLE = 8  # newest indexes that are not emptied: others may be about to read them


def commit_to_folder(
    remote: FolderRemote, upload: Mapping[str, Content], update: Callable[[Index], Index]
) -> str:
    """See `qeff_zoo.hub.commits.commit`."""
    root = remote.folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(staging_folders(root / _STAGING))
        _place(root, {path: content for path, content in upload.items() if not callable(content)})
        _advance(remote, update)
        _place_made(
            remote, {path: content for path, content in upload.items() if callable(content)}
        )
    except OSError as error:
        raise PublishError(
            f"Cannot publish to {remote.url!r}: {error}. Expected a folder that this user may write, with room. Check "
            "its permissions and space, then publish again."
        ) from error
    return remote.url


def _place(root: Path, contents: Mapping[str, Path | bytes]) -> None:
    """Put files in place, each whole or not at all; a package that is there already stays untouched."""
    for path in contents:
        if reason := unsafe_path(path):
            raise PublishError(
                f"Cannot publish {path!r}: the path {reason}. Expected a file of the remote."
            )
    missing = {
        path: content for path, content in contents.items() if not _is_there(root / path, content)
    }
    if not missing:
        return
    with staged(root / _STAGING, "publish") as folder:
        for path, content in missing.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, folder / path)
            else:
                (folder / path).write_bytes(content)
        settle(folder)
        for package in {found for path in missing if (found := _package_of(path))}:
            _place_package(folder / package, root / package)
        for path, content in missing.items():
            if _is_there(root / path, content):
                continue
            if _package_of(path) and (root / path).exists():
                raise PublishError(
                    f"The remote has another {path}, put there by somebody else at this moment, and nothing is "
                    "overwritten. Expected none, or the same. Pull that package, or publish elsewhere."
                )
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).replace(root / path)
    for parent in {(root / path).parent for path in missing}:
        sync(parent)


def _package_of(path: str) -> str | None:
    """Return the folder of the package that a file is of; None for one of no package."""
    parts = path.split("/")
    return "/".join(parts[:3]) if parts[0] == "packages" else None


def _place_package(source: Path, target: Path) -> None:
    """Put a package's files in place as one, unless something is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _is_there(target: Path, content: Path | bytes) -> bool:
    try:
        if isinstance(content, bytes):
            return target.stat().st_size == len(content) and target.read_bytes() == content
        same_size = target.stat().st_size == content.stat().st_size
        return same_size and sha256_file(target) == sha256_file(content)
    except FileNotFoundError:
        return False


def _place_made(remote: FolderRemote, contents: Mapping[str, Callable[[Index], bytes]]) -> None:
    """Put files in place that follow from the index, of the newest one in the end."""
    index = _newest(remote)
    while contents:
        _place(remote.folder, {path: content(index) for path, content in contents.items()})
        index, placed = _newest(remote), index
        if index == placed:
            return


def _newest(remote: FolderRemote) -> Index:
    shown = remote.snapshot()
    return shown.index if shown else Index()


def _advance(remote: FolderRemote, update: Callable[[Index], Index]) -> None:
    """Change the index."""
    for pause in pauses(_ATTEMPTS):
        before = _newest(remote)
        after = update(before)
        if after == before:
            _show_newest(remote.folder)
            return
        after = replace(after, serial=before.serial + 1)
        if _take(remote.folder, after):
            _show_newest(remote.folder)
            _empty_old(remote.folder)
            return
        time.sleep(pause)
    raise PublishError(
        f"Cannot publish to {remote.url!r}: others published each time, {_ATTEMPTS} times. Expected a quiet moment. "
        "Publish again."
    )


def _take(root: Path, index: Index) -> bool:
    """Make an index the newest; False if another has its serial."""
    target = index_file(root, index.serial).parent
    with staged(root / _STAGING, "index") as folder:
        (folder / INDEX_NAME).write_bytes(encode(index))
        settle(folder)
        target.parent.mkdir(exist_ok=True)
        try:
            folder.rename(target)  # a folder that is not empty is never replaced
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    sync(target.parent)
    return True


def _show_newest(root: Path) -> None:
    """Let readers read the newest index."""
    while known := serials(root):
        content = index_file(root, known[-1]).read_bytes()
        shown = root / INDEX_NAME
        if content and (not shown.exists() or shown.read_bytes() != content):
            write_durably(shown, content)
        if serials(root)[-1] == known[-1]:
            return


def _empty_old(root: Path) -> None:
    for serial in reversed(serials(root)[:-_WHOLE]):
        file = index_file(root, serial)
        with suppress(FileNotFoundError):
            if file.stat().st_size == 0:
                return  # those before it were emptied with it
            os.truncate(file, 0)
