# SPDX-License-Identifier: Apache-2.0
"""What a remote has before something is published to it: its files, its index, and who may see it.

In: a remote. Out: a `Holdings`. Nothing is written.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import PublishError
from qeff_zoo.hub.folder_remote import FolderRemote
from qeff_zoo.hub.hub_calls import hub_call, status_of
from qeff_zoo.hub.hub_remote import HubRemote
from qeff_zoo.hub.index import Index
from qeff_zoo.package.files import walk

#: Who may see what is published: everyone, those whom the Hub lets, or those who may read the folder.
PUBLIC, PRIVATE, FOLDER = "public", "private", "folder"
#: What a remote has of a file: itself; its content, in another place; nothing; something else in its place.
THERE, ELSEWHERE, MISSING, OTHER = "there", "elsewhere", "missing", "other"


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """A remote as it is now.

    Args:
        visibility: Who may see it; None if it is not there yet.
        index: What it lists; empty if it has no index.
        files: Digest by path: "sha256:…", or "git:…" of a file that the Hub keeps as a text.
    """

    visibility: str | None
    index: Index = field(default_factory=Index)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    def state(self, path: str, source: Path, digest: str) -> str:
        """Tell whether a file is there already.

        Args:
            path: Of the file, in the remote.
            source: The same file here.
            digest: "sha256:…" of its content.

        Returns:
            `THERE`, `ELSEWHERE`, `MISSING`, or `OTHER` if its place is taken.
        """
        held = self.files.get(path)
        if held is None:
            return ELSEWHERE if digest in self._contents else MISSING
        if held.startswith("git:") and source.is_file():
            digest = f"git:{_git_oid(source.read_bytes())}"
        return THERE if held == digest else OTHER

    @cached_property
    def _contents(self) -> frozenset[str]:
        """The digests of what need not be sent again; into a folder, every file is copied."""
        return frozenset(self.files.values() if self.visibility != FOLDER else ())


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def holdings_of(remote: HubRemote | FolderRemote, package: str) -> Holdings:
    """Look at a remote.

    Args:
        remote: A folder need not be there.
        package: Path of a package in it; of a folder, only its files are read. "" for none.

    Raises:
        RemoteError: It cannot be read.
        PublishError: The repository is there, but not the branch.
    """
    return _folder(remote, package) if isinstance(remote, FolderRemote) else _repository(remote)


def _repository(remote: HubRemote) -> Holdings:
    """Ask for a repository's files, then for its index."""
    from huggingface_hub import HfApi, errors

    def ask() -> Holdings | None:
        try:
            info = HfApi().model_info(remote.repo, revision=remote.revision, files_metadata=True)
        except errors.RevisionNotFoundError as error:
            raise PublishError(
                f"{remote.repo!r} has no branch {remote.revision!r}. Expected one that is there. Make it, or name none."
            ) from error
        except errors.RepositoryNotFoundError as error:
            if status_of(error) in (401, 404):
                return None
            raise
        files = {
            file.rfilename: f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}"
            for file in info.siblings or ()
        }
        return Holdings(visibility=PRIVATE if info.private else PUBLIC, files=files)

    found = hub_call(f"look at {remote.repo!r}", ask)
    if found is None:
        return Holdings(visibility=None)
    snapshot = remote.snapshot()
    index = snapshot.index if snapshot else Index()
    return Holdings(visibility=found.visibility, files=found.files, index=index)


def _folder(remote: FolderRemote, package: str) -> Holdings:
    snapshot = remote.snapshot()
    folder = remote.folder / package
    names = walk(folder) if package else ()
    files = {f"{package}/{name}": f"sha256:{sha256_file(folder / name)}" for name in names}
    return Holdings(visibility=FOLDER, index=snapshot.index if snapshot else Index(), files=files)
