# SPDX-License-Identifier: Apache-2.0
"""Downloads that are under way: files by digest, each with the process that writes to it.

In: the digest of content to come. Out: a private file that holds the beginning of it, as far as an
earlier process came. Beside each lies a note of its owner; a file whose owner is gone, or has let
go of it, is anybody's, and taking it is one rename.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.disk.staging import abandoned, discard, note_owner, owner_note, staging_folders


@dataclass(frozen=True)
class Partials:
    """The unfinished downloads of a store.

    Args:
        folder: Where they lie; made when first needed.
    """

    folder: Path

    @contextmanager
    def claim(self, digest: str) -> Iterator[Path]:
        """Yield a file for content of that digest, which no other process writes to meanwhile.

        It may hold a beginning of the content, or be absent. What is in it afterwards is kept for
        the next one who claims it.

        Args:
            digest: SHA-256 of the whole content, in hexadecimal.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        mine = self.folder / f"{digest}-{secrets.token_hex(8)}"
        try:
            note_owner(mine)
            self._adopt(digest, mine)
            yield mine
        finally:
            owner_note(mine).unlink(missing_ok=True)

    def drop(self, digest: str) -> None:
        """Remove what is nobody's of content that is complete elsewhere."""
        for path in self._free(digest):
            discard(path)

    def size(self, digest: str) -> int:
        """Tell how many bytes `claim` would find."""
        return max((_size(path) for path in self._free(digest)), default=0)

    def _adopt(self, digest: str, mine: Path) -> None:
        for path in sorted(self._free(digest), key=_size, reverse=True):
            try:
                path.rename(mine)
            except FileNotFoundError:
                continue  # another process was faster
            owner_note(path).unlink(missing_ok=True)
            return

    def _free(self, digest: str) -> list[Path]:
        return [
            path
            for path in staging_folders(self.folder)
            if path.name.startswith(digest) and released(path)
        ]


def released(path: Path) -> bool:
    """Tell whether nobody owns an unfinished download any more."""
    return not owner_note(path).exists() or abandoned(path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
