# SPDX-License-Identifier: Apache-2.0
"""What a remote says it has: one small file that lists every package, and what has become known about them since.

In: manifests, or the bytes of an index. Out: an `Index`, or its bytes. Nothing here touches the network or the disk.
Packages are never changed; what is learnt later, that one is bad or another is better, is a notice in the index.

The file is gzipped JSON. Packages share most of what they say, so it is said once, in two tables:

    {"schema": "qeff-index/1", "serial": 12,
     "sources": [[model, model_type, revision, license], …],
     "kinds": [{"variant": "ort-int4-…", "axes": {…}, "needs": {…}, "tested": {…}}, …],
     "packages": [[source, kind, key16, SHA-256 of manifest.json, bytes, finished, validated, signed], …],
     "notices": {path: {"state": "yanked", "reason": …, "instead": path}, …}}
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.entries import PATH, Entry, Notice, package_path
from qeff_zoo.hub.index_table import Table, malformed, require

__all__ = [
    "INDEX_LIMIT",
    "INDEX_NAME",
    "Entry",
    "Index",
    "Notice",
    "decode",
    "encode",
    "package_path",
]

INDEX_NAME = "index.json.gz"
SCHEMA_ID = "qeff-index/1"
#: The most bytes of an index that are ever read, and the most that they may become.
INDEX_LIMIT = 8 << 20
_INFLATED_LIMIT = 32 << 20

_MEMBERS = {"schema", "serial", "sources", "kinds", "packages", "notices"}


@dataclass(frozen=True)
class Index:
    """All packages of a remote.

    Args:
        serial: Raised by every change, so that an older index is known for one.
        entries: One for each package, in the order of their publication.
        notices: By a package's path.
    """

    serial: int = 0
    entries: Sequence[Entry] = ()
    notices: Mapping[str, Notice] = field(default_factory=lambda: MappingProxyType({}))

    def with_entry(self, entry: Entry) -> "Index":
        """Add a package, or replace what is said of it; the same index if it says so already."""
        others = tuple(other for other in self.entries if other.path != entry.path)
        if entry in self.entries:
            return self
        return replace(self, serial=self.serial + 1, entries=(*others, entry))

    def with_notice(self, path: str, notice: Notice | None) -> "Index":
        """Say something of a package, or with None nothing any more; the same index if it says so already.

        Args:
            path: Of a package that the index lists.
            notice: What is known.

        Raises:
            ValueError: There is no such package here, or the notice names one that is not here.
        """
        known = {entry.path for entry in self.entries}
        for named in (path, notice.instead if notice else None):
            if named is not None and named not in known:
                raise ValueError(f"{named!r} is not a package of the index.")
        if self.notices.get(path) == notice:
            return self
        others = {key: value for key, value in self.notices.items() if key != path}
        notices = {**others, path: notice} if notice else others
        return replace(self, serial=self.serial + 1, notices=notices)

    def of_model(self, model_id: str) -> tuple[Entry, ...]:
        """List the packages of one model."""
        if isinstance(self.entries, Table):
            return self.entries.of_model(model_id)
        return tuple(entry for entry in self.entries if entry.model == model_id)

    @property
    def models(self) -> tuple[str, ...]:
        """The model ids that there are packages of, sorted."""
        if isinstance(self.entries, Table):
            return self.entries.models
        return tuple(sorted({entry.model for entry in self.entries}))


def encode(index: Index) -> bytes:
    """Write an index; the same one always as the same bytes."""
    sources: dict[Any, int] = {}
    kinds: dict[str, int] = {}
    packages = []
    for entry in index.entries:
        facts = (entry.model, entry.model_type, entry.revision, entry.license)
        source = sources.setdefault(facts, len(sources))
        kind = kinds.setdefault(_dump(_kind(entry)), len(kinds))
        packages.append([
            source, kind, entry.key16, entry.manifest, entry.size, entry.finished, entry.validated, entry.signed,
        ])  # fmt: skip
    content = {
        "schema": SCHEMA_ID,
        "serial": index.serial,
        "sources": [list(source) for source in sources],
        "kinds": [json.loads(kind) for kind in kinds],
        "packages": packages,
        "notices": {
            path: {"state": n.state, "reason": n.reason, **({"instead": n.instead} if n.instead else {})}
            for path, n in index.notices.items()
        },
    }  # fmt: skip
    return gzip.compress(_dump(content).encode(), compresslevel=9, mtime=0)


def _kind(entry: Entry) -> dict[str, Any]:
    return {
        "variant": entry.variant,
        "axes": dict(entry.axes),
        "needs": dict(entry.needs),
        "tested": dict(entry.tested),
    }


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def decode(content: bytes, *, known: bool = False) -> Index:
    """Read an index that anyone may have written.

    Args:
        content: Its bytes.
        known: They were read and verified before. Entries are then made, and checked, when they are first needed.

    Raises:
        RemoteError: It is not an index, or one of a version not known here, or one with a path out of `packages/`.
    """
    with malformed():
        found = json.loads(_inflated(content), object_pairs_hook=_unique)
        require(isinstance(found, dict), "content", type(found).__name__)
        if found.get("schema") != SCHEMA_ID:
            raise RemoteError(
                f"The index has schema {found.get('schema')!r}; expected {SCHEMA_ID!r}. Install a newer qeff-zoo, or "
                "have the index written by this one."
            )
        return _index(found, known)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    require(len(members) == len(pairs), "object with a key twice", pairs)
    return members


def _inflated(content: bytes) -> bytes:
    """Undo gzip, within a bound that no compression can lead beyond."""
    if len(content) > INDEX_LIMIT:
        raise ValueError(f"it has more than {INDEX_LIMIT:,} bytes")
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    inflated = stream.decompress(content, _INFLATED_LIMIT + 1)
    if len(inflated) > _INFLATED_LIMIT:
        raise ValueError(f"it grows to more than {_INFLATED_LIMIT:,} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is cut short, or something follows it")
    return inflated


def _index(found: Mapping[str, Any], known: bool) -> Index:
    require(found.keys() == _MEMBERS, "members", sorted(found))
    serial = found["serial"]
    require(type(serial) is int and 0 <= serial < 2**53, "serial", serial)
    table = Table(found["sources"], found["kinds"], found["packages"])
    entries = table if known else tuple(table)
    paths = entries if known else {entry.path for entry in entries}
    require(len(paths) == len(entries), "packages", "one path twice")
    notices = {path: _notice(path, notice) for path, notice in found["notices"].items()}
    return Index(serial, entries, MappingProxyType(notices))


def _notice(path: str, notice: Mapping[str, Any]) -> Notice:
    require(PATH.fullmatch(path), "path of a notice", path)
    require(notice.keys() <= {"state", "reason", "instead"}, "notice", notice)
    return Notice(notice["state"], notice["reason"], notice.get("instead"))
