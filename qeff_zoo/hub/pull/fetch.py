# SPDX-License-Identifier: Apache-2.0
"""Download of a package: from a remote into the store.

The description is verified before any file is downloaded: first the digest of the manifest, then its signature; only
then is the manifest parsed, and checked against its schema and rules. Files that another package of the store has are
shared, and read to check them; the others are downloaded. The manifest is written last, into a folder that is
renamed when it is complete.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from qeff_zoo.disk.cloning import share
from qeff_zoo.disk.digests import Progress, sha256_file
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.pull.transfer import Source, Transfer, Wanted
from qeff_zoo.hub.remotes.protocol import Snapshot
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import (
    MANIFEST_LIMIT,
    MANIFEST_NAME,
    SCHEMA_ID,
    SIGNATURE_NAME,
    Manifest,
    parse,
    problems,
)
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BUILT_HERE, Origin
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch

# --- what describes it -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Description:
    """A manifest that was verified before any file that it lists is touched.

    Args:
        content: Bytes of the file.
        manifest: Checked content.
        signature: Bytes of the signature beside it.
        warnings: Issues that the trust policy lets pass.
    """

    content: bytes
    manifest: Manifest
    signature: bytes | None
    warnings: tuple[str, ...]

    @property
    def build_key(self) -> str:
        return str(self.manifest["build_key"])


def describe(content: bytes, signature: bytes | None, origin: Origin) -> Description:
    """Check a manifest: its identity, then its signature, then its content.

    Args:
        content: Bytes of a manifest.json.
        signature: Signature file beside it.
        origin: Origin of both.

    Raises:
        RemoteError: The manifest is another one, or has content that a manifest must not have.
        TrustError: The trust policy refuses it.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != origin.manifest:
        raise RemoteError(
            f"The manifest in {origin.path!r} of {origin.url!r} has SHA-256 {digest}; expected {origin.manifest}. It "
            "was changed since, or damaged on its way. Pull again; if that does not help, report it to the publisher."
        )
    warnings = tuple(trust.check(content, signature, trust.policy_for(origin)))
    manifest = read_manifest(content, f"{origin.url}: {origin.path}")
    return Description(content=content, manifest=manifest, signature=signature, warnings=warnings)


def read_manifest(content: bytes, location: str) -> Manifest:
    """Parse a manifest, and check it against its schema and its rules.

    Args:
        content: Bytes of the file.
        location: Place of the manifest, for messages.

    Raises:
        RemoteError: The manifest has content that a manifest must not have.
    """
    try:
        manifest: Manifest = parse(content)
        broken = problems(manifest)
    except ValueError as error:
        broken = [f"it cannot be read: {error}"]
    if broken:
        raise RemoteError(
            f"The manifest in {location!r} is not a right one: {'; '.join(broken[:5])}. Expected {SCHEMA_ID!r}, every "
            "rule of it held. Use a qeff-zoo as new as its publisher's, or report it to them."
        )
    return manifest


def download_description(snapshot: Snapshot, origin: Origin) -> Description:
    """Read a package's manifest and signature from a remote, and check them."""
    content = snapshot.read(f"{origin.path}/{MANIFEST_NAME}", limit=MANIFEST_LIMIT)
    return describe(content, download_signature(snapshot, origin), origin)


def download_signature(snapshot: Snapshot, origin: Origin) -> bytes | None:
    """Read the signature beside a package's manifest; None if there is none."""
    if not origin.signed:
        return None
    return snapshot.read(f"{origin.path}/{SIGNATURE_NAME}", limit=trust.SIGNATURE_LIMIT)


def require_as_indexed(manifest: Manifest, content: bytes, origin: Origin, entry: Entry) -> None:
    """Refuse a package that differs from the index entry by which it was chosen.

    Args:
        manifest: The package's, checked.
        content: Bytes of the file.
        origin: Origin of the package.
        entry: Index entry of the package.

    Raises:
        RemoteError: The manifest differs in a field other than the wording of names and proofs, which depends on
            versions.
    """
    actual = Entry.of(
        manifest, content, signed=entry.signed
    )  # a signature that is missing is missed when it is read
    names = {each.name for each in fields(Entry)} - {"path", "axes", "proof"}
    pairs = {
        name: (getattr(actual, name), getattr(entry, name)) for name in ("key16", *sorted(names))
    }
    # An index that was written by an older or newer version may know fewer axes, or more.
    shared = actual.axes.keys() & entry.axes.keys()
    pairs |= {name: (actual.axes[name], entry.axes[name]) for name in shared}
    for name, (is_so, listed) in pairs.items():
        if is_so != listed:
            raise RemoteError(
                f"The index of {origin.url!r} says of {origin.path!r} that its {name} is {listed!r}, and its manifest "
                f"says {is_so!r}; expected the same. Report it to the publisher, or pull from another remote."
            )


