# SPDX-License-Identifier: Apache-2.0
"""A package's files, from wherever they are -> the package in the store.

In: a verified manifest, and a source that has its files. Out: the store's package. What another package of the store
has is shared with it, and read to be sure of it; the rest is fetched. The manifest is written last, into a folder that
gets its name when it is whole.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from qeff_zoo.disk.digests import Progress, sha256_file
from qeff_zoo.disk.sharing import share
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.hub.descriptions import Description
from qeff_zoo.hub.transfer import Source, Transfer, Wanted
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, Manifest
from qeff_zoo.progress import Reporter, Silent, Stopwatch
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BUILT_HERE, Origin


@dataclass(frozen=True, kw_only=True)
class _Content:
    """A file's content, which may have several names.

    Args:
        digest: SHA-256, in hexadecimal.
        size: In bytes.
        names: Paths in the package.
    """

    digest: str
    size: int
    names: list[str]


@dataclass(frozen=True)
class Assembler:
    """Puts packages together in a store.

    Args:
        store: Where they go.
        reporter: Shows progress.
    """

    store: Store
    reporter: Reporter = field(default_factory=Silent)

    def assemble(
        self,
        source: Source,
        described: Description,
        origin: Origin,
        *,
        adopt: bool,
        built_here: bool = False,
    ) -> tuple[Package, int]:
        """Put a package together, from files that the store has and files that the source has.

        Args:
            source: Has all of them.
            described: The package's manifest.
            origin: Where the package is in the source.
            adopt: Whether a package of the same key that appears meanwhile will do.
            built_here: Whether its manifest is that of a package which was built here, and stays one.

        Returns:
            The store's package, and how many bytes came from the source.
        """
        contents = _contents(described.manifest)
        watch = Stopwatch(self.reporter)
        total = sum(content.size for content in contents)
        with watch.stage("pull", total) as advance, self.store.stage("pull") as folder:
            there = self.store.folder(described.build_key)
            missing = self._reuse(folder, contents, there, advance)
            self._require_space(missing, str(described.manifest["name"]))
            with ExitStack() as claims:
                transfer = Transfer(source, advance)
                self._download(transfer, folder, missing, origin.path, claims)
                if described.signature is not None:
                    # As a new file: one of that name could be linked to another package's.
                    write_durably(folder / SIGNATURE_NAME, described.signature)
                write_durably(folder / MANIFEST_NAME, described.content)
                package = self.store.promote(
                    folder,
                    described.build_key,
                    origin=BUILT_HERE if built_here else origin,
                    adopt=adopt,
                )
        for content in contents:
            self.store.partials.drop(content.digest)
        return package, transfer.received

    def _reuse(
        self, folder: Path, contents: list[_Content], there: Path, advance: Progress
    ) -> list[_Content]:
        """Take what other packages have, or this one, `there` already but damaged; return what none has."""
        stored, missing = self.store.files_by_digest(), []
        for content in contents:
            candidates = dict.fromkeys([*stored.get(content.digest, []), there / content.names[0]])
            if _take(folder / content.names[0], content, candidates, advance):
                _name(folder, content)
            else:
                missing.append(content)
        return missing

    def _require_space(self, missing: list[_Content], name: str) -> None:
        partials = self.store.partials
        needed = sum(max(0, each.size - partials.size(each.digest)) for each in missing)
        self.store.require_space(self.store.root, needed, f"package {name!r}")

    def _download(
        self,
        transfer: Transfer,
        folder: Path,
        missing: list[_Content],
        path: str,
        claims: ExitStack,
    ) -> None:
        """Fetch content, and name it in the folder; it stays in the claimed files too until they are dropped.

        So a process that is killed before the package has its name loses nothing.
        """
        wanted = [
            Wanted(
                path=f"{path}/{content.names[0]}",
                size=content.size,
                digest=content.digest,
                target=claims.enter_context(self.store.partials.claim(content.digest)),
            )
            for content in missing
        ]
        transfer.fetch(wanted)
        for content, file in zip(missing, wanted, strict=True):
            target = folder / content.names[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file.target, target)
            except OSError:  # a file system without links
                file.target.rename(target)
            _name(folder, content)


def _contents(manifest: Manifest) -> list[_Content]:
    found: dict[str, _Content] = {}
    for file in manifest["files"]:
        digest = file["digest"].removeprefix("sha256:")
        content = found.setdefault(digest, _Content(digest=digest, size=file["size"], names=[]))
        content.names.append(file["path"])
    return list(found.values())


def _take(target: Path, content: _Content, candidates: Iterable[Path], advance: Progress) -> bool:
    """Share a file that has the content, if one of the candidates does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in candidates:
        with suppress(OSError):  # it is not there, or another process is removing its package
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size == content.size:
                share(path, target)
                if sha256_file(target, advance) == content.digest:
                    return True
                advance(-found.st_size)
        target.unlink(missing_ok=True)
    return False


def _name(folder: Path, content: _Content) -> None:
    """Name content that has its first name by its other names too."""
    for name in content.names[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        share(folder / content.names[0], folder / name)
