# SPDX-License-Identifier: Apache-2.0
"""Files that others wrote are read here: only regular ones, so that no FIFO or device keeps a process waiting.

In: the path of a file in a package, a checkpoint, a remote, a cache, or a folder of another user. Out: the file, or
its content. Links are followed, as the Hub's cache has them; what they lead to counts. A file that a user names, such
as `--prompts-file <(command)`, may be of any kind, and is not read here.
"""

import errno
import os
import stat
from os import PathLike
from pathlib import Path
from typing import Any


def only_regular(path: str, flags: int) -> int:
    """Open a file as the `opener` of `open` and `FileIO` does.

    Raises:
        OSError: The path is a FIFO, a device, a socket or a folder; or it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a regular file", path)


def open_regular(path: str | PathLike[str], buffering: int = -1) -> Any:
    """Open a file for reading bytes.

    Args:
        path: The file.
        buffering: Argument of `open`.
    """
    return open(path, "rb", buffering=buffering, opener=only_regular)


def read_regular(path: str | PathLike[str], limit: int = -1) -> bytes:
    """Read a file.

    Args:
        path: The file.
        limit: The most bytes; -1 for all.
    """
    with open_regular(path) as file:
        content: bytes = file.read(limit)
        return content


def read_text(path: str | PathLike[str], encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a file of text, with a newline alone at the end of every line.

    Args:
        path: The file.
        encoding: Argument of `open`.
        errors: Argument of `open`.
    """
    with open(path, encoding=encoding, errors=errors, opener=only_regular) as file:
        return file.read()


def is_special(path: Path) -> bool:
    """Whether a path exists and is neither a regular file nor a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_here(reference: str) -> bool:
    """Whether a path is a file or a folder; False for impossible names and unreadable folders.

    Args:
        reference: A path, a model id, or any text.
    """
    return os.path.exists(reference)  # noqa: PTH110 -- `Path.exists` raises
