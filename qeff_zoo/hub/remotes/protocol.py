# SPDX-License-Identifier: Apache-2.0
"""What every remote can do, whatever it is: give its index and its files, and, if it can be written, take a commit."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub.index import INDEX_NAME, SERIAL_LIMIT, Index, Sign
from qeff_zoo.hub.index_files import files_of
from qeff_zoo.hub.urls import canonical, is_named
from qeff_zoo.settings import settings

#: What is put into a remote: a file, its bytes, or how they follow from the index that is committed with it.
Content: TypeAlias = Path | bytes | Callable[[Index], bytes]

#: Who may see what is published: everyone, those whom the Hub lets, or those who may read the folder.
PUBLIC, PRIVATE, FOLDER = "public", "private", "folder"
#: What a remote has of a file: itself; its content, in another place; nothing; something else in its place.
THERE, ELSEWHERE, MISSING, OTHER = "there", "elsewhere", "missing", "other"


class Snapshot(Protocol):
    """A remote at one moment; on the Hub, one commit, from which everything is read."""

    @property
    def url(self) -> str:
        """The remote's URL, with the commit if it has commits: `hf://org/repo@<40 hex digits>`."""

    @property
    def index(self) -> Index:
        """What it has; of a large index, the files that are needed are read when they are."""

    def read(self, path: str, *, limit: int) -> bytes:
        """Read a small file, whole; tried again when the network is in the way.

        Args:
            path: Path of the file in the remote.
            limit: The most bytes that it may have.

        Raises:
            RemoteError: The file is missing, larger, or unreadable.
        """

    def stream(
        self, path: str, *, offset: int = 0, end: int | None = None
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Read a file in pieces, from an offset on. There are no retries: the caller has the offset.

        Args:
            path: Path of the file in the remote.
            offset: The first byte to give; of a server that cannot start there, what comes before is thrown away.
            end: The first byte not to give; None for the whole rest.

        Raises:
            RemoteError: The file is unreadable; `retryable` if a later attempt may succeed. Also from the iterator.
            RangesIgnored: An end was given, and the server gives the whole file.
        """


class Remote(Protocol):
    """A location where packages are shared."""

    @property
    def url(self) -> str:
        """As it was given."""

    @property
    def read_only(self) -> bool:
        """Whether nothing is published here."""

    def snapshot(self, *, offline: bool = False) -> Snapshot | None:
        """Fetch the root of the index: one request, without a body if the cached one is current.

        Args:
            offline: Whether to return the last known index, without opening a socket.

        Returns:
            None if there is no index.

        Raises:
            RemoteError: The remote cannot be reached, or its index cannot be read.
            TrustError: The index is not the expected one; see `qeff_zoo.hub.trust.index_cache.accept`.
        """


class WritableRemote(Remote, Protocol):
    """A remote that packages are published to."""

    def holdings(self, package: str) -> "Holdings":
        """Look at what is there before something is published.

        Args:
            package: Path of a package in the remote; of a folder, only its files are read. "" for none.

        Raises:
            RemoteError: The remote cannot be read.
            PublishError: The repository is there, but not the branch.
        """

    def present(self, path: str, *, limit: int) -> bytes | None:
        """Read a small file as it is now; None if there is none.

        Args:
            path: Path of the file in the remote.
            limit: The most bytes that it may have.
        """

    def commit(
        self,
        upload: Mapping[str, Content],
        update: Callable[[Index], Index],
        message: str,
        *,
        create_pr: bool = False,
        sign: Sign | None = None,
    ) -> str:
        """Publish files and a changed index in one step, even if others do the same at that moment.

        The index is read where the commit will go, changed, and written only if no other commit was faster; else all of
        that is repeated, `update` included.

        Args:
            upload: Files by path in the remote.
            update: Function from the index to the new one; returns the same index for no change.
            message: Commit message, one line.
            create_pr: If True, open a pull request in a Hub repository instead of committing.
            sign: Signs the index; needed where it is signed already.

        Returns:
            The URL of the commit or of the pull request; that of the newest commit if there was nothing to change.

        Raises:
            PublishError: The remote refuses, or cannot be reached.
            TrustError: The index is older than one that was read before.
        """


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """A remote as it is before something is published to it.

    Args:
        visibility: Visibility of the repository; None if it does not exist.
        index: Index of the remote; empty without one.
        files: Digest by path: "sha256:…", or "git:…" of a file that the Hub keeps as a text.
    """

    visibility: str | None
    index: Index = field(default_factory=Index)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    def state(self, path: str, source: Path, digest: str) -> str:
        """Whether the remote has a file already.

        Args:
            path: Path of the file in the remote.
            source: The same file here.
            digest: "sha256:…" of its content.

        Returns:
            `THERE`, `ELSEWHERE`, `MISSING`, or `OTHER` if another file has its path.
        """
        held = self.files.get(path)
        if held is None:
            return ELSEWHERE if digest in self._contents else MISSING
        if held.startswith("git:") and source.is_file():
            digest = f"git:{_git_oid(read_regular(source))}"
        return THERE if held == digest else OTHER

    @cached_property
    def _contents(self) -> frozenset[str]:
        """The digests of what need not be sent again; into a folder, every file is copied."""
        return frozenset(self.files.values() if self.visibility != FOLDER else ())


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def require_safe(path: str, url: str) -> None:
    """Refuse the path of a file that could be outside of a remote.

    Args:
        path: Path in an index or a manifest.
        url: The remote's, for the message.

    Raises:
        RemoteError: The path is unsafe.
    """
    if reason := unsafe_path(path):
        raise RemoteError(
            f"Cannot read {path!r} of {url!r}: the path {reason}. Expected a file of the remote."
        )


def changed(
    url: str, before: Index, after: Index, sign: Sign | None
) -> tuple[Index, dict[str, bytes]]:
    """Write a remote's next index.

    Args:
        url: The remote's.
        before: Current content.
        after: New content.
        sign: Signs it.

    Returns:
        The next index, and its new files by path, the root last; none where it is what the remote has.

    Raises:
        PublishError: The present one is signed, and the next one would not be; or it cannot be written.
    """
    remotes = before.remotes if sign is None else _remotes(url, before)
    if after == before and (sign is None or (before.signature and before.remotes == remotes)):
        return before, {}
    if before.signature and sign is None:
        raise PublishError(
            f"The index of {url!r} is signed; expected a signature over the next one too. Give the key: --sign-with "
            "FILE."
        )
    if before.serial >= SERIAL_LIMIT:
        raise PublishError(
            f"The index of {url!r} has serial {before.serial}; expected less than {SERIAL_LIMIT}. Begin it anew: "
            f"remove {INDEX_NAME} there, publish the packages again, and inform their users to remove what they "
            "remember of it."
        )
    after = replace(after, serial=before.serial + 1, remotes=remotes)
    return after, files_of(after, sign)


def _remotes(url: str, before: Index) -> tuple[str, ...]:
    """Return the remotes that a signed index is for: the one that it goes to, and those that serve the same files.

    Raises:
        PublishError: The present one is another remote's.
    """
    if before.remotes and not is_named(url, before.remotes):
        raise PublishError(
            f"The index of {url!r} is signed for {', '.join(before.remotes)}; expected one for this remote: it "
            "put another one's there. Put the right one back, or remove it and publish the packages again."
        )
    ours = canonical(url)
    stores = [each for each in settings().stores if each.served_at and canonical(each.url) == ours]
    served = [place for each in stores for place in each.served_at]
    return tuple(dict.fromkeys([ours, *map(canonical, (*before.remotes, *served))]))
