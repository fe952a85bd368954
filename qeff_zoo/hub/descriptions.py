# SPDX-License-Identifier: Apache-2.0
"""What a remote's package is, verified before any of its files is touched.

In: where a package is. Out: its `Description`. The digest comes first, then whose signature it is, and only then is the
manifest parsed and checked against its schema and its rules.
"""

import hashlib
from dataclasses import dataclass

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.remotes import Snapshot
from qeff_zoo.package.manifest import (
    MANIFEST_LIMIT,
    MANIFEST_NAME,
    SCHEMA_ID,
    SIGNATURE_NAME,
    Manifest,
    parse,
    problems,
)
from qeff_zoo.store.origins import Origin


@dataclass(frozen=True, kw_only=True)
class Description:
    """A manifest that was verified before any file that it lists is touched.

    Args:
        content: Its bytes.
        manifest: What they say.
        signature: Bytes of the signature beside it.
        warnings: What the trust policy lets pass.
    """

    content: bytes
    manifest: Manifest
    signature: bytes | None
    warnings: tuple[str, ...]

    @property
    def build_key(self) -> str:
        return str(self.manifest["build_key"])


def describe(content: bytes, signature: bytes | None, origin: Origin) -> Description:
    """Check a manifest: that it is the one that was meant, then that it is trusted, then what it says.

    Args:
        content: Bytes of a manifest.json.
        signature: Of the file beside it.
        origin: Where they are from.

    Raises:
        RemoteError: It is another manifest, or one that says what no manifest may.
        TrustError: The trust policy refuses it.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != origin.manifest:
        raise RemoteError(
            f"The manifest in {origin.path!r} of {origin.url!r} has SHA-256 {found}; expected {origin.manifest}. It "
            "was changed since, or damaged on its way. Pull again; if that does not help, tell the publisher."
        )
    warnings = tuple(trust.check(content, signature, trust.policy()))
    manifest = read_manifest(content, f"{origin.url}: {origin.path}")
    return Description(content=content, manifest=manifest, signature=signature, warnings=warnings)


def read_manifest(content: bytes, place: str) -> Manifest:
    """Parse a manifest, and check it against its schema and its rules.

    Args:
        content: Its bytes.
        place: Where it is, for messages.

    Raises:
        RemoteError: It says what no manifest may.
    """
    try:
        manifest: Manifest = parse(content)
        broken = problems(manifest)
    except ValueError as error:
        broken = [f"it cannot be read: {error}"]
    if broken:
        raise RemoteError(
            f"The manifest in {place!r} is not a right one: {'; '.join(broken[:5])}. Expected {SCHEMA_ID!r}, every "
            "rule of it held. Use a qeff-zoo as new as its publisher's, or tell them."
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


def require_as_indexed(described: Description, origin: Origin, entry: Entry) -> None:
    """Refuse a package that is not what its remote's index says, by which it was chosen."""
    found = Entry.of(described.manifest, described.content, signed=entry.signed)
    pairs = {
        name: (getattr(found, name), getattr(entry, name))
        for name in ("key16", "model", "revision", "size", "validated")
    }
    # An index that was written by an older or newer version may know fewer axes, or more.
    shared = found.axes.keys() & entry.axes.keys()
    pairs |= {name: (found.axes[name], entry.axes[name]) for name in shared}
    for name, (is_so, said) in pairs.items():
        if is_so != said:
            raise RemoteError(
                f"The index of {origin.url!r} says of {origin.path!r} that its {name} is {said!r}, and its manifest "
                f"says {is_so!r}; expected the same. Tell the publisher, or pull from another remote."
            )


def origin_of(snapshot: Snapshot, entry: Entry) -> Origin:
    """Say where a package is that a remote's index lists."""
    return Origin(url=snapshot.url, path=entry.path, manifest=entry.manifest, signed=entry.signed)
