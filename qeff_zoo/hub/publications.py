# SPDX-License-Identifier: Apache-2.0
"""What publishing a package would do, before it is done: for people, for programs, and for the code that does it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qeff_zoo.hub.folder_remote import FolderRemote
from qeff_zoo.hub.holdings import MISSING, THERE
from qeff_zoo.hub.hub_remote import HubRemote
from qeff_zoo.hub.index import Entry
from qeff_zoo.hub.licences import Licence
from qeff_zoo.package import Package
from qeff_zoo.package.description import human_size


@dataclass(frozen=True)
class File:
    """One file of a publication.

    Args:
        path: In the remote.
        source: Here.
        size: In bytes.
        state: What the remote has of it: `THERE`, `ELSEWHERE` or `MISSING` of `qeff_zoo.hub.holdings`.
    """

    path: str
    source: Path
    size: int
    state: str


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What publishing a package would do.

    Args:
        remote: Where to.
        package: What.
        entry: What the index will say of it.
        files: All of it, the manifest and its signature too.
        visibility: Who can see it then: "public", "private" or "folder".
        creates: Whether the repository is made.
        licence: Whether everyone might see it.
        listed: Whether the index says all of this already.
        create_pr: Whether a pull request is opened in place of a commit.
    """

    remote: HubRemote | FolderRemote
    package: Package
    entry: Entry
    files: tuple[File, ...] = field(repr=False)
    visibility: str
    creates: bool
    licence: Licence
    listed: bool
    create_pr: bool = False

    @property
    def missing(self) -> tuple[File, ...]:
        """The files that are not at their place in the remote."""
        return tuple(file for file in self.files if file.state != THERE)

    @property
    def nothing_to_do(self) -> bool:
        """Whether the remote has all of it."""
        return self.listed and not self.missing

    @property
    def summary(self) -> str:
        """The plan in one line."""
        there = len(self.files) - len(self.missing)
        send = human_size(self._bytes_to_upload)
        return (
            f"{self.package.name} -> {self.remote.url} ({'new, ' if self.creates else ''}{self.visibility}): "
            f"{len(self.files)} files, {human_size(_size(self.files))}; {there} there already, {send} to upload"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for a program."""
        files = [{"path": file.path, "size": file.size, "state": file.state} for file in self.files]
        return {
            "remote": self.remote.url, "visibility": self.visibility, "creates": self.creates,
            "licence": asdict(self.licence), "package": str(self.package.path), "path": self.entry.path,
            "build_key": self.package.build_key, "listed": self.listed, "create_pr": self.create_pr,
            "bytes": _size(self.files), "bytes_to_upload": self._bytes_to_upload, "files": files,
        }  # fmt: skip

    def __str__(self) -> str:
        """Explain the plan to a person."""
        rows = [
            ("as", self.entry.path),
            ("visibility", self.visibility + ("; the repository is made" if self.creates else "")),
            (
                "licence",
                f"{'for everyone' if self.licence.public else 'private'}: {self.licence.reason}",
            ),
            ("then", "nothing: all of it is there" if self.nothing_to_do else self._step),
        ]
        files = [(file.state, f"{human_size(file.size):>8}  {file.path}") for file in self.files]
        width = max(len(name) for name, _ in (*rows, *files))
        lines = [f"  {name:<{width}}  {text}" for name, text in (*rows, *files)]
        return "\n".join([self.summary, "", *lines])

    @property
    def _bytes_to_upload(self) -> int:
        return sum(file.size for file in self.files if file.state == MISSING)

    @property
    def _step(self) -> str:
        return (
            "one pull request"
            if self.create_pr
            else "one commit, with the index and the model card"
        )


def _size(files: tuple[File, ...]) -> int:
    return sum(file.size for file in files)