def origin_of(snapshot: Snapshot, entry: Entry) -> Origin:
    """Return the origin of a package that a remote's index lists."""
    return Origin(url=snapshot.url, path=entry.path, manifest=entry.manifest, signed=entry.signed)


# --- its files ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Content:
    """A file's content, which may have several names.

    Args:
        digest: SHA-256, in hexadecimal.
        size: Size in bytes.
        names: Paths in the package.
    """

    digest: str
    size: int
    names: list[str]


@dataclass
class _Stored:
    """What the packages of a store have, read again when one of them has come or gone.

    Args:
        store: The store.
        packages: Folder of the store's packages.
    """

    store: Store
    packages: Path
    _changed: int = -1
    _files: Mapping[str, list[Path]] = field(default_factory=dict)

    def files(self, content: _Content) -> list[Path]:
        """List files that ought to have some content."""
        changed = self.packages.stat().st_mtime_ns if self.packages.exists() else 0
        if changed != self._changed:
            self._changed, self._files = changed, self.store.files_by_digest()
        return self._files.get(content.digest, [])


@dataclass(frozen=True)
class Assembler:
    """Puts packages together in a store.

    Args:
        store: Destination store.
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
            origin: Origin of the package.
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
            stored = _Stored(self.store, there.parent)
            missing = self._reuse(folder, contents, stored, there, advance)
            self._require_space(missing, str(described.manifest["name"]))
            transfer = Transfer(source, advance)
            transfer.fetch(
                [
                    Wanted(
                        path=f"{origin.path}/{content.names[0]}",
                        size=content.size,
                        digest=content.digest,
                        place=partial(self._place, folder, content, stored),
                    )
                    for content in missing
                ]
            )
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
        self,
        folder: Path,
        contents: list[_Content],
        stored: _Stored,
        there: Path,
        advance: Progress,
    ) -> list[_Content]:
        """Take what other packages have, or this one, `there` already but damaged; return what none has."""
        missing = []
        for content in contents:
            candidates = dict.fromkeys([*stored.files(content), there / content.names[0]])
            if _take(folder / content.names[0], content, candidates, advance):
                _name(folder, content)
            else:
                missing.append(content)
        return missing

    def _require_space(self, missing: list[_Content], name: str) -> None:
        partials = self.store.partials
        needed = sum(max(0, each.size - partials.size(each.digest)) for each in missing)
        self.store.require_space(self.store.root, needed, f"package {name!r}")

    @contextmanager
    def _place(
        self,
        folder: Path,
        content: _Content,
        stored: _Stored,
        advance: Progress,
        pause: Callable[[float], None],
    ) -> Iterator[Path | None]:
        """Claim the file that content is fetched into, and name it in the folder when that is done.

        It stays in the store's partials until the package has its name, so that a process that is killed before loses
        nothing, and others who want the same content need not fetch it. What has become a package's file while another
        process had the claim is shared.
        """
        with self.store.partials.claim(content.digest, pause) as partial_file:
            target = folder / content.names[0]
            if _take(target, content, stored.files(content), advance):
                yield None
            else:
                yield partial_file
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(partial_file, target)
                except OSError:  # a file system without links
                    partial_file.rename(target)
        _name(folder, content)


def _contents(manifest: Manifest) -> list[_Content]:
    contents: dict[str, _Content] = {}
    for file in manifest["files"]:
        digest = file["digest"].removeprefix("sha256:")
        content = contents.setdefault(digest, _Content(digest=digest, size=file["size"], names=[]))
        content.names.append(file["path"])
    return list(contents.values())


def _take(target: Path, content: _Content, candidates: Iterable[Path], advance: Progress) -> bool:
    """Share a file that has the content, if one of the candidates does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in candidates:
        with suppress(OSError):  # it is not there, or another process is removing its package
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode) and facts.st_size == content.size:
                share(path, target)
                if sha256_file(target, advance) == content.digest:
                    return True
                advance(-facts.st_size)
        target.unlink(missing_ok=True)
    return False


def _name(folder: Path, content: _Content) -> None:
    """Name content that has its first name by its other names too."""
    for name in content.names[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        share(folder / content.names[0], folder / name)
