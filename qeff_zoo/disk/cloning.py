# SPDX-License-Identifier: Apache-2.0
"""One file under two names, stored once where the file system can do that.

In: a finished file. Out: the same bytes under a second name.
"""

import fcntl
import os
import shutil
from pathlib import Path

_FICLONE = 0x40049409  # of linux/fs.h: two files that share blocks until one of them is written to


def share(source: Path, target: Path) -> None:
    """Give a file a second name: a clone, or else a hard link, or else a copy.

    Args:
        source: A regular file.
        target: Absent; its folder is there.
    """
    if _clone(source, target):
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, one without links, or too many of them
        shutil.copyfile(source, target)


def share_all(source: Path, target: Path) -> None:
    """Give a file, or every file of a folder, a second name.

    Args:
        source: A regular file, or a folder of such.
        target: Absent; its folder is there.
    """
    if not source.is_dir():
        share(source, target)
        return
    target.mkdir()
    for path in source.iterdir():
        share_all(path, target / path.name)


def _clone(source: Path, target: Path) -> bool:
    try:
        with source.open("rb") as old, target.open("xb") as new:
            fcntl.ioctl(new, _FICLONE, old.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True
