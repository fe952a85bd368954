# SPDX-License-Identifier: Apache-2.0
"""The folder of a site: written beside its place, and renamed when it is whole."""

import os
from contextlib import suppress
from pathlib import Path

from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.disk.staging import publish, staged_beside
from qeff_zoo.errors import PublishError
from qeff_zoo.site import pages
from qeff_zoo.site.addresses import OWN
from qeff_zoo.site.content import Zoo
from qeff_zoo.site.listing import SCHEMA_ID

_MARK = f"{OWN}/api/index.json"


def require_free(folder: Path) -> None:
    """Refuse a folder with anything but an earlier site in it.

    Args:
        folder: Place of the site.

    Raises:
        PublishError: The folder has other content, or is a file.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    mark = folder / _MARK
    if mark.is_file() and SCHEMA_ID.encode() in read_regular(mark, limit=4096):
        return
    raise PublishError(
        f"Cannot write a site to {str(folder)!r}: something else is there. Expected no folder, an empty one or an "
        "earlier site, which is replaced as a whole. Name another one with --output."
    )


def write(zoo: Zoo, folder: Path) -> None:
    """Write a site; an earlier one stays in place until the new one is whole.

    Args:
        zoo: Content of the site.
        folder: Place of the site.

    Raises:
        PublishError: The folder has other content.
    """
    require_free(folder)
    folder = folder.absolute()
    with staged_beside(folder) as staging:
        for path, content in pages.files(zoo):
            if reason := unsafe_path(path):
                raise AssertionError(f"The path {path!r} of a page {reason}.")
            _place(content.encode(errors="backslashreplace"), staging / path, folder / path)
        # A site can be written again, so nothing waits for the disk.
        publish(staging, folder, folder.parent, lambda: False, durable=False)


def _place(content: bytes, file: Path, earlier: Path) -> None:
    """Write a file, or link the same one of the earlier site, which is then cheap to remove."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        if not earlier.is_symlink() and read_regular(earlier, len(content) + 1) == content:
            os.link(earlier, file)
            return
    file.write_bytes(content)
